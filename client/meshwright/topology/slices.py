"""TPU slices: which shapes there are, what they are called, how many chips a host has, which dimensions are rings.

Rule: a shape is legal by its generation's rule or not at all; the table (`slices.csv` beside this file) only gives
names to some of the legal ones. Legal without a name are, of v4, v5p and 7x, shapes such as 4×4×16 or 4×8×16, whose
number of chips already names another shape or none; of v2 and v3, 2×4 and its like.

Names. Source: AI-Hypercomputer/maxtext at 0f20c02, src/MaxText/accelerator_to_spec_map.py (v4 to 7x; in it stand the
hosts' shapes and wraps too); docs.cloud.google.com/tpu/docs/v2 and …/v3 (v2, v3). A name counts TensorCores; of v5e
and v6e, whose chips have one, chips. Google sells v5e-8 and v6e-8 also as one host of 2×4 chips; the table has the two
hosts of 2×2 that libtpu describes.

Twisted tori. libtpu takes a bare name for the plain torus ("v5p:4x4x8" and "v5p:4x4x8_untwisted" compile alike,
"v5p:4x4x8_twisted" does not), so a target is twisted only where it says so; gcloud gives v5p slices twisted unless told
otherwise. Source: libtpu 0.0.51; docs.cloud.google.com/tpu/docs/v4 and …/v5p ("Supports twisted?");
github.com/gclouduniverse/reproducibility, Training/TPU-v5p/Mixtral-8x7B-PyTorch.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import Final

from meshwright.errors import PlanInfeasibleError
from meshwright.targets import write_shape
from meshwright.topology.chips import Chip, find_chip
from meshwright.topology.distance import find_offsets
from meshwright.topology.torus import find_wraps

Shape = tuple[int, ...]

HOST_SHAPE: Final[Shape] = (2, 2, 1)
"""Chips of one host in x, y, z. Source: libtpu's default chips_per_host_bounds on every generation."""

SUGGESTION_COUNT: Final = 3


@dataclass(frozen=True)
class ShapeRule:
    """Which shapes a generation has.

    Attributes:
        dimensions: how many a shape is written with.
        text: the rule in words.
        source: who says so.
        allows: whether a shape with the right number of dimensions is legal.
        has_twists: whether its tori can be twisted.
    """

    dimensions: int
    text: str
    source: str
    allows: Callable[[Shape], bool]
    has_twists: bool = False


@dataclass(frozen=True)
class Slice:
    """One slice. `shape` is as its generation writes it; `extent` always has x, y and z.

    Attributes:
        chip: what it is made of.
        shape: chips in each dimension.
        host_shape: chips of one host, in x, y, z.
        name: what Google calls it; empty: nothing.
        aliases: other names.
    """

    chip: Chip
    shape: Shape
    host_shape: Shape = HOST_SHAPE
    name: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def extent(self) -> Shape:
        """Chips in x, y, z."""
        return (*self.shape, 1)[:3]

    @property
    def chip_count(self) -> int:
        """Chips."""
        return math.prod(self.shape)

    @property
    def device_count(self) -> int:
        """JAX devices."""
        return self.chip_count * self.chip.jax_devices_per_chip

    @property
    def host_count(self) -> int:
        """Hosts, each with as many chips as `host_shape` has."""
        return self.chip_count // math.prod(self.host_shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Which of x, y, z close to rings."""
        return find_wraps(self.chip.kinds[0], self.extent)

    @property
    def can_twist(self) -> bool:
        """Whether its torus can be twisted: k×k×2k and k×2k×2k."""
        return RULES[self.chip.family].has_twists and min(self.shape) >= 4 and find_offsets(self.shape) is not None


def _name_shapes(text: str) -> frozenset[Shape]:
    return frozenset(tuple(map(int, shape.split("x"))) for shape in text.split())


_SMALL_CUBES: Final = _name_shapes("2x2x1 2x2x2 2x2x4 2x4x4")
_PLANES: Final = _name_shapes("1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16")
"""Source: docs.cloud.google.com/tpu/docs/v5e and …/v6e, "Configurations"."""


def _allow_powers(longest: int) -> Callable[[Shape], bool]:
    def allows(shape: Shape) -> bool:
        x, y = shape
        return 2 <= x <= y <= min(2 * x, longest) and all(size & (size - 1) == 0 for size in shape)

    return allows


def _allow_cubes(most_chips: int, *, single: bool = False) -> Callable[[Shape], bool]:
    def allows(shape: Shape) -> bool:
        if shape in _SMALL_CUBES or (single and shape == (1, 1, 1)):
            return True
        cubes = all(size % 4 == 0 for size in shape)
        return cubes and shape == tuple(sorted(shape)) and math.prod(shape) <= most_chips

    return allows


_CUBES_TEXT: Final = (
    "2x2x1, 2x2x2, 2x2x4, 2x4x4, or cubes of 4x4x4: three multiples of 4, none smaller than the one before, "
    "of at most {} chips"
)
_CUBES_SOURCE: Final = (
    "cloud.google.com/tpu/docs/types-topologies (A<=B<=C, multiples of 4); AI-Hypercomputer/xpk at 367c838, "
    "src/xpk/core/system_characteristics.py (generate_tpu_topologies; cubes a pod)"
)
_PLANES_TEXT: Final = "1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16"
_POWERS_TEXT: Final = "AxB of powers of two, 2 <= A <= B <= 2A, at most {0}x{0}"

RULES: Final[Mapping[str, ShapeRule]] = {
    "tpu_v2": ShapeRule(2, _POWERS_TEXT.format(16), "docs.cloud.google.com/tpu/docs/v2", _allow_powers(16)),
    "tpu_v3": ShapeRule(2, _POWERS_TEXT.format(32), "docs.cloud.google.com/tpu/docs/v3", _allow_powers(32)),
    "tpu_v4": ShapeRule(3, _CUBES_TEXT.format(4096), _CUBES_SOURCE, _allow_cubes(4096), has_twists=True),
    "tpu_v5e": ShapeRule(2, _PLANES_TEXT, "docs.cloud.google.com/tpu/docs/v5e", _PLANES.__contains__),
    "tpu_v5p": ShapeRule(
        3,
        _CUBES_TEXT.format(8960),
        f"{_CUBES_SOURCE}; docs.cloud.google.com/tpu/docs/v5p (one job has at most 6144 chips)",
        _allow_cubes(8960),
        has_twists=True,
    ),
    "tpu_v6e": ShapeRule(2, _PLANES_TEXT, "docs.cloud.google.com/tpu/docs/v6e", _PLANES.__contains__),
    "tpu_7x": ShapeRule(
        3,
        f"1x1x1, {_CUBES_TEXT.format(9216)}",
        f"{_CUBES_SOURCE}; docs.cloud.google.com/tpu/docs/tpu7x",
        _allow_cubes(9216, single=True),
        has_twists=True,
    ),
}
"""By hardware family. A pod has 64 cubes of v4, 140 of v5p, 144 of 7x."""


@functools.cache
def read_slices() -> tuple[Slice, ...]:
    """Returns the slices that have a name, by generation and size."""
    text = (files("meshwright.topology") / "slices.csv").read_text(encoding="utf-8")
    return parse_slices(text.splitlines())


def parse_slices(lines: Iterable[str]) -> tuple[Slice, ...]:
    """Returns the slices of a CSV text with the columns name, aliases, chip, shape, host.

    Raises:
        ValueError: an unknown chip, a shape that its rule does not allow, or a cell that is none.
    """
    return tuple(_parse_row(row) for row in csv.DictReader(lines))


def _parse_row(row: Mapping[str, str]) -> Slice:
    chip = find_chip(row["chip"])
    shape = tuple(map(int, row["shape"].split("x")))
    if chip is None or not is_legal(chip, shape):
        raise ValueError(f"slice {row['name']!r}: no chip {row['chip']!r}, or no rule that allows {row['shape']}")
    host = tuple(map(int, row["host"].split("x")))
    return Slice(chip, shape, host, row["name"], tuple(filter(None, row["aliases"].split("|"))))


def is_legal(chip: Chip, shape: Shape) -> bool:
    """Returns whether a generation has slices of this shape."""
    rule = RULES[chip.family]
    return len(shape) == rule.dimensions and rule.allows(shape)


@functools.cache
def _by_name() -> Mapping[str, Slice]:
    return {name: each for each in read_slices() for name in (each.name, *each.aliases)}


@functools.cache
def _by_shape() -> Mapping[tuple[str, Shape], Slice]:
    return {(each.chip.family, each.shape): each for each in read_slices()}


def list_names() -> tuple[str, ...]:
    """Returns every name of a slice, in the order of the table."""
    return tuple(_by_name())


def find_slice(name: str) -> Slice | None:
    """Returns the slice of this name; its first part may be any name of the chip ("tpu-v5p-256")."""
    if name in _by_name():
        return _by_name()[name]
    prefix, _, count = name.rpartition("-")
    chip = find_chip(prefix)
    return _by_name().get(f"{chip.aliases[0]}-{count}") if chip else None


def build_slice(chip: Chip, shape: Shape, *, asked: str) -> Slice:
    """Returns the slice of a generation that has this shape; a third dimension of 1 is dropped where there are two.

    Raises:
        PlanInfeasibleError: the generation has none; names the nearest that it has. `asked` stands in its text.
    """
    rule = RULES[chip.family]
    if rule.dimensions == 2 and len(shape) == 3 and shape[2] == 1:
        shape = shape[:2]
    if not is_legal(chip, shape):
        near = [f"{chip.aliases[0]}:{write_shape(each)}" for each in suggest_shapes(chip, shape)]
        raise refuse(
            f"target {asked}: {chip.name} has no slice of {write_shape(shape)} chips; its slices are {rule.text}",
            f"use {', '.join(near)}",
        )
    named = _by_shape().get((chip.family, shape))
    return named or Slice(chip, shape)


def suggest_shapes(chip: Chip, shape: Shape) -> tuple[Shape, ...]:
    """Returns the legal shapes that are nearest to an illegal one, by the number of chips, then by the sizes."""
    known = {each.shape for each in read_slices() if each.chip.family == chip.family}
    rounded = {tuple(sorted(sizes)) for sizes in product(*(_round(size) for size in shape))}
    legal = [each for each in known | rounded if is_legal(chip, each)]
    return tuple(sorted(legal, key=lambda each: _measure(each, shape))[:SUGGESTION_COUNT])


def _round(size: int) -> tuple[int, ...]:
    """Returns multiples of 4 near a size: the next one up, and three from there down."""
    up = -(-size // 4) * 4
    return tuple(sorted({max(4, up - 4 * step) for step in range(4)}))


def _measure(one: Shape, other: Shape) -> tuple[float, float, Shape]:
    """Returns how far two shapes are apart; the shape itself settles what is left."""
    chips = abs(math.log(math.prod(one) / math.prod(other)))
    return round(chips, 6), math.dist(*_pad(one, other)), one


def _pad(one: Shape, other: Shape) -> tuple[Sequence[int], Sequence[int]]:
    return sorted((*one, 1, 1)[:3]), sorted((*other, 1, 1)[:3])


def check_twist(slice_: Slice, *, asked: str) -> None:
    """Passes over a slice whose torus can be twisted.

    Raises:
        PlanInfeasibleError: it cannot.
    """
    if not slice_.can_twist:
        raise refuse(
            f"target {asked}: a slice of {write_shape(slice_.shape)} {slice_.chip.name} chips cannot be twisted; "
            f"twisted tori are k×k×2k and k×2k×2k of v4, v5p and 7x, k a multiple of 4",
            "leave out _twisted, or use a shape such as 4x4x8 or 4x8x8",
        )


def refuse(detail: str, hint: str) -> PlanInfeasibleError:
    """Returns the refusal of a target that no hardware is."""
    return PlanInfeasibleError(detail, hint=hint, errors=[{"field": "target", "message": detail}])
