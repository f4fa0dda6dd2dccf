"""One mesh on one target: our order, JAX's, what both cost, and which rules are broken.

Rule: JAX gets stand-ins of the devices that the planner gets, and its own order of them is measured. That targets are
what libtpu describes is held by tests/process/test_targets.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jax.experimental import mesh_utils

from meshwright.planning.device_order import Score, score_order, search_layout
from meshwright.planning.granules import Weights
from meshwright.topology.links import price_hop
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from tests.compiler.sweep.cases import Case
from tests.compiler.sweep.measure import Array, Places, measure_score, measure_steps
from tests.fakes.jax_devices import build_stand_ins
from tests.fakes.slices import NamedSlice
from tests.fakes.topologies import weigh_positions

NOT_ONCE: Final = "devices not once each"

Rule = Literal["raises", "once", "told"]

_DIGITS: Final = 9
"""Of figures that are compared: less than any two orders differ by."""


class Fault(NamedTuple):
    """A rule that our order breaks, and how."""

    rule: Rule
    text: str


@dataclass(frozen=True)
class Cost:
    """What an order costs, smaller is better.

    Attributes:
        ways: one over the ways that an all-reduce of each axis goes at once, summed by the weights of the axes.
        hops: the longest step between neighbors.
    """

    ways: float
    hops: int

    @classmethod
    def of(cls, score: Score, weights: Weights, hops: int) -> Cost:
        """Returns a score's figures, with hops as measured."""
        axes = zip(weights.inside, score.axes, strict=True)
        return cls(round(sum(weight / axis.colors for weight, axis in axes if axis.colors), _DIGITS), hops)

    def is_no_worse(self, other: Cost) -> bool:
        """Returns whether neither figure is larger."""
        return self.ways <= other.ways and self.hops <= other.hops


@dataclass(frozen=True)
class Row:
    """What came of a case.

    Attributes:
        case: the mesh.
        method: how our order was found; empty: there is none.
        ours: of our order; None: there is none that has each device once.
        jax: of JAX's order; None: it has none.
        jax_failure: why; empty: it has one.
        faults: the rules that our order breaks.
    """

    case: Case
    method: str
    ours: Cost | None
    jax: Cost | None
    jax_failure: str
    faults: tuple[Fault, ...]

    @property
    def is_worse(self) -> bool:
        """JAX has an order, and ours is missing or worse by a figure."""
        return self.jax is not None and (self.ours is None or not self.ours.is_no_worse(self.jax))


@dataclass(frozen=True)
class Ground:
    """A target, as the planner sees it and as JAX does."""

    topology: Topology
    devices: list[SimpleNamespace]
    places: Places

    @classmethod
    def of(cls, target: str, named: NamedSlice) -> Ground:
        topology = build_target(target)
        devices = build_stand_ins(topology)
        return cls(topology, devices, Places.of(devices, named))

    def measure(self, case: Case, order: Array) -> tuple[Cost, Score]:
        """Returns what an order costs with hops by coordinates, and its score."""
        weights = weigh_positions(case.sizes)
        if case.dcn is None:
            score = measure_score(self.places, order, case.sizes, weights, price_hop(self.topology, 0))
        else:
            score = score_order(order.tolist(), case.sizes, weights, self.topology)
        hops = max(hops for hops, _ in measure_steps(self.places, order, case.sizes))
        return Cost.of(score, weights, hops), score


def compare_cases(cases: Sequence[Case]) -> list[Row]:
    """Returns a row for each case; those of one target follow each other."""
    rows, ground, target = [], None, None
    for case in cases:
        if ground is None or case.target != target:
            ground, target = Ground.of(case.target, case.slice), case.target
        rows.append(compare_case(case, ground))
    return rows


def compare_case(case: Case, ground: Ground) -> Row:
    """Returns what came of a case."""
    given, failure = ask_jax(case, ground.devices)
    theirs = None if given is None else ground.measure(case, given)[0]
    row = partial(Row, case, jax=theirs, jax_failure=failure)
    try:
        weights = weigh_positions(case.sizes)
        layout = search_layout(case.sizes, weights, ground.topology, ground.topology.order, dcn=case.dcn)
    except Exception as error:
        return row(method="", ours=None, faults=(Fault("raises", f"{type(error).__name__}: {error}"),))
    order = np.array(layout.order)
    if not is_permutation(order, len(ground.devices)):
        return row(method=layout.method, ours=None, faults=(Fault("once", NOT_ONCE),))
    ours, score = ground.measure(case, order)
    return row(method=layout.method, ours=ours, faults=tuple(_check_told(layout.score, score)))


def ask_jax(case: Case, devices: Sequence[Any]) -> tuple[Array | None, str]:
    """Returns JAX's own order as device numbers, row-major; or None and why it has none."""
    try:
        if case.dcn is None:
            made = mesh_utils.create_device_mesh(case.sizes, devices, allow_split_physical_axes=True)
        else:
            made = mesh_utils.create_hybrid_device_mesh(case.inner, case.dcn, devices, allow_split_physical_axes=True)
    except Exception as error:
        return None, type(error).__name__
    order = np.array([device.id for device in np.asarray(made).flat])
    return (order, "") if is_permutation(order, len(devices)) else (None, NOT_ONCE)


def is_permutation(order: Array, count: int) -> bool:
    """True when an order has each of `count` devices once."""
    return order.shape == (count,) and bool((np.sort(order) == np.arange(count)).all())


def _check_told(told: Score | None, measured: Score) -> Iterator[Fault]:
    """Yields whether a plan would tell another score than its order has."""
    if told is None or (round(told.cost, _DIGITS), told.hops) != (round(measured.cost, _DIGITS), measured.hops):
        yield Fault("told", f"a plan says {told}, measured {measured}")
