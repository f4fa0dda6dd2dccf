"""Requirements of `meshwright check`: what a host must have, held against what its agent says.

Rule: met only by what was seen. What could not be looked at, was not measured or was measured too long ago is unknown,
and never a pass. The declared devices of a simulated host are judged, and marked as declared: that host is never more
than unknown, by its component `simulated`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import typer

from meshwright.cli.arguments import parse_case
from meshwright.cli.output import format_bytes, format_rate, format_time
from meshwright.cli.quantities import parse_devices, parse_duration, parse_memory, parse_rate
from meshwright.cli.time_limit import TimeLimit
from meshwright.errors import MeshwrightError
from meshwright.topology.counted import ChipCount
from meshwright.wire.bench import BenchCase, BenchRecord, LatestBench
from meshwright.wire.devices import Device, Devices
from meshwright.wire.health import WORST_FIRST, Health, State

if TYPE_CHECKING:
    from meshwright._client import Client

T = TypeVar("T")

COLLECTIVES: Final[tuple[BenchCase, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")
"""The cases that have a busbw."""

HealthLimit = Literal["healthy", "degraded"]


@dataclass(frozen=True)
class Finding:
    """One requirement: what was asked, what there is, and its state: healthy is met, unhealthy is not met.

    As text it is the same until something else is found: how long ago it was measured stands beside it, since a reason
    that is another at each look (`sinfo -R`) hides since when.
    """

    name: str
    asked: str
    found: str
    state: State
    action: str = ""
    age_s: float | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.asked}: {self.found}"

    @property
    def told(self) -> str:
        """What there is, and how long ago it was measured."""
        return self.found if self.age_s is None else f"{self.found}, {format_time(self.age_s)} ago"


@dataclass(frozen=True)
class Required:
    """What a host must have; None and empty: not asked."""

    devices: ChipCount | None = None
    min_hbm_bytes: int | None = None
    min_busbw: Mapping[BenchCase, float] = field(default_factory=dict)
    max_age_s: float | None = None
    max_health: HealthLimit | None = None


def parse_required(
    require: str | None,
    min_hbm: str | None,
    min_busbw: Sequence[str],
    max_age: str | None,
    max_health: HealthLimit | None,
) -> Required:
    """Returns what the options of `meshwright check` require.

    Raises:
        typer.BadParameter: an option is none of its language, or has nothing to be about.
    """
    if max_age is not None and not min_busbw:
        raise typer.BadParameter(
            "it is the age of measurements, and none is asked for; write --min-busbw all-reduce=300GB/s too",
            param_hint="--max-age",
        )
    rates = [_parse_bandwidth(text) for text in min_busbw]
    for place, (case, _) in enumerate(rates):
        if case in dict(rates[:place]):
            raise typer.BadParameter(f"{case} stands twice; give one rate of each collective", param_hint="--min-busbw")
    return Required(
        None if require is None else parse_devices(require, "--require"),
        None if min_hbm is None else parse_memory(min_hbm, "--min-hbm"),
        dict(rates),
        None if max_age is None else parse_duration(max_age, "--max-age"),
        max_health,
    )


def take_one(given: Sequence[str] | None, option: str) -> str | None:
    """Returns what an option says; None where it says nothing.

    Raises:
        typer.BadParameter: it says two things, of which a check would drop one in silence.
    """
    if given and len(given) > 1:
        raise typer.BadParameter(f"it stands {len(given)} times: {', '.join(given)}; give it once", param_hint=option)
    return given[0] if given else None


def _parse_bandwidth(text: str) -> tuple[BenchCase, float]:
    name, sign, rate = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} names no rate; write all-reduce=300GB/s", param_hint="--min-busbw")
    case = parse_case(name, "--min-busbw")
    if case not in COLLECTIVES:
        raise typer.BadParameter(
            f"{case} has no busbw, which is of collectives: {', '.join(COLLECTIVES)}; write all-reduce=300GB/s",
            param_hint="--min-busbw",
        )
    return case, parse_rate(rate, "--min-busbw")


def judge(required: Required, health: Health, client: Client, limit: TimeLimit) -> tuple[Finding, ...]:
    """Returns what became of each requirement; asks the agent for what they need, once each and within the limit."""
    return tuple(_judge(required, health, client, limit))


def _judge(required: Required, health: Health, client: Client, limit: TimeLimit) -> Iterator[Finding]:
    if required.max_health is not None:
        yield judge_health(required.max_health, health)
    if required.devices is None and required.min_hbm_bytes is None and not required.min_busbw:
        return
    devices = _ask(client.devices, limit)
    if required.devices is not None:
        wanted = required.devices
        yield _apply("devices", str(wanted), devices, lambda seen: judge_devices(wanted, seen))
    if required.min_hbm_bytes is not None:
        least = required.min_hbm_bytes
        asked = _write_least_memory(least)
        yield _apply("hbm", asked, devices, lambda seen: judge_memory(least, _choose(required.devices, seen)))
    latest = _ask(client.latest_bench, limit) if required.min_busbw else ""
    for case, rate in required.min_busbw.items():
        asked = _write_least_rate(rate, required.max_age_s)
        if isinstance(devices, str):
            yield Finding(case, asked, devices, "unknown")
            continue
        chosen = _choose(required.devices, devices)
        yield _apply(case, asked, latest, partial(judge_bandwidth, case, rate, required.max_age_s, chosen))


def _ask(question: Callable[[], T], limit: TimeLimit) -> T | str:
    """Returns the answer, or why there is none."""
    try:
        return limit.ask(question)
    except MeshwrightError as error:
        return f"could not be looked at: {str(error).partition(chr(10))[0]}"


def _apply(name: str, asked: str, seen: T | str, judge_seen: Callable[[T], Finding]) -> Finding:
    return Finding(name, asked, seen, "unknown") if isinstance(seen, str) else judge_seen(seen)


def _choose(wanted: ChipCount | None, seen: Devices) -> tuple[Device, ...]:
    """Returns the devices that requirements are about; a part of a card is none of the chips that are named."""
    if wanted is None or wanted.chip is None:
        return seen.devices
    return tuple(device for device in seen.devices if device.mig is None and wanted.is_of(device.kind))


def judge_health(limit: HealthLimit, health: Health) -> Finding:
    """Returns whether the host is no worse than this."""
    asked = f"at worst {limit}"
    if health.state in ("unknown", "initializing"):
        return Finding("health", asked, health.state, "unknown")
    is_met = health.state == "healthy" or health.state == limit
    return Finding("health", asked, health.state, "healthy" if is_met else "unhealthy")


def judge_devices(wanted: ChipCount, seen: Devices) -> Finding:
    """Returns whether so many devices are there."""
    there = _choose(wanted, seen)
    kinds = sorted({device.kind for device in there or seen.devices})
    found = f"{len(there)}" + (f" of {len(seen.devices)}" if len(there) < len(seen.devices) else "")
    told = f"{found} ({', '.join(kinds) or 'no device'}){_mark_declared(there)}"
    return Finding("devices", str(wanted), told, "healthy" if len(there) >= wanted.count else "unhealthy")


def _mark_declared(devices: Sequence[Device]) -> str:
    return ", declared" if any(device.basis == "declared" for device in devices) else ""


def judge_memory(least_bytes: int, devices: Sequence[Device]) -> Finding:
    """Returns whether each device has so much memory."""
    asked = _write_least_memory(least_bytes)
    unseen = [device.local_index for device in devices if device.memory is None or device.memory.capacity_bytes is None]
    if unseen or not devices:
        told = f"device {', '.join(map(str, unseen))} tells no capacity" if unseen else "no such device"
        return Finding("hbm", asked, told, "unknown")
    sizes = {device.local_index: device.memory.capacity_bytes or 0 for device in devices if device.memory is not None}
    least = min(sizes, key=lambda index: sizes[index])
    told = f"{format_bytes(sizes[least])} (device {least}, the least of {len(sizes)}){_mark_declared(devices)}"
    return Finding("hbm", asked, told, "healthy" if sizes[least] >= least_bytes else "unhealthy")


def judge_bandwidth(
    case: BenchCase, least: float, max_age_s: float | None, devices: Sequence[Device], latest: LatestBench
) -> Finding:
    """Returns whether a collective over all devices is so fast, by the largest message that was measured lately.

    A smaller message than was ever measured does not tell that it is too slow: busbw grows with the size.
    """
    asked, action = _write_least_rate(least, max_age_s), f"meshwright bench --case {case}"
    indices = {device.local_index for device in devices}
    measured = [record for record in latest.records if _is_of_all(record, case, indices)]
    lately = [record for record in measured if max_age_s is None or record.age_s <= max_age_s]
    if not measured:
        return Finding(case, asked, f"not measured over all of {len(indices)} devices", "unknown", action)
    if not lately:
        age = format_time(min(record.age_s for record in measured))
        return Finding(case, asked, f"the newest measurement is {age} old", "unknown", action)
    best = max(lately, key=lambda record: (record.size_bytes, record.observed_at))
    told = f"{format_rate(best.busbw_bytes_per_s, 'B/s')} at {format_bytes(best.size_bytes)}"
    if best.nwrong or not best.correct:
        return Finding(case, asked, f"{best.nwrong} elements wrong: {told}", "unhealthy", action, best.age_s)
    if (best.busbw_bytes_per_s or 0.0) >= least:
        return Finding(case, asked, told, "healthy", "", best.age_s)
    if best.size_bytes < max(record.size_bytes for record in measured):
        small = f"{told}: a small message, and larger ones are too old"
        return Finding(case, asked, small, "unknown", action, best.age_s)
    return Finding(case, asked, told, "unhealthy", action, best.age_s)


def _is_of_all(record: BenchRecord, case: BenchCase, indices: set[int]) -> bool:
    took_part = set(record.device_indices)
    is_one_group = record.axis_size == len(took_part)
    return record.case == case and is_one_group and took_part >= indices and record.busbw_bytes_per_s is not None


def _write_least_memory(least_bytes: int) -> str:
    return f"≥ {format_bytes(least_bytes)} each"


def _write_least_rate(least: float, max_age_s: float | None) -> str:
    age = "" if max_age_s is None else f", at most {format_time(max_age_s)} old"
    return f"≥ {format_rate(least, 'B/s')}{age}"


def find_worst(health: Health, findings: Sequence[Finding]) -> State:
    """Returns the worst state of the host and of what is required of it."""
    states = {health.state, *(finding.state for finding in findings)}
    return next(state for state in WORST_FIRST if state in states)
