"""The collectives in XLA's compiled text: which stand there, how often, and the bytes of their results.

Rule: pure text. An asynchronous pair counts once, by its start; of a start that carries its operands along only the
result counts. Source: openxla.org/xla/operation_semantics and the text of `jax.stages.Compiled.as_text()`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from meshwright.wire.bench import Collective

OPS: Final = (
    "all-reduce-scatter",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "ragged-all-to-all",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_INSTRUCTION: Final = re.compile(
    rf"^\s*(?:ROOT\s+)?%?[\w.\-]+ = (?P<type>\S.*?) (?P<op>{'|'.join(OPS)})(?P<start>-start)?\(", re.MULTILINE
)
_ARRAY: Final = re.compile(r"\b(?P<dtype>[a-z]+\d*[a-z0-9]*)\[(?P<dims>[\d,<= ]*)\]")

_BITS: Final = {"pred": 8, "bf16": 16, "token": 0}
_WIDTH: Final = re.compile(r"[a-z]+(\d+)")


def parse_collectives(text: str) -> dict[str, Collective]:
    """Returns op → how many stand in the compiled module and the bytes of their results on one device."""
    found: dict[str, Collective] = {}
    for match in _INSTRUCTION.finditer(text):
        op, seen = match["op"], found.get(match["op"])
        size = count_bytes(_result_type(match["type"], op, is_start=match["start"] is not None))
        found[op] = Collective(op=op, count=(seen.count if seen else 0) + 1, bytes=(seen.bytes if seen else 0) + size)
    return found


def _result_type(text: str, op: str, *, is_start: bool) -> str:
    """Returns the type of the result: second part of a start's tuple (operands, result, …), except of all-reduce."""
    if not is_start or op == "all-reduce" or not text.startswith("("):
        return text
    parts = list(_split_tuple(text))
    return parts[1] if len(parts) > 1 else text


def _split_tuple(text: str) -> Iterator[str]:
    """Yields the top-level parts of "(a, (b, c), …)"."""
    depth, begin = 0, 1
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or (character == ")" and depth == 0):
            yield text[begin:place].strip()
            begin = place + 1


def count_bytes(type_text: str) -> int:
    """Returns the bytes of an HLO type: an array such as `f32[8,128]{1,0}`, or a tuple of such."""
    return sum(_array_bytes(match) for match in _ARRAY.finditer(type_text))


def _array_bytes(match: re.Match[str]) -> int:
    dims = [int(size.lstrip("<= ")) for size in match["dims"].split(",") if size.strip()]
    return math.ceil(math.prod(dims) * _bits(match["dtype"]) / 8)


def _bits(dtype: str) -> int:
    """Returns the bits of an element; the first number in its name, so f8e4m3fn has 8."""
    width = _WIDTH.match(dtype)
    return _BITS.get(dtype, int(width[1]) if width else 0)
