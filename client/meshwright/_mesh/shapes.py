"""Reads the mesh shapes of trainers: checks them, fills in the one -1, splits them between hosts. Uses no device.

Rule: every refusal is a ValueError (a TypeError for a value that is not a number or text). It has the request, what was
found, the rule, and a shape that works.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, SupportsIndex

import jax
from jax.sharding import AxisType

from meshwright.errors import InvalidMeshError, PlanInfeasibleError
from meshwright.planning.granules import split_axes
from meshwright.planning.parallelism import search_shapes
from meshwright.spec import MeshSpec

AxisTypesLike = AxisType | str | Sequence[AxisType | str] | None
"""One for all axes (alone, or in a sequence of one), or one an axis; "auto", "explicit", "manual" in any case."""

MeshShape = Mapping[str, int] | Sequence[tuple[str, int]]

_TYPE_WORDS: Final = {kind.name.lower(): kind for kind in AxisType}


def build_spec(
    sizes: Sequence[SupportsIndex], names: Sequence[str], *, arguments: tuple[str, str] = ("axis_dims", "axis_names")
) -> MeshSpec:
    """Returns the mesh of these sizes and names.

    Raises:
        TypeError: a size is not an integer, or an argument is not a sequence.
        ValueError: the numbers of names and sizes differ; and as `MeshSpec`.
    """
    dims, words = read_sizes(sizes, arguments[0]), read_names(names, arguments[1])
    example = f"use {arguments[0]}={_suggest_sizes(len(words))} with {arguments[1]}={words or ('data',)}"
    if len(dims) != len(words):
        raise ValueError(
            f"{arguments[0]} {dims} has {len(dims)} sizes, {arguments[1]} {words} has {len(words)}; each axis has one "
            f"of both; {example}"
        )
    return check_spec(zip(words, dims, strict=True), example)


def check_spec(axes: Iterable[tuple[str, int]], example: str) -> MeshSpec:
    """Returns the mesh of these axes.

    Raises:
        ValueError: as `MeshSpec`, with an example of the caller's way to write one.
    """
    try:
        return MeshSpec(tuple(axes))
    except InvalidMeshError as error:
        raise ValueError(f"{error.detail}; {example}") from None


def _suggest_sizes(count: int) -> tuple[int, ...]:
    return (-1, *[1] * (count - 1))


def read_names(names: Sequence[str], argument: str) -> tuple[str, ...]:
    """Returns axis names as a tuple.

    Raises:
        TypeError: a single word, which would be read letter by letter, or nothing to iterate over.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        word = names if isinstance(names, str) else "data"
        raise TypeError(f'{argument} is {names!r}; it is a sequence of words, such as ("{word}",)')
    known = tuple(names)
    wrong = [name for name in known if not isinstance(name, str)]
    if wrong:
        raise TypeError(f'{argument} holds {wrong[0]!r}, a {type(wrong[0]).__name__}; it holds words, such as "data"')
    return known


def read_sizes(sizes: Sequence[SupportsIndex], argument: str) -> tuple[int, ...]:
    """Returns sizes as integers of Python.

    Raises:
        TypeError: one is not an integer, or they are not a sequence.
    """
    if isinstance(sizes, str | Mapping) or not isinstance(sizes, Iterable):
        raise TypeError(f"{argument} is {sizes!r}; it is a sequence of integers, such as (2, 4)")
    return tuple(read_size(size, argument) for size in sizes)


def read_size(value: SupportsIndex, argument: str) -> int:
    """Returns an integer of Python, NumPy or JAX as `int`.

    Raises:
        TypeError: the value is not an integer; a bool is not accepted.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument} holds {value!r}, a {type(value).__name__}; it takes integers, such as 2") from None


def resolve_spec(spec: MeshSpec, device_count: int) -> MeshSpec:
    """Returns the mesh with its -1 filled in from `device_count` devices.

    Raises:
        ValueError: the other sizes do not divide the devices.
    """
    try:
        return spec.resolve(device_count)
    except PlanInfeasibleError as error:
        raise ValueError(f"{error.detail}; {suggest(spec, device_count)}") from None


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
    """Returns one axis type per axis; Auto for None, on every JAX version.

    Raises:
        TypeError: neither an AxisType, a word, nor a sequence of those.
        ValueError: a word is not an axis type, or the number of types is neither one nor the number of axes.
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
    """Returns the mesh that a text describes: "dp:2,tp:4" with each of `names` once, or "2,4" by position.

    Raises:
        TypeError: `axis_dims` is not text, or `names` is not a sequence of words.
        ValueError: naming the piece that is wrong.
    """
    known = read_names(names, "names")
    if not isinstance(axis_dims, str):
        raise TypeError(f'axis_dims is {axis_dims!r}, a {type(axis_dims).__name__}; it is a text, such as "dp:2,tp:4"')
    if not known:
        raise ValueError(f"mesh {axis_dims!r}: names is empty; it names every axis; use names=('dp', 'tp')")
    example = ",".join(f"{name}:{size}" for name, size in zip(known, _suggest_sizes(len(known)), strict=True))
    entries = [entry.strip() for entry in axis_dims.split(",")]
    if not all(entries):
        raise ValueError(f"mesh {axis_dims!r} has an empty entry; entries stand between commas; use {example!r}")
    if len({":" in entry for entry in entries}) > 1:
        bare = next(entry for entry in entries if ":" not in entry)
        raise ValueError(f"mesh {axis_dims!r}: {bare!r} has no name and others have; name all or none; use {example!r}")
    pairs = [_parse_entry(entry, axis_dims, example) for entry in entries]
    if ":" in axis_dims:
        _check_names([name for name, _ in pairs], known, axis_dims, example)
        return check_spec(pairs, f"use {example!r}")
    if len(pairs) != len(known):
        raise ValueError(
            f"mesh {axis_dims!r} has {len(pairs)} sizes; the axes are {', '.join(known)}; by position each has one; "
            f"use {','.join(map(str, _suggest_sizes(len(known))))!r}"
        )
    return check_spec(zip(known, (size for _, size in pairs), strict=True), f"use {example!r}")


def _parse_entry(entry: str, text: str, example: str) -> tuple[str, int]:
    """Returns (name, size) of "dp:2", and ("", size) of "2"."""
    name, colon, rest = (part.strip() for part in entry.partition(":"))
    size = rest if colon else name
    digits = size.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ValueError(f"mesh {text!r}: {size[:80]!r} is no size; a size is an integer ≥ 1, or -1; use {example!r}")
    return name if colon else "", int(size)


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
    """Returns the part of a global mesh on one host, [axis].

    If any split of the processes over the axes works, one is found; outermost axes are split first. Worked example:
    (3, 4) on 2 hosts of 6 devices is (3, 2) on each.

    Args:
        global_mesh_shape: of the whole job; one size may be -1.
        total_devices: on one host; None means `jax.local_device_count()`.
        num_processes: hosts; None means `jax.process_count()`.

    Raises:
        TypeError: a size is not an integer.
        ValueError: the number of places differs from that of all hosts' devices, so no split exists.
    """
    local = jax.local_device_count() if total_devices is None else read_count(total_devices, "total_devices")
    hosts = jax.process_count() if num_processes is None else read_count(num_processes, "num_processes")
    if total_devices is None and num_processes is None and jax.device_count() != local * hosts:
        raise ValueError(
            f"the part of mesh {tuple(global_mesh_shape)} on one host was asked for; this process has {local} of the "
            f"job's {jax.device_count()} devices, and there are {hosts} processes; each must have as many; start the "
            f"job with equal hosts, or give total_devices and num_processes"
        )
    asked = read_sizes(global_mesh_shape, "global_mesh_shape")
    sizes = _fill_in(asked, local * hosts)
    split = split_axes(sizes, hosts)
    if not asked or min(sizes) < 1 or math.prod(sizes) != local * hosts or split is None:
        raise ValueError(
            f"global_mesh_shape {asked} does not fit; {hosts} processes with {local} devices each have "
            f"{local * hosts}; sizes are ≥ 1 (one may be -1) and multiply to that, so that each host gets an equal box "
            f"of the mesh; use "
            f"{(hosts, local)}"
        )
    return tuple(size // parts for size, parts in zip(sizes, split, strict=True))


def _fill_in(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Returns the sizes with a single -1 replaced where the others divide the count; else as they are."""
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) != 1 or known < 1 or count % known:
        return sizes
    return tuple(count // known if size == -1 else size for size in sizes)


def read_count(value: SupportsIndex, argument: str) -> int:
    """Returns a number of things, at least 1.

    Raises:
        TypeError: the value is not an integer.
        ValueError: it is below 1.
    """
    count = read_size(value, argument)
    if count < 1:
        raise ValueError(f"{argument} is {count}; it counts devices or processes, so it is ≥ 1; use 1 or more")
    return count
