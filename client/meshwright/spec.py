"""MeshSpec: a mesh in text form, "dp:2,fsdp:-1,tp:4". Parse, check, fill in the one -1, print.

Uses names and sizes only: no devices, no topology, no jax. Order is preserved: the first axis is the outermost.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from meshwright.errors import InvalidMeshError, PlanInfeasibleError

AxisType = Literal["auto", "explicit", "manual"]
"""jax.sharding.AxisType, by its lower-case name."""

AXIS_TYPES: Final[tuple[AxisType, ...]] = get_args(AxisType)
MAX_AXES: Final = 16
MAX_NAME_LENGTH: Final = 64
MAX_SIZE_DIGITS: Final = 20

MeshLike = str | Mapping[str, int] | Sequence[tuple[str, int]]
"""What `MeshSpec.parse` reads: "dp:2,tp:4", {"dp": 2, "tp": 4} or [("dp", 2), ("tp", 4)]."""

MESH_EXAMPLE: Final = 'write it as "dp:2,tp:4"; one size may be -1 (the rest of the devices)'
"""The form that each request, option and parameter accepts; some also accept an object or a list of pairs."""


def _refuse(detail: str, hint: str = MESH_EXAMPLE, field: str = "mesh") -> InvalidMeshError:
    return InvalidMeshError.of(field, detail, hint)


@dataclass(frozen=True)
class MeshSpec:
    """A mesh shape: `axes` is `((name, size), …)`, outermost first; at most one size is -1.

    Raises:
        InvalidMeshError: (also a ValueError) no axis, an empty, overlong or doubled name, a size that is not an
            integer ≥ 1 or -1, or two sizes of -1.
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= MAX_AXES:
            raise _refuse(f"the mesh has {len(self.axes)} axes; it needs 1 to {MAX_AXES}")
        for name, size in self.axes:
            _check_name(name)
            _check_size(name, size)
        names = [name for name, _ in self.axes]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise _refuse(f"axis {doubled[0]!r} stands {names.count(doubled[0])} times; every name may stand once")
        free = [name for name, size in self.axes if size == -1]
        if len(free) > 1:
            raise _refuse(f"axes {', '.join(free)} are all -1; at most one axis can be the rest of the devices")

    @classmethod
    def parse(cls, mesh: MeshLike) -> MeshSpec:
        """Returns the spec that a string, a dict or a list of pairs describes.

        Raises:
            InvalidMeshError: naming the piece that is wrong.
        """
        match mesh:
            case str() if not mesh.strip():
                raise _refuse("the mesh is empty; it needs at least one axis")
            case str():
                return cls(tuple(_parse_entry(entry) for entry in mesh.split(",")))
            case Mapping():
                return cls(tuple((name, size) for name, size in mesh.items()))
            case Sequence():
                return cls(tuple(_parse_pair(pair) for pair in mesh))
        raise _refuse(f"the mesh is {repr(mesh)[:80]}; a mesh is a string, an object or a list of pairs")

    @property
    def names(self) -> tuple[str, ...]:
        """The axis names, outermost first."""
        return tuple(name for name, _ in self.axes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The axis sizes, outermost first."""
        return tuple(size for _, size in self.axes)

    @property
    def device_count(self) -> int:
        """The product of the sizes; of the known ones while one is still -1."""
        return math.prod(size for size in self.sizes if size != -1)

    def resolve(self, device_count: int) -> MeshSpec:
        """Returns the spec with its -1, if any, filled in from `device_count` devices.

        Raises:
            PlanInfeasibleError: the known sizes do not divide `device_count`, or are more than it.
        """
        if -1 not in self.sizes:
            return self
        known = self.device_count
        if device_count < 1 or device_count % known:
            free = self.names[self.sizes.index(-1)]
            near = [size for size in range(min(known, max(device_count, 1)), 0, -1) if device_count % size == 0]
            detail = f"mesh {self}: the sizes beside {free} make {known}, which does not divide {device_count} devices"
            rule = "the rest of the devices fills an axis only if the others divide them"
            hint = f"make the other sizes multiply to {near[0]}" if near else "there is no device to fill it with"
            raise PlanInfeasibleError.of("mesh", f"{detail}; {rule}", hint)
        return MeshSpec(tuple((name, device_count // known if size == -1 else size) for name, size in self.axes))

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self.axes)

    def __str__(self) -> str:
        return ",".join(f"{name}:{size}" for name, size in self.axes)


def parse_axis_types(
    axis_types: str | Sequence[str] | Mapping[str, str] | None, names: Sequence[str]
) -> tuple[AxisType, ...]:
    """Returns one axis type per axis: a word for all, a list by position, a dict by name; None means auto.

    Raises:
        InvalidMeshError: an unknown word, a wrong length, or an axis that is not in the mesh.
    """
    match axis_types:
        case None:
            words: list[str] = ["auto"] * len(names)
        case str():
            words = [axis_types] * len(names)
        case Mapping():
            unknown = sorted(set(axis_types) - set(names))
            if unknown:
                detail = f"axis_types names {unknown[0]!r}; the mesh has {', '.join(names)}"
                raise _refuse(detail, "name axes of the mesh", "axis_types")
            words = [axis_types.get(name, "auto") for name in names]
        case _:
            words = list(axis_types) * (len(names) if len(axis_types) == 1 else 1)
            if len(words) != len(names):
                detail = f"axis_types has {len(words)} entries for {len(names)} axes"
                raise _refuse(detail, "give one word, or one an axis", "axis_types")
    return tuple(_parse_axis_type(word) for word in words)


def _parse_axis_type(word: str) -> AxisType:
    if word.lower() not in AXIS_TYPES:
        near = difflib.get_close_matches(word.lower(), AXIS_TYPES, n=1) or ["auto"]
        detail = f"axis type {word!r} is none of {', '.join(AXIS_TYPES)}"
        raise _refuse(detail, f'did you mean "{near[0]}"?', "axis_types")
    return cast(AxisType, word.lower())


def _parse_entry(entry: str) -> tuple[str, int]:
    name, colon, size = (part.strip() for part in entry.partition(":"))
    if not entry.strip():
        raise _refuse("the mesh has an empty entry (two commas, or one at an end)")
    if not colon:
        raise _refuse(f"entry {entry.strip()!r} has no size; an axis is name:size")
    digits = size.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise _refuse(f"axis {name!r} has size {size!r}; a size is an integer ≥ 1, or -1")
    sign, digits = size[: len(size) - len(digits)], digits.lstrip("0") or "0"
    return name, int(sign + digits[: MAX_SIZE_DIGITS + 1])  # of one that is too long, a part that is too long


def _parse_pair(pair: object) -> tuple[str, int]:
    if isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2:
        name, size = pair
        return name, size
    raise _refuse(f"entry {repr(pair)[:80]} is not a pair (name, size)")


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise _refuse(f"an axis is called {name!r}; a name is a word that is not empty")
    if len(name) > MAX_NAME_LENGTH or any(c in ":," or c.isspace() or not c.isprintable() for c in name):
        raise _refuse(
            f"an axis is called {name[:80]!r}; a name has up to {MAX_NAME_LENGTH} characters, no space, ':' or ','"
        )


def _check_size(name: str, size: object) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise _refuse(f"axis {name!r} has size {repr(size)[:80]}; a size is an integer ≥ 1, or -1")
    if abs(size) >= 10**MAX_SIZE_DIGITS:
        raise _refuse(f"axis {name!r} has a size of over {MAX_SIZE_DIGITS} digits; a size has fewer, or is -1")
    if size < 1 and size != -1:
        raise _refuse(f"axis {name!r} has size {size}; a size is ≥ 1, or -1 for the rest of the devices")
