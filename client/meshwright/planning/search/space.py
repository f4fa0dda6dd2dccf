"""Every layout of a step that cuts model, batch and devices into equal parts: the candidates of a search.

Rule: a candidate is legal by `planning.parallelism`'s rules, or it is not listed; sizes that were left out are told
with the rule that they break. Sizes only: knows no chip and no price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.layout import REMATS, Layout
from meshwright.planning.cost.memory import Moments
from meshwright.planning.parallelism import SEARCH_AXES, Rule, list_divisors, list_rules
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec

AXES: Final = ("pp", "dp", "fsdp", "ep", "cp", "tp")
"""As a mesh has them, the outermost first: least traffic outside (`planning.parallelism.ROLES`)."""

CONTEXT_LEAST: Final = 1024
"""Tokens of a sequence that one device keeps at least: shorter parts are all latency."""

MICRO_BATCHES: Final = 12
"""Micro-batches that are looked at for a layout: divisors of its part of the batch, the smallest first."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Bounds:
    """What a search may choose.

    Attributes:
        axes: sizes that are given.
        at_most: greatest sizes.
        remats: to choose from.
        passes: accumulated passes that are given; None: free.
        moments: states of the optimizer to choose from, those that are wanted most first; empty: that of training.
    """

    axes: Mapping[str, int] = field(default_factory=dict)
    at_most: Mapping[str, int] = field(default_factory=dict)
    remats: tuple[Remat, ...] = REMATS
    passes: int | None = None
    moments: tuple[Moments, ...] = ()

    def allows(self, axis: str, size: int) -> bool:
        """Returns whether an axis may have this size."""
        return size == self.axes.get(axis, size) and size <= self.at_most.get(axis, size)


@dataclass(frozen=True)
class Left:
    """A size that some axis cannot have, and the rule."""

    axis: str
    size: int
    rule: str


@dataclass(frozen=True)
class Space:
    """Candidates, and what was left out.

    Attributes:
        layout: arrays of one length.
        left: sizes that divide the devices and not the model.
    """

    layout: Layout
    left: tuple[Left, ...]

    @property
    def size(self) -> int:
        """How many candidates."""
        return len(np.asarray(self.layout.dp))


def list_space(devices: int, model: ModelSpec, training: TrainingSpec, bounds: Bounds) -> Space:
    """Returns all layouts of a model's training on so many devices.

    Args:
        devices: all of which are used.
        model: whose heads, experts, layers, widths and vocabulary are cut.
        training: sequence length and batch.
        bounds: what may be chosen.
    """
    left: list[Left] = []
    sizes = list_divisors(devices)
    listed = list_rules(model, training.model_copy(update={"gradient_accumulation": 1}))  # each candidate has its own
    rules = {axis: [rule for rule in listed if SEARCH_AXES[rule.roles[0]] == axis] for axis in AXES}
    choices = {axis: _choose(axis, sizes, rules[axis], bounds, left) for axis in AXES}
    micro_batches = list_divisors(training.global_batch)[:MICRO_BATCHES]
    return Space(_add_batches(_cross(devices, choices), training.global_batch, bounds, micro_batches), tuple(left))


def _choose(axis: str, sizes: list[int], rules: Sequence[Rule], bounds: Bounds, left: list[Left]) -> list[int]:
    """Returns the sizes that an axis may have; adds to `left` those that only a rule keeps out."""
    kept = []
    for size in sizes:
        if not bounds.allows(axis, size):
            continue
        broken = next((f"{rule.name} {rule.size}" for rule in rules if not rule.allows(size)), None)
        if broken is None and axis == "cp" and rules[0].size // size < CONTEXT_LEAST and size > 1:
            continue
        if broken is None:
            kept.append(size)
        elif axis not in ("dp", "ep") or size == bounds.axes.get(axis):
            left.append(Left(axis, size, f"{axis}:{size} does not divide {broken}"))
    return kept


def _cross(devices: int, choices: Mapping[str, list[int]]) -> dict[str, Numbers]:
    """Returns all combinations whose product is the number of devices; `dp` is what the others leave."""
    found: dict[str, Numbers] = {"product": np.ones(1, dtype=np.int64)}
    for axis in ("tp", "cp", "ep", "pp", "fsdp"):
        sizes = np.asarray(choices[axis], dtype=np.int64)
        count = len(found["product"])
        found = {name: np.repeat(values, len(sizes)) for name, values in found.items()}
        found[axis] = np.tile(sizes, count)
        found["product"] = found["product"] * found[axis]
        divides = devices % found["product"] == 0
        found = {name: values[divides] for name, values in found.items()}
    found["dp"] = devices // found.pop("product")
    is_allowed = np.isin(found["dp"], np.asarray(choices["dp"], dtype=np.int64))
    return {name: values[is_allowed] for name, values in found.items()}


def _add_batches(grid: dict[str, Numbers], batch: int, bounds: Bounds, micro_batches: Sequence[int]) -> Layout:
    """Returns the layouts with each micro-batch that divides their part of the batch, each remat and each state."""
    parts = grid["dp"] * grid["fsdp"] * grid["ep"]
    is_whole = batch % parts == 0
    grid = {name: values[is_whole] for name, values in grid.items()}
    share = batch // parts[is_whole]
    found: list[dict[str, Numbers]] = []
    for micro in micro_batches:
        passes = share // micro
        fits = (share % micro == 0) & ((passes == bounds.passes) if bounds.passes else True)
        chosen = {name: values[fits] for name, values in grid.items()}
        chosen |= {"micro_batch": np.full(fits.sum(), micro), "passes": passes[fits]}
        found.append(chosen)
    together = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    remats = np.asarray([REMATS.index(remat) for remat in bounds.remats], dtype=np.int64)
    moments = np.arange(len(bounds.moments) or 1)
    count = len(together["tp"])
    whole = {name: np.repeat(values, len(remats) * len(moments)) for name, values in together.items()}
    return Layout(
        **whole, remat=np.tile(np.repeat(remats, len(moments)), count), moments=np.tile(moments, count * len(remats))
    )
