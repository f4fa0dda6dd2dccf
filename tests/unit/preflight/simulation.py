"""Simulated preflights: hosts with noise as measured, some of them slow, judged by the product's own rule."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.preflight.pairs import Round, choose_rounds
from meshwright.preflight.rule import (
    CONFIRM_ROUNDS,
    DEVICE_FIGURES,
    HostFigures,
    choose_confirmation,
    confirm,
    find_suspects,
)
from meshwright.wire.preflight import SlowFigure

SIGMA = 0.05
"""Of the logarithm of a figure."""
OUTLIER_RATIO = 0.02
"""Share of figures that something else on the host made up to three times slower."""
DEVICES = 2


class Hosts:
    """Hosts that measure: `slow` says which figure of which host is how many times slower."""

    def __init__(self, count: int, slow: Mapping[int, tuple[str, float]], seed: int) -> None:
        self.count = count
        self._slow = slow
        self._random = random.Random(seed)

    def _measure(self, rate: float) -> float:
        noise = self._random.lognormvariate(0, SIGMA)
        stalled = self._random.uniform(1, 3) if self._random.random() < OUTLIER_RATIO else 1.0
        return rate * noise / stalled

    def _factor(self, host: int, figure: str) -> float:
        named, factor = self._slow.get(host, ("", 1.0))
        return factor if named in (figure, "all") else 1.0

    def run(self, host: int, rounds: Sequence[Round], tries: int = 1) -> HostFigures:
        """Returns the figures of one host: of its devices the best of some tries."""

        def measure(figure: str, rate: float) -> float:
            return max(self._measure(rate) for _ in range(tries)) / self._factor(host, figure)

        devices: list[Any] = [{figure: measure(figure, 1e12) for figure in DEVICE_FIGURES} for _ in range(DEVICES)]
        network: list[float | None] = []
        for pairs in rounds:
            partner = pairs.get(host)
            both = () if partner is None else (host, partner)
            network.append(self._measure(1e9) / max(self._factor(each, "network") for each in both) if both else None)
        return HostFigures(tuple(devices), measure("all_reduce", 1e10), tuple(network))


def blame(hosts: Hosts) -> tuple[SlowFigure, ...]:
    """Returns whom a preflight of these hosts blames."""
    rounds = choose_rounds(hosts.count)
    first = [hosts.run(host, rounds) for host in range(hosts.count)]
    suspects = find_suspects(first, rounds)
    again = choose_confirmation(suspects, hosts.count, CONFIRM_ROUNDS)
    return confirm(suspects, first, rounds, [hosts.run(host, again, CONFIRM_ROUNDS) for host in range(hosts.count)])
