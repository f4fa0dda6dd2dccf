"""Devices by number and chip, as operators and node checks write them: "8", or "8*h100".

Rule: a chip is one that the table of chips knows, by any of its names, or cpu. The table is read when a chip is named.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Final

_CPU: Final = "cpu"
_COUNT: Final = re.compile(r"([0-9]{1,6})(?:\*([A-Za-z0-9._-]{1,64}))?")


@dataclass(frozen=True)
class ChipCount:
    """So many devices, of one chip where it is named, as it was written."""

    count: int
    chip: str | None = None

    def __str__(self) -> str:
        return f"{self.count}*{self.chip}" if self.chip else str(self.count)

    def is_of(self, kind: str) -> bool:
        """Returns whether a device of this kind is meant: "NVIDIA H100 80GB HBM3" is an h100, "cpu" a cpu."""
        from meshwright.topology.chips import find_chip, find_chip_by_kind

        if self.chip is None:
            return True
        if self.chip.lower() == _CPU:
            return kind.lower() == _CPU
        found = find_chip_by_kind(kind)
        return self.chip.lower() in kind.lower().split() or (found is not None and found == find_chip(self.chip))


def parse_chip_count(text: str) -> ChipCount:
    """Returns what "8*h100" or "8" says.

    Raises:
        ValueError: it is no count above 0, or names a chip that no table knows.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"{text[:80]!r} is no number of devices; write 8*h100, or 8 for devices of any kind")
    if match[2] is not None:
        _check_chip(match[2])
    return ChipCount(int(match[1]), match[2])


def _check_chip(name: str) -> None:
    from meshwright.topology.chips import find_chip, read_chips

    if name.lower() == _CPU or find_chip(name) is not None:
        return
    known = [_CPU, *(alias for chip in read_chips() for alias in chip.aliases)]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or ["h100", "v5p"]
    raise ValueError(
        f"no table knows a chip {name!r}; near: {', '.join(near)}; `meshwright targets` lists them; write 8*{near[0]}"
    )
