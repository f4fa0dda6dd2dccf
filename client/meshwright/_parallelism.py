"""Checks the values of a parallelism block, and assigns coordinates of a batch to processes. Uses no devices.

Rule: pure. It takes mappings and numbers, and returns checked numbers or raises an error. Independent of jax; the
public names and their meanings are in `meshwright.parallelism`.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np

BLOCK: Final = "trainer.parallelism"
EXAMPLE: Final = '{"data": "fsdp2", "tensor": 2, "domain": 1}'

_WHOLE: Final = f'{{"trainer": {{"parallelism": {EXAMPLE}}}}}'
_DEFAULTS: Final[Mapping[str, Any]] = {"data": "none", "tensor": 1, "domain": 1}
_DATA: Final = ("fsdp2", "ddp", "none")
_NAMED: Final = 8
"""How many keys, processes or runs of numbers a message names at most."""


# ---- the block ----


def find_block(conf: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns `conf["trainer"]["parallelism"]`, unchecked.

    Raises:
        ValueError: the block is missing or None, or is not a mapping.
        TypeError: `conf` is not a mapping.
    """
    if conf is not None and not isinstance(conf, Mapping):
        raise TypeError(f"conf is a {type(conf).__name__}; {BLOCK} is read from a mapping, such as {_WHOLE}")
    return _find(_find(conf, "trainer", "the config"), "parallelism", "its trainer")


def parse_block(block: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the block with each value checked and each missing key filled in.

    Raises:
        ValueError: an unknown key, or a value that cannot be used.
        TypeError: the block is not a mapping.
    """
    if not isinstance(block, Mapping):
        raise TypeError(f"the block {BLOCK} is a {type(block).__name__}; it is a mapping, such as {EXAMPLE}")
    strangers = [key for key in block if key not in _DEFAULTS]
    if strangers:
        raise _refuse_keys(strangers)
    given = {**_DEFAULTS, **block}
    return {
        "data": _parse_data(given["data"]),
        "tensor": _parse_degree("tensor", given["tensor"]),
        "domain": _parse_degree("domain", given["domain"]),
    }


def parse_integer(name: str, value: Any, least: int) -> int:
    """Returns an argument that is an integer ≥ `least`; text is not accepted here, unlike in a config.

    Raises:
        TypeError: the value is not an integer.
        ValueError: the value is below `least`.
    """
    number = None if isinstance(value, str) else _read_integer(value)
    if number is None:
        raise TypeError(
            f"{name} is {show(value)}, a {type(value).__name__}; it is an integer ≥ {least}, such as {least}"
        )
    if number < least:
        raise ValueError(f"{name} is {number}; it is an integer ≥ {least}, such as {least}")
    return number


def show(value: object) -> str:
    """Returns the repr of a value, cut to the length of a message."""
    return repr(value)[:80]


def _find(outer: Mapping[str, Any] | None, key: str, place: str) -> Mapping[str, Any]:
    inner = outer[key] if outer is not None and key in outer else None
    if inner is None:
        keys = ", ".join(map(show, list(outer or ())[:_NAMED])) or "nothing"
        raise ValueError(f"{BLOCK} is missing: {place} holds {keys}; the block must be there, such as {_WHOLE}")
    if not isinstance(inner, Mapping):
        raise ValueError(f"{BLOCK} cannot be read: {key} is {show(inner)}; it must be a mapping, as in {_WHOLE}")
    return inner


def _refuse_keys(keys: Sequence[object]) -> ValueError:
    if "trainer" in keys:
        return ValueError(
            f"this is the whole config (it has the key 'trainer'), and the block {BLOCK} was asked for; "
            f"give what parse_parallelism_conf(conf) returns, such as {EXAMPLE}"
        )
    named = ", ".join(f"{show(key)}{_suggest(key, _DEFAULTS)}" for key in keys[:_NAMED])
    return ValueError(f"{BLOCK} has the unknown key {named}; its keys are {', '.join(_DEFAULTS)}, as in {EXAMPLE}")


def _suggest(value: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(value)[:80].lower(), known, n=3)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def _parse_data(value: object) -> str:
    if isinstance(value, str) and value in _DATA:
        return value
    raise ValueError(
        f"{BLOCK}.data is {show(value)}{_suggest(value, _DATA)}; it is one of {', '.join(_DATA)}, "
        f'or left out, which means none; write data: "fsdp2"'
    )


def _parse_degree(key: str, value: object) -> int:
    degree = _read_integer(value)
    if degree is not None and degree >= 1:
        return degree
    raise ValueError(
        f"{BLOCK}.{key} is {show(value)}; it is an integer ≥ 1, or left out, which means 1 "
        f"(what tensor and domain leave of the ranks is data parallel); write {key}: 2"
    )


def _read_integer(value: Any) -> int | None:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


# ---- coordinates of a batch ----


def cover_processes(mesh: Any, axes: Sequence[str]) -> dict[int, set[int]]:
    """Returns by process the coordinates of its devices along a mesh's axes, flattened, the first axis outermost."""
    columns = [mesh.axis_names.index(name) for name in axes]
    coverage: dict[int, set[int]] = {}
    for place, device in np.ndenumerate(mesh.devices):
        coordinate = 0
        for column in columns:
            coordinate = coordinate * mesh.devices.shape[column] + place[column]
        coverage.setdefault(device.process_index, set()).add(coordinate)
    return coverage


def shard_processes(coverage: Mapping[int, Collection[int]], count: int) -> dict[int, tuple[int, int]]:
    """Returns each process's (shard_index, shard_count); shards are in the order of their first coordinates.

    JAX makes the same groups (`get_process_index_and_count`, private) and the same demands, but numbers the groups in
    the order of a hash table, so that its index does not identify the rows.

    Args:
        coverage: by process, the data coordinates that its devices cover.
        count: how many coordinates there are: 0 … count - 1.

    Raises:
        ValueError: the different coverages do not divide the coordinates into equal parts.
    """
    covered = {process: tuple(sorted(set(coordinates))) for process, coordinates in coverage.items()}
    shards = sorted(set(covered.values()))
    if len({len(shard) for shard in shards}) != 1 or sorted(chain(*shards)) != list(range(count)):
        raise _refuse_uneven(covered, count)
    indices = {shard: index for index, shard in enumerate(shards)}
    return {process: (indices[shard], len(shards)) for process, shard in covered.items()}


def name_processes(processes: Collection[int]) -> str:
    """Returns them as a message writes them: "process 3", "processes 0-3, 8"."""
    return f"process{'es' if len(processes) > 1 else ''} {_name_runs(sorted(processes))}"


def _refuse_uneven(covered: Mapping[int, Sequence[int]], count: int) -> ValueError:
    said = "; ".join(f"process {process} covers {_name_runs(covered[process])}" for process in sorted(covered)[:_NAMED])
    more = f"; and {len(covered) - _NAMED} more" if len(covered) > _NAMED else ""
    return ValueError(
        f"one batch shard a process was asked for; the layout of the {count} data coordinates is uneven: {said}{more}; "
        f"all processes must cover equally many, and any two the same ones or none in common; use as many devices of "
        f"each process, and keep those of a process together, as create_mesh does over equal processes"
    )


def _name_runs(numbers: Sequence[int]) -> str:
    there = set(numbers)
    starts = [at for at in numbers if at - 1 not in there]
    ends = [at for at in numbers if at + 1 not in there]
    runs = [str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True)]
    return ", ".join(runs[:_NAMED] + ["…"] * (len(runs) > _NAMED)) or "nothing"
