"""What an operator says that a host has: "8", or "8*h100".

Rule: a chip is one that the table of chips knows, by any of its names. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_EXPECTED: Final = re.compile(r"(\d{1,5})(?:\s*\*\s*(\S+))?", re.ASCII)


@dataclass(frozen=True)
class Expectation:
    """So many devices, of one chip where it is named, as it was written: "h100"."""

    count: int
    chip: str | None = None

    def __str__(self) -> str:
        return f"{self.count}*{self.chip}" if self.chip else str(self.count)

    def is_met_by(self, kind: str) -> bool:
        """Returns whether a device of this kind is one of those that are expected: "NVIDIA H100 NVL" is an h100."""
        from meshwright.topology.chips import find_chip, find_chip_by_kind  # here: the table is read by few agents

        if self.chip is None:
            return True
        whole = kind.partition(" MIG ")[0]
        chip = find_chip_by_kind(whole)
        return self.chip.lower() in whole.lower().split() or (chip is not None and chip == find_chip(self.chip))


def parse_expectation(text: str) -> Expectation | None:
    """Returns what a text expects; None for an empty one.

    Raises:
        ValueError: it is no count, or names a chip that no table knows.
    """
    text = text.strip()
    if not text:
        return None
    found = _EXPECTED.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no number of devices; say 8, or 8*h100")
    from meshwright.topology.chips import find_chip

    if found[2] and find_chip(found[2]) is None:
        raise ValueError(f"{found[2]!r} is no chip that the table knows; `meshwright targets` lists them; say 8*h100")
    return Expectation(int(found[1]), found[2])
