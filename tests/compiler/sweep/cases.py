"""The meshes that are laid on the named TPU slices.

Rule: all ways to write the number of devices as up to three sizes above 1, in any order; of a slice with many ways a
sample, which the seed and the slice's name alone decide. Several slices have a sample of their own. Knows no device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tests.fakes.slices import NamedSlice, read_named_slices

AXIS_COUNT_MAX: Final = 3
CASES_PER_SLICE: Final = 24
SEED: Final = 0

SEVERAL_COUNT: Final = 200
SLICE_COUNTS: Final = (2, 3, 4, 8)
SEVERAL_DEVICE_COUNT_MAX: Final = 2048
"""Every device of several slices is looked at for their score."""

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A mesh of all devices of one slice; or of `slice_count` slices, split over them as `dcn` says."""

    slice: NamedSlice
    sizes: Sizes
    dcn: Sizes | None = None

    @property
    def slice_count(self) -> int:
        return math.prod(self.dcn or ())

    @property
    def target(self) -> str:
        """What our planner is asked for."""
        return f"{self.slice_count}*{self.slice.name}" if self.slice_count > 1 else self.slice.name

    @property
    def inner(self) -> Sizes:
        """The part of the mesh that one slice holds."""
        return tuple(size // part for size, part in zip(self.sizes, self.dcn or (1,) * len(self.sizes), strict=True))


def list_factorings(count: int, axis_count_max: int = AXIS_COUNT_MAX) -> list[Sizes]:
    """Returns the ways to write a number as sizes above 1, the fewest sizes first; of 1, one size of 1."""
    if count == 1:
        return [(1,)]
    return sorted(_list_products(count, axis_count_max), key=lambda sizes: (len(sizes), sizes))


def _list_products(count: int, axis_count_max: int) -> Iterator[Sizes]:
    yield (count,)
    if axis_count_max > 1:
        for first in range(2, count // 2 + 1):
            if count % first == 0:
                for rest in _list_products(count // first, axis_count_max - 1):
                    yield (first, *rest)


def list_cases() -> list[list[Case]]:
    """Returns the cases of each slice that has a name, at most `CASES_PER_SLICE`."""
    found = []
    for named in read_named_slices():
        ways = list_factorings(named.device_count)
        if len(ways) > CASES_PER_SLICE:
            chosen = set(random.Random(f"{SEED} {named.name}").sample(ways, CASES_PER_SLICE))
            ways = [sizes for sizes in ways if sizes in chosen]
        found.append([Case(named, sizes) for sizes in ways])
    return found


def count_factorings() -> int:
    """Returns how many cases there are without samples."""
    return sum(len(list_factorings(named.device_count)) for named in read_named_slices())


def list_several() -> list[Case]:
    """Returns meshes over 2 to 8 slices of every generation, each with a way to split its axes over them."""
    draw = random.Random(f"{SEED} several")
    generations = group_slices(read_named_slices())
    cases: dict[Case, None] = {}
    while len(cases) < SEVERAL_COUNT:
        named = draw.choice(draw.choice(generations))
        slice_count = draw.choice(SLICE_COUNTS)
        if named.device_count > 1 and named.device_count * slice_count <= SEVERAL_DEVICE_COUNT_MAX:
            cases[_draw_case(draw, named, slice_count)] = None
    return list(cases)


def _draw_case(draw: random.Random, named: NamedSlice, slice_count: int) -> Case:
    inner = _draw_sizes(draw, named.device_count)
    dcn = _draw_sizes(draw, slice_count)
    return Case(named, tuple(a * b for a, b in zip(inner, dcn, strict=True)), dcn)


def _draw_sizes(draw: random.Random, count: int) -> Sizes:
    """Returns three sizes, some of them perhaps 1, in any order."""
    sizes = draw.choice(list_factorings(count))
    padded = [*sizes, *(1 for _ in range(AXIS_COUNT_MAX - len(sizes)))]
    return tuple(draw.sample(padded, len(padded)))


def group_slices(slices: Sequence[NamedSlice]) -> list[list[NamedSlice]]:
    """Returns the slices by generation."""
    groups: dict[str, list[NamedSlice]] = {}
    for named in slices:
        groups.setdefault(find_generation(named), []).append(named)
    return list(groups.values())


def find_generation(named: NamedSlice) -> str:
    """Returns the generation as its slices are named: "v5p"."""
    return named.name.partition("-")[0]
