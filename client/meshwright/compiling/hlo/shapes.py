"""What HLO writes for a shape: bf16[8,128]{1,0:T(8,128)}, or a tuple of such.

Rule: sizes are logical, elements × bytes of the dtype; what a layout pads is not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_ARRAY: Final = re.compile(r"([a-z]\w*)\[([^\]]*)\]")

_BITS: Final[Mapping[str, int]] = {"pred": 8, "token": 0, "opaque": 0}
_DIGITS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class ArrayShape:
    """One array.

    Attributes:
        dtype: as HLO names it: bf16, f32, s32, pred.
        dimensions: its sizes; of a bounded dynamic dimension (<=8) the bound.
    """

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def element_count(self) -> int:
        """Elements of the array."""
        return math.prod(self.dimensions)

    @property
    def size_bytes(self) -> float:
        """Bytes of the array; a fraction where its elements are smaller than a byte."""
        return self.element_count * count_bits(self.dtype) / 8


def parse_arrays(text: str) -> tuple[ArrayShape, ...]:
    """Returns the arrays of a shape, those of a tuple in their order however it is nested."""
    return tuple(ArrayShape(dtype, _parse_dimensions(inside)) for dtype, inside in _ARRAY.findall(text))


def count_bits(dtype: str) -> int:
    """Returns the bits of one element; 0 for a dtype that holds no data or is not known."""
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("c"):  # complex numbers: c64 and c128 name the whole
        return int(dtype[1:]) if dtype[1:].isdigit() else 0
    width = _DIGITS.search(dtype)
    return int(width.group()) if width else 0


def _parse_dimensions(inside: str) -> tuple[int, ...]:
    return tuple(int(size) for size in _DIGITS.findall(inside))
