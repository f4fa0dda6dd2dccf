"""Which hosts and devices are slower than their peers: the rule of a preflight.

Rule: a figure is slow if it is below its peers' median by more than 10 % and by more than four times their noise. The
noise is the median absolute deviation, as a normal distribution's sigma, of the logarithms of the figures above the
median: slow figures are below it. A host's network is suspected if it is slow with partners that are fast with others.
Suspects are measured again, beside those that are not suspected, before one is blamed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_high, median_low
from typing import Final, NamedTuple

from meshwright.preflight.pairs import Round, pair_with
from meshwright.wire.preflight import OWN_PHASES, Figure, SlowFigure, WrongContent, order_phase

DEVICE_FIGURES: Final[tuple[Figure, ...]] = ("matmul", "memory_bandwidth")
LOCAL_FIGURES: Final[tuple[Figure, ...]] = (*DEVICE_FIGURES, "all_reduce")
"""Those that a host measures alone."""

TOLERANCE: Final = math.log(1 / 0.9)
"""10 %: below it a difference is not worth a host. Source: Megatron-LM's rule for stragglers."""
NOISE_RATIO: Final = 4.0
"""In sigmas: one of 30,000 figures is lower by chance, and a suspect is measured again."""
SIGMA_PER_MAD: Final = 1.4826
"""Source: the 75 % quantile of the normal distribution is 0.6745 sigma."""
CONFIRM_ROUNDS: Final = 8
"""In how many rounds a suspected network is measured again, if there is time for it; the best counts."""
LAG_S: Final = 5.0
LAG_RATIO: Final = 2.0
"""A host lags if it is in a phase for so many seconds, and so many times, longer than its peers were."""
HELD_RATIO: Final = 0.25
"""Of the time of all: a host that went on lags only if it was in a phase for so much longer."""
FEW: Final = 32
FEW_TOLERANCE: Final = math.log(2)
"""Below `FEW` peers their noise is not known, and only half of the median is slow."""


FigureKey = tuple[Figure, int | None]
"""A figure, and the device that it is of; None: of the host."""


@dataclass(frozen=True)
class HostFigures:
    """What one host measured. Rates are per second.

    Attributes:
        devices: one mapping per device, of "matmul" (FLOP/s) and "memory_bandwidth" (bytes/s).
        all_reduce: bus bandwidth over its own devices, bytes/s; None with one device.
        network: bytes/s with its partner in each round; None where it rested.
    """

    devices: tuple[Mapping[Figure, float], ...]
    all_reduce: float | None
    network: tuple[float | None, ...]

    @property
    def best(self) -> float:
        """The fastest rate of `network`, bytes/s."""
        return max((rate for _, rate in self.list_rates("network")), default=0.0)

    def list_rates(self, figure: Figure) -> list[tuple[int | None, float]]:
        """Returns the values of a figure, each with its device; None: of the host."""
        if figure in DEVICE_FIGURES:
            return [(device, rates[figure]) for device, rates in enumerate(self.devices)]
        rates_of_host = self.network if figure == "network" else (self.all_reduce,)
        return [(None, rate) for rate in rates_of_host if rate is not None]


class Wrong(NamedTuple):
    """A wrong content that a host has seen.

    Attributes:
        host, device: what should have produced it; −1: it is the sum of all.
    """

    observer: int
    host: int
    device: int
    figure: Figure
    wrong_elements: int


@dataclass(frozen=True)
class Level:
    """The median of some figures, and the value below which one is slow."""

    median: float
    floor: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Level:
        """Returns the level of positive figures, at least one."""
        logs = [math.log(max(value, 1e-9)) for value in values]
        center = median_high(logs)
        noise = NOISE_RATIO * SIGMA_PER_MAD * median(each - center for each in logs if each >= center)
        tolerance = max(noise, FEW_TOLERANCE if len(logs) < FEW else TOLERANCE)
        return cls(math.exp(center), math.exp(center - tolerance))

    def is_slow(self, value: float) -> bool:
        """Returns whether a figure is below the floor."""
        return value < self.floor


def find_suspects(hosts: Sequence[HostFigures], rounds: Sequence[Round]) -> tuple[SlowFigure, ...]:
    """Returns every figure to measure again: of devices and hosts, and the network of hosts."""
    return (*_find_slow_rates(hosts), *_find_slow_networks(hosts, rounds))


def choose_confirmation(suspects: Sequence[SlowFigure], host_count: int, count: int) -> tuple[Round, ...]:
    """Returns `count` rounds in which the hosts with a suspected network meet hosts that are not suspected at all, and
    those left meet each other.

    If there are too few, they meet those whose network is not suspected.
    """
    network = [slow.host for slow in suspects if slow.figure == "network"]
    suspected = {slow.host for slow in suspects}
    good = [host for host in range(host_count) if host not in suspected]
    others = [host for host in range(host_count) if host not in network]
    return pair_with(network, good if len(good) >= len(network) else others, count)


def choose_figures(suspects: Iterable[SlowFigure], host_count: int, device_count: int) -> frozenset[FigureKey]:
    """Returns what every host measures again: what is suspected on any, so that peers are measured at the same time.

    The peers on a host alone are its other devices.
    """
    keys = {(slow.figure, slow.device) for slow in suspects if slow.figure != "network"}
    if host_count > 1:
        return frozenset(keys)
    others = {(figure, other) for figure, device in keys if device is not None for other in range(device_count)}
    return frozenset(keys | others)


def confirm(
    suspects: Sequence[SlowFigure], hosts: Sequence[HostFigures], rounds: Sequence[Round], again: Sequence[HostFigures]
) -> tuple[SlowFigure, ...]:
    """Returns the suspects that were slow again, by the first level and by that of their peers at the same time.

    Args:
        suspects: from `find_suspects`.
        hosts, rounds: the first figures.
        again: the second figures of all hosts: of `choose_figures`; their `network` is of `choose_confirmation`.
    """
    keys = choose_figures(suspects, len(hosts), len(hosts[0].devices))
    suspected = {(slow.host, slow.figure, slow.device) for slow in suspects}
    good = set(range(len(hosts))) - {slow.host for slow in suspects}
    rounds_again = choose_confirmation(suspects, len(hosts), len(again[0].network))

    def list_levels(figure: Figure) -> Iterator[Level | None]:
        if figure == "network":
            yield _level_network(hosts, rounds)
            peers = [rate for h in good for rate, partner in _list_met(h, again[h], rounds_again) if partner in good]
        else:
            yield _level_rates(hosts, figure)
            peers = [
                value
                for h, host in enumerate(again)
                for device, value in host.list_rates(figure)
                if (figure, device) in keys and (h, figure, device) not in suspected
            ]
        if peers:
            yield Level.of(peers)

    levels = {figure: tuple(list_levels(figure)) for figure in {slow.figure for slow in suspects}}
    return tuple(slow for slow in suspects if _is_slow_again(slow, again[slow.host], levels[slow.figure]))


def blame_contents(seen: Sequence[Wrong]) -> tuple[WrongContent, ...]:
    """Returns who produced the wrong contents that the hosts have seen.

    A host that alone sees the contents of several others as wrong is the one that receives wrongly. A wrong sum does
    not show which host made it wrong: it counts only if nothing else was found, and `blame_sums` looks for the host.
    """
    sent = [each for each in seen if each.host >= 0]
    observers: dict[int, set[int]] = {}
    for each in sent:
        observers.setdefault(each.host, set()).add(each.observer)
    alone: dict[int, set[int]] = {}
    for host, found_by in observers.items():
        for observer in found_by - {host}:
            if len(found_by) == 1:
                alone.setdefault(observer, set()).add(host)
    receivers = {observer for observer, hosts in alone.items() if len(hosts) > 1}
    most: dict[tuple[int | None, int | None, Figure], int] = {}
    for each in sent or seen:
        is_received = each.observer in receivers and each.host in alone[each.observer]
        blamed = each.observer if is_received else None if each.host < 0 else each.host
        device = None if is_received or each.device < 0 else each.device
        key = (blamed, device, each.figure)
        most[key] = max(each.wrong_elements, most.get(key, 0))
    return tuple(
        WrongContent(host=host, device=device, figure=figure, wrong_elements=wrong)
        for (host, device, figure), wrong in most.items()
    )


def blame_sums(wrong: Sequence[Sequence[int]], rounds: Sequence[Round]) -> tuple[WrongContent, ...]:
    """Returns the hosts whose sums with all partners are wrong, if a partner has a right sum with another host.

    Args:
        wrong: host → in each round the wrong elements of its sum with its partner.
        rounds: who met whom.
    """
    met = [
        [(pairs[host], count) for count, pairs in zip(row, rounds, strict=True) if host in pairs]
        for host, row in enumerate(wrong)
    ]
    right = {host for host, sums in enumerate(met) if any(count == 0 for _, count in sums)}
    return tuple(
        WrongContent(host=host, figure="network", wrong_elements=max(count for _, count in sums))
        for host, sums in enumerate(met)
        if host not in right and any(partner in right for partner, _ in sums)
    )


def find_laggards(seen: Mapping[int, Mapping[str, float]], ended_s: float) -> Iterator[tuple[int, str, float, float]]:
    """Yields (host, phase, seconds in it, its peers' median) of those that were busy with themselves much longer than
    half of all, which went on: until the end, or for so long that it held up the others.

    Args:
        seen: host → phase, or "" for its end → when it was first seen there, in seconds; `ended_s`: the end of all.
    """
    began_s = min((at_s for phases in seen.values() for at_s in phases.values()), default=ended_s)
    for host, phases in seen.items():
        for phase in sorted(OWN_PHASES & phases.keys(), key=order_phase):
            went_on_s = _find_end(phase, phases)
            took_s = (phases.get("", ended_s) if went_on_s is None else went_on_s) - phases[phase]
            ends = [(each.get(phase), _find_end(phase, each)) for each in seen.values()]
            peers = [0.0 if at_s is None else end_s - at_s for at_s, end_s in ends if end_s is not None]
            usual_s = median_low(peers) if 2 * len(peers) >= len(seen) else math.inf
            least_s = LAG_S if went_on_s is None else max(LAG_S, HELD_RATIO * (ended_s - began_s))
            if took_s > max(usual_s + least_s, usual_s * LAG_RATIO):
                yield host, phase, took_s, usual_s
                break


def _find_end(phase: str, seen: Mapping[str, float]) -> float | None:
    """Returns when a host was first seen in a later phase; None if it did not go on."""
    return min((at_s for each, at_s in seen.items() if each and order_phase(each) > order_phase(phase)), default=None)


def _is_slow_again(slow: SlowFigure, again: HostFigures, levels: Sequence[Level | None]) -> bool:
    values = [value for device, value in again.list_rates(slow.figure) if device == slow.device]
    return bool(values) and all(level is not None and level.is_slow(value) for level in levels for value in values)


def _find_slow_rates(hosts: Sequence[HostFigures]) -> Iterator[SlowFigure]:
    """Yields the slow figures of devices, then those of hosts alone."""
    for figure in LOCAL_FIGURES:
        level = _level_rates(hosts, figure)
        for h, host in enumerate(hosts):
            for device, value in host.list_rates(figure):
                if level is not None and level.is_slow(value):
                    yield _build(h, figure, device, value, level)


def _find_slow_networks(hosts: Sequence[HostFigures], rounds: Sequence[Round]) -> Iterator[SlowFigure]:
    level = _level_network(hosts, rounds)
    if level is None:
        return
    fast = {h for h, host in enumerate(hosts) if not level.is_slow(host.best)}
    for h, host in enumerate(hosts):
        met = [rate for rate, partner in _list_met(h, host, rounds) if partner in fast]
        slow = [rate for rate in met if level.is_slow(rate)]
        if h not in fast or (len(slow) >= 2 and 2 * len(slow) > len(met)):
            yield _build(h, "network", None, median(slow or [host.best]), level)


def _level_rates(hosts: Sequence[HostFigures], figure: Figure) -> Level | None:
    """Returns the level of a figure of devices, or of hosts alone; None where it was not measured."""
    values = [value for host in hosts for _, value in host.list_rates(figure)]
    return Level.of(values) if values else None


def _level_network(hosts: Sequence[HostFigures], rounds: Sequence[Round]) -> Level | None:
    """Returns the level of the pairs of hosts that were fast at least once; a good host may have met bad ones too.

    None for two hosts: which of them is slow cannot be told.
    """
    if len(hosts) < 3:
        return None
    least = math.exp(-TOLERANCE) * median(host.best for host in hosts)
    fast = {h for h, host in enumerate(hosts) if host.best >= least}
    rates = [rate for h in fast for rate, partner in _list_met(h, hosts[h], rounds) if partner in fast]
    return Level.of(rates or [host.best for host in hosts])


def _list_met(h: int, host: HostFigures, rounds: Sequence[Round]) -> Iterator[tuple[float, int]]:
    """Yields the rates of a host with the partner of each."""
    for rate, pairs in zip(host.network, rounds, strict=True):
        partner = pairs.get(h)
        if rate is not None and partner is not None:
            yield rate, partner


def _build(host: int, figure: Figure, device: int | None, value: float, level: Level) -> SlowFigure:
    return SlowFigure(host=host, figure=figure, device=device, value=value, peers=level.median)
