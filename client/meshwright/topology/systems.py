"""Systems that exist: hosts of GPUs with their links, and shapes of TPU slices with their names, hosts and rings.

GPU hosts: `gpu_hosts.csv` beside this file has the wiring of published boards and hosts; other numbers of GPUs are
refused. PCIe cards are assumed to be in a host of two sockets, half of them at each, every card at a host bridge of its
own; a real host may have switches, which agents read from the driver. Of boards with NVSwitch, 1, 2 (and, where no such
board exists, 4) GPUs are parts that clouds sell.

TPU slices: a shape is legal by the rule of its generation. `slices.csv` beside this file names some of the legal
shapes. A name counts TensorCores; for v5e and v6e, whose chips have one core, chips. Sources: AI-Hypercomputer/maxtext
at 0f20c02, src/MaxText/accelerator_to_spec_map.py (v4 to 7x, with shapes of hosts and wraps);
docs.cloud.google.com/tpu/docs/v2 and …/v3. Google sells v5e-8 and v6e-8 also as one host of 2×4 chips; the table has
the two hosts of 2×2 that libtpu describes.

Twisted tori: libtpu takes a bare name for the plain torus ("v5p:4x4x8" and "v5p:4x4x8_untwisted" compile alike,
"v5p:4x4x8_twisted" does not), so a target is twisted only where it says so; gcloud makes v5p slices twisted by default.
Sources: libtpu 0.0.51; docs.cloud.google.com/tpu/docs/v4 and …/v5p ("Supports twisted?");
github.com/gclouduniverse/reproducibility, Training/TPU-v5p/Mixtral-8x7B-PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator

from meshwright.errors import PlanInfeasibleError
from meshwright.targets import write_shape
from meshwright.topology.chips import Chip, Names, find_chip, parse_names, read_table
from meshwright.topology.links import NVLINK_BYTES_PER_S, XGMI
from meshwright.topology.model import can_twist
from meshwright.topology.torus import find_wraps
from meshwright.wire.devices import Link


@dataclass(frozen=True)
class GpuHost:
    """One form of host: `gpu_count` GPUs of a chip."""

    chip: Chip
    gpu_count: int
    form: Form

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links of one host between its GPUs by their places, each pair once."""
        return tuple(self._build_link(a, b) for a, b in combinations(range(self.gpu_count), 2))

    def _build_link(self, a: int, b: int) -> Link:
        kind, rate = _find_kind(self.form.wiring, a, b, self.gpu_count), None
        if kind == XGMI:
            rate = self.chip.link_bytes_per_s
        elif kind.startswith("NV"):
            rate = int(kind.removeprefix("NV")) * (self.chip.link_bytes_per_s or NVLINK_BYTES_PER_S)
        return Link(a=a, b=b, kind=kind, bandwidth_bytes_per_s=rate, basis="declared")


@dataclass(frozen=True)
class Form:
    """A form of host for several chips and numbers of GPUs: a row of `gpu_hosts.csv`.

    Attributes:
        chips: by their first aliases.
        counts: numbers of GPUs.
        wiring: the kind of link of every pair, as `nvidia-smi topo -m` and `rocm-smi --showtopo` name it; or "pcie",
            "pairs" (NVLink bridges between neighbors), "cube" (DGX-1).
        source: where the wiring is published.
        domain_hosts: how many such hosts one NVLink domain joins.
    """

    chips: Names
    counts: Annotated[tuple[int, ...], BeforeValidator(parse_names)]
    wiring: str
    text: str
    source: str
    domain_hosts: int = 1


@functools.cache
def read_forms() -> tuple[Form, ...]:
    """Returns the whole table."""
    return read_table("meshwright.topology", "gpu_hosts.csv", Form)


def find_socket(place: int, count: int) -> int:
    """Returns the NUMA node at which the GPU at a place hangs, out of `count`: one of two; up to two GPUs share one."""
    return 0 if count <= 2 else place * 2 // count


def _find_kind(wiring: str, a: int, b: int, count: int) -> str:
    """Returns the kind of the link between two GPUs, `a` before `b`, of a host of `count`."""
    if wiring == "cube":
        return _CUBE_MESH.get((a, b), "SYS")
    if wiring == "pairs" and a // 2 == b // 2:
        return "NV12"
    if wiring in ("pcie", "pairs"):
        return "NODE" if find_socket(a, count) == find_socket(b, count) else "SYS"
    return wiring


_CUBE_MESH: Final[Mapping[tuple[int, int], str]] = {
    (a, b): f"NV{count}"
    for a, b, count in (
        (0, 1, 1), (0, 2, 1), (0, 3, 2), (0, 4, 2), (1, 2, 2), (1, 3, 1), (1, 5, 2), (2, 3, 2),
        (2, 6, 1), (3, 7, 1), (4, 5, 1), (4, 6, 1), (4, 7, 2), (5, 6, 2), (5, 7, 1), (6, 7, 2),
    )
}  # fmt: skip
"""DGX-1 with V100: two squares with their diagonals, joined corner to corner; six links a GPU."""


_DEFAULT_COUNTS: Final[Mapping[str, int]] = {"gh200": 1, "gh200-144gb": 1, "gb200": 4, "gb300": 4}
_DEFAULT_COUNT: Final = 8
"""GPUs of a host where only the chip is named."""


def find_machine(chip: Chip, count: int) -> GpuHost | None:
    """Returns the host with `count` of these GPUs; None where no host has that number."""
    forms = (form for form in read_forms() if chip.aliases[0] in form.chips and count in form.counts)
    return next((GpuHost(chip, count, form) for form in forms), None)


def list_counts(chip: Chip) -> tuple[int, ...]:
    """Returns how many of these GPUs a host may have, ascending; empty for a chip with no known host."""
    return tuple(sorted(count for form in read_forms() if chip.aliases[0] in form.chips for count in form.counts))


def find_default_count(chip: Chip) -> int:
    """Returns how many of these GPUs the usual host has."""
    return _DEFAULT_COUNTS.get(chip.aliases[0], _DEFAULT_COUNT)


def find_domain_count(chip: Chip) -> int | None:
    """Returns the GPUs of an NVLink domain that spans hosts (72 of GB200); None for a chip without one."""
    form = next(form for form in read_forms() if chip.aliases[0] in form.chips)
    return form.domain_hosts * max(form.counts) if form.domain_hosts > 1 else None


Shape = tuple[int, ...]

HOST_SHAPE: Final[Shape] = (2, 2, 1)
"""Chips of one host in x, y, z. Source: libtpu's default chips_per_host_bounds on every generation."""

SUGGESTION_COUNT: Final = 3


@dataclass(frozen=True)
class ShapeRule:
    """The legal slice shapes of a TPU generation.

    Attributes:
        kind: cubes of 4×4×4 and some smaller shapes; planes of a list; or powers of two, none twice the other.
        most: chips of a slice of cubes; chips of a side of the others.
        source: where the rule is published.
        is_single: a chip alone is a slice.
        has_twists: whether its tori can be twisted.
    """

    family: str
    dimensions: int
    kind: Literal["cubes", "planes", "powers"]
    most: int
    text: str
    source: str
    is_single: bool = False
    has_twists: bool = False

    def allows(self, shape: Shape) -> bool:
        """Returns whether a shape with the right number of dimensions is legal."""
        if self.kind == "planes":
            return shape in _PLANES
        if self.kind == "powers":
            x, y = shape
            return 2 <= x <= y <= min(2 * x, self.most) and all(size & (size - 1) == 0 for size in shape)
        if shape in _SMALL_CUBES or (self.is_single and shape == (1, 1, 1)):
            return True
        is_cubes = all(size % 4 == 0 for size in shape) and shape == tuple(sorted(shape))
        return is_cubes and math.prod(shape) <= self.most


def _parse_shape(text: str) -> Shape:
    return tuple(map(int, text.split("x")))


@dataclass(frozen=True)
class Slice:
    """One slice; a row of `slices.csv`. `shape` is as its generation writes it; `extent` always has x, y and z.

    Attributes:
        shape: chips in each dimension.
        host_shape: chips of one host, in x, y, z.
        name: Google's name; empty: none.
    """

    chip: Annotated[Chip, BeforeValidator(find_chip)]
    shape: Annotated[Shape, BeforeValidator(_parse_shape)]
    host_shape: Annotated[Shape, BeforeValidator(_parse_shape)] = HOST_SHAPE
    name: str = ""
    aliases: Names = ()

    @property
    def extent(self) -> Shape:
        """Chips in x, y, z."""
        return (*self.shape, 1)[:3]

    @property
    def device_count(self) -> int:
        """JAX devices."""
        return math.prod(self.shape) * self.chip.jax_devices_per_chip

    @property
    def host_count(self) -> int:
        """The number of hosts; each has as many chips as `host_shape`."""
        return math.prod(self.shape) // math.prod(self.host_shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Which of x, y, z close to rings."""
        return find_wraps(self.chip.kinds[0], self.extent)

    @property
    def can_twist(self) -> bool:
        """Whether its torus can be twisted: k×k×2k and k×2k×2k."""
        return RULES[self.chip.family].has_twists and min(self.shape) >= 4 and can_twist(self.shape)


def _name_shapes(text: str) -> frozenset[Shape]:
    return frozenset(map(_parse_shape, text.split()))


_SMALL_CUBES: Final = _name_shapes("2x2x1 2x2x2 2x2x4 2x4x4")
_PLANES: Final = _name_shapes("1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16")
"""Source: docs.cloud.google.com/tpu/docs/v5e and …/v6e, "Configurations"."""


RULES: Final = {rule.family: rule for rule in read_table("meshwright.topology", "slice_rules.csv", ShapeRule)}
"""By hardware family. A pod has 64 cubes of v4, 140 of v5p, 144 of 7x."""


@functools.cache
def read_slices() -> tuple[Slice, ...]:
    """Returns the slices that have a name, by generation and size."""
    return read_table("meshwright.topology", "slices.csv", Slice)


def is_legal(chip: Chip, shape: Shape) -> bool:
    """Returns whether a generation has slices of this shape."""
    rule = RULES[chip.family]
    return len(shape) == rule.dimensions and rule.allows(shape)


@functools.cache
def _by_name() -> Mapping[str, Slice]:
    return {name: each for each in read_slices() for name in (each.name, *each.aliases)}


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
        PlanInfeasibleError: the generation has no such slice. The error quotes `asked` and names the nearest valid
            shape.
    """
    rule = RULES[chip.family]
    if rule.dimensions == 2 and len(shape) == 3 and shape[2] == 1:
        shape = shape[:2]
    if not is_legal(chip, shape):
        near = [f"{chip.aliases[0]}:{write_shape(each)}" for each in suggest_shapes(chip, shape)]
        detail = f"target {asked}: {chip.name} has no slice of {write_shape(shape)} chips; its slices are {rule.text}"
        raise refuse(detail, f"use {', '.join(near)}")
    named = (each for each in read_slices() if (each.chip.family, each.shape) == (chip.family, shape))
    return next(named, Slice(chip, shape))


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
    """Returns how far two shapes are apart; the shape itself breaks ties."""
    chips = abs(math.log(math.prod(one) / math.prod(other)))
    return round(chips, 6), math.dist(sorted((*one, 1, 1)[:3]), sorted((*other, 1, 1)[:3])), one


def check_twist(slice_: Slice, *, asked: str) -> None:
    """Raises PlanInfeasibleError unless the torus of the slice can be twisted."""
    if not slice_.can_twist:
        detail = f"target {asked}: a slice of {write_shape(slice_.shape)} {slice_.chip.name} chips cannot be twisted"
        rule = "twisted tori are k×k×2k and k×2k×2k of v4, v5p and 7x, k a multiple of 4"
        raise refuse(f"{detail}; {rule}", "leave out _twisted, or use a shape such as 4x4x8 or 4x8x8")


def refuse(detail: str, hint: str) -> PlanInfeasibleError:
    """Returns the refusal of a target that no hardware is."""
    return PlanInfeasibleError.of("target", detail, hint)
