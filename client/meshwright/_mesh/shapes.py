"""Mesh shapes as trainers give them: checked, the one -1 filled in, split between hosts. Touches no device.

Rule: every refusal is a ValueError (a TypeError for what is no number or no text at all) that says what was asked,
what is there, the rule, and a shape that works.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Final, SupportsIndex

import jax
from jax.sharding import AxisType

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.granules import split_axes
from meshwright.planning.shapes import search_shapes
from meshwright.spec import MeshSpec

AxisTypesLike = AxisType | str | Sequence[AxisType | str] | None
"""One for all axes (alone, or in a sequence of one), or one an axis; "auto", "explicit", "manual" in any case."""

MeshShape = Mapping[str, int] | Sequence[tuple[str, int]]

_TYPE_WORDS: Final = {kind.name.lower(): kind for kind in AxisType}


def build_spec(sizes: Sequence[SupportsIndex], names: Sequence[str]) -> MeshSpec:
    """Returns the mesh of these sizes and names.

    Raises:
        TypeError: a size is no integer, or either argument is no sequence of its own.
        ValueError: as many names as sizes are needed; and as `MeshSpec`.
    """
    if isinstance(names, str):
        raise TypeError(f'axis_names is {names!r}, a single word; it is a sequence of words, such as ("{names}",)')
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise TypeError(f"axis_dims is {sizes!r}; it is a sequence of integers, such as (1, -1)")
    if len(sizes) != len(names):
        raise ValueError(
            f"axis_dims {tuple(sizes)} has {len(sizes)} sizes, axis_names {tuple(names)} has {len(names)}; each axis "
            f"has one of both; give {len(names)} sizes, such as {(-1, *[1] * (len(names) - 1))[: len(names)]}"
        )
    return MeshSpec(tuple(zip(names, (read_size(size, "axis_dims") for size in sizes), strict=True)))


def read_size(value: SupportsIndex, argument: str) -> int:
    """Returns an integer of Python, NumPy or JAX as `int`.

    Raises:
        TypeError: it is none; a bool is none either.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"{argument} holds {value!r}, a {type(value).__name__}; a size is an integer ≥ 1, or -1, such as 2"
        ) from None


def resolve_spec(spec: MeshSpec, device_count: int, *, there: str = "") -> MeshSpec:
    """Returns the mesh with its -1 filled in from `device_count` devices.

    Raises:
        ValueError: the other sizes do not divide the devices.
    """
    try:
        return spec.resolve(device_count)
    except PlanInfeasibleError as error:
        raise ValueError(f"{error.detail}{there}; {suggest(spec, device_count)}") from None


def check_count(spec: MeshSpec, device_count: int) -> None:
    """Refuses a mesh that does not have exactly `device_count` places.

    Raises:
        ValueError: naming both numbers and shapes that work.
    """
    if spec.device_count != device_count:
        choose = f", or devices=jax.devices()[:{spec.device_count}]" if spec.device_count < device_count else ""
        raise ValueError(
            f"mesh {spec} needs {spec.device_count} devices; there are {device_count}; a mesh takes each of them once; "
            f"{suggest(spec, device_count)}{choose}"
        )


def suggest(spec: MeshSpec, device_count: int) -> str:
    """Returns how a refusal ends: "use dp:4,tp:2 or dp:2,tp:4"."""
    near = " or ".join(str(shape) for shape in search_shapes(spec, device_count))
    return f"use {near}" if near else "there is no device to put on a mesh"


def read_axis_types(axis_types: AxisTypesLike, names: Sequence[str]) -> tuple[AxisType, ...]:
    """Returns one axis type an axis; Auto for None, on every JAX version.

    Raises:
        TypeError: neither an AxisType, a word, nor a sequence of those.
        ValueError: a word that is none, or as many as neither one nor the number of axes.
    """
    if axis_types is None:
        return (AxisType.Auto,) * len(names)
    if isinstance(axis_types, AxisType | str):
        return (_read_axis_type(axis_types),) * len(names)
    if not isinstance(axis_types, Sequence):
        raise TypeError(
            f"axis_types is {axis_types!r}, a {type(axis_types).__name__}; it is an AxisType or a word for all axes, "
            f'or one an axis, such as ("auto", "explicit")'
        )
    types = tuple(_read_axis_type(kind) for kind in axis_types)
    if len(types) not in {1, len(names)}:
        raise ValueError(
            f"axis_types has {len(types)} entries, the mesh has {len(names)} axes ({', '.join(names)}); give one for "
            f'all, such as "auto", or {len(names)}'
        )
    return types * len(names) if len(types) == 1 else types


def _read_axis_type(kind: AxisType | str) -> AxisType:
    if isinstance(kind, AxisType):
        return kind
    if not isinstance(kind, str):
        raise TypeError(
            f"axis_types holds {kind!r}, a {type(kind).__name__}; use AxisType.Auto or a word such as 'auto'"
        )
    found = _TYPE_WORDS.get(kind.strip().lower())
    if found is None:
        raise ValueError(f"axis_types holds {kind!r}; an axis type is one of {', '.join(_TYPE_WORDS)}; use 'auto'")
    return found


def parse_named_sizes(axis_dims: str, names: Sequence[str]) -> MeshSpec:
    """Returns the mesh that a text means: "dp:2,tp:4" with each of `names` once, or "2,4" by position.

    Raises:
        TypeError: `axis_dims` is no text.
        ValueError: naming the piece that is wrong.
    """
    if not isinstance(axis_dims, str):
        raise TypeError(f'axis_dims is {axis_dims!r}, a {type(axis_dims).__name__}; it is a text, such as "dp:2,tp:4"')
    example = ",".join(f"{name}:{-1 if place == 0 else 1}" for place, name in enumerate(names))
    entries = [entry.strip() for entry in axis_dims.split(",")]
    if not all(entries):
        raise ValueError(f"mesh {axis_dims!r} has an empty entry; entries stand between commas; use {example!r}")
    if len({":" in entry for entry in entries}) > 1:
        bare = next(entry for entry in entries if ":" not in entry)
        raise ValueError(f"mesh {axis_dims!r}: {bare!r} has no name and others have; name all or none; use {example!r}")
    if ":" not in axis_dims:
        return build_spec([_parse_size(entry, axis_dims, example) for entry in entries], names)
    pairs = [_parse_pair(entry, axis_dims, example) for entry in entries]
    _check_names([name for name, _ in pairs], names, axis_dims, example)
    return MeshSpec(tuple(pairs))


def _parse_pair(entry: str, text: str, example: str) -> tuple[str, int]:
    name, _, size = (part.strip() for part in entry.partition(":"))
    return name, _parse_size(size, text, example)


def _parse_size(word: str, text: str, example: str) -> int:
    digits = word.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"mesh {text!r}: {word!r} is no size; a size is an integer ≥ 1, or -1; use {example!r}")
    return int(word)


def _check_names(given: Sequence[str], names: Sequence[str], text: str, example: str) -> None:
    unknown = [name for name in given if name not in names]
    doubled = [name for name in given if given.count(name) > 1]
    missing = [name for name in names if name not in given]
    for what, wrong in (("unknown", unknown), ("repeated", doubled), ("missing", missing)):
        if wrong:
            raise ValueError(
                f"mesh {text!r}: axis {wrong[0]!r} is {what}; the axes are {', '.join(names)}, and each stands once; "
                f"use {example!r}"
            )


def calculate_host_mesh_shape(
    global_mesh_shape: Sequence[int], total_devices: int | None = None, num_processes: int | None = None
) -> tuple[int, ...]:
    """Returns the part of a global mesh that lies on one host, [axis].

    If any split of the processes over the axes works, one is found; outermost axes are split first. Worked example:
    (3, 4) on 2 hosts of 6 devices is (3, 2) on each.

    Args:
        global_mesh_shape: of the whole job; one size may be -1.
        total_devices: on one host; None means `jax.local_device_count()`.
        num_processes: hosts; None means `jax.process_count()`.

    Raises:
        TypeError: a size is no integer.
        ValueError: the mesh does not have as many places as all hosts have devices, so that no split exists.
    """
    local = jax.local_device_count() if total_devices is None else read_count(total_devices, "total_devices")
    hosts = jax.process_count() if num_processes is None else read_count(num_processes, "num_processes")
    names = [f"axis{place}" for place in range(len(global_mesh_shape))]
    sizes = resolve_spec(build_spec(global_mesh_shape, names), local * hosts).sizes
    split = split_axes(sizes, hosts)
    if math.prod(sizes) != local * hosts or split is None:
        raise ValueError(
            f"mesh {tuple(global_mesh_shape)} has {math.prod(sizes)} places; {hosts} processes with {local} devices "
            f"each have {local * hosts}; each host must get an equal box of it; use a mesh of {local * hosts} places, "
            f"such as {(hosts, local)}"
        )
    return tuple(size // parts for size, parts in zip(sizes, split, strict=True))


def read_count(value: SupportsIndex, argument: str) -> int:
    """Returns a number of things, at least 1.

    Raises:
        TypeError: it is no integer.
        ValueError: it is below 1.
    """
    count = read_size(value, argument)
    if count < 1:
        raise ValueError(f"{argument} is {count}; it counts devices or processes, so it is ≥ 1; use 1 or more")
    return count
