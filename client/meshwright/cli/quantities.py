"""Quantities with their units, as people write them: memory, rates, times, moments, counts of chips.

Rule: a unit is said, and only as it is written in the field: GiB is 2^30 bytes and GB is 1e9, B is a byte and b a bit.
A text that could mean two things is a usage error that names the option and values that work.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import typer

if TYPE_CHECKING:
    from meshwright.wire.devices import Device

BYTE_UNITS: Final = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
TIME_UNITS_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
CPU: Final = "cpu"

_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*(?:/s)?)", re.ASCII)
_COUNT: Final = re.compile(r"([0-9]{1,6})(?:\*([A-Za-z0-9._-]{1,64}))?")


def parse_memory(text: str, option: str) -> int:
    """Returns the bytes of "79GiB" or "80GB".

    Raises:
        typer.BadParameter: a number without a unit, or with one that is none.
    """
    found = _read(text, BYTE_UNITS)
    if found is None or not found:
        raise typer.BadParameter(
            f"{text!r} is no size with its unit; write 79GiB (2^30 bytes each) or 80GB (1e9 bytes each)",
            param_hint=option,
        )
    return int(found)


def parse_rate(text: str, option: str) -> float:
    """Returns the bytes/s of "300GB/s".

    Raises:
        typer.BadParameter: a number without a unit, or with one that is none.
    """
    found = _read(text, {f"{unit}/s": size for unit, size in BYTE_UNITS.items()})
    if found is None or not found:
        raise typer.BadParameter(
            f"{text!r} is no rate above 0 with its unit; write 300GB/s (1e9 bytes a second each; Gb would be bits)",
            param_hint=option,
        )
    return float(found)


def parse_duration(text: str, option: str) -> float:
    """Returns the seconds of "90s", "30min", "24h" or "7d".

    Raises:
        typer.BadParameter: a number without a unit, or with one that is none, or 0.
    """
    found = _read(text, TIME_UNITS_S)
    if found is None or not found:
        raise typer.BadParameter(
            f"{text!r} is no time above 0 with its unit; write 90s, 30min, 24h or 7d", param_hint=option
        )
    return float(found)


def parse_moment(text: str, option: str, *, now: datetime) -> datetime:
    """Returns the moment of "1h" (ago) or of "2026-11-22T10:00:00Z"; without a zone it is UTC.

    Raises:
        typer.BadParameter: it is neither.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - timedelta(seconds=parse_duration(text, option))
        except (typer.BadParameter, OverflowError):
            raise typer.BadParameter(
                f"{text!r} is no time; write 1h, 30min, 7d (ago) or 2026-11-22T10:00:00Z", param_hint=option
            ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _read(text: str, units: dict[str, int]) -> Fraction | None:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        return None
    return Fraction(match[1]) * units[match[2]]


@dataclass(frozen=True)
class ChipCount:
    """So many devices, of one chip where it is named."""

    count: int
    chip: str | None = None

    def __str__(self) -> str:
        return f"{self.count}*{self.chip}" if self.chip else str(self.count)

    def counts(self, device: Device) -> bool:
        """Returns whether a device is meant: "NVIDIA H100 80GB HBM3" is an h100, a MIG instance of it is none."""
        from meshwright.topology.chips import find_chip, find_chip_by_kind  # here, so that others do not read the table

        if self.chip is None:
            return True
        if self.chip.lower() == CPU:
            return device.platform == CPU
        if device.mig is not None:
            return False
        found = find_chip_by_kind(device.kind)
        return self.chip.lower() in device.kind.lower().split() or (found is not None and found == find_chip(self.chip))


def parse_chip_count(text: str, option: str) -> ChipCount:
    """Returns what "8*h100" or "8" says.

    Raises:
        typer.BadParameter: it is no count, or names a chip that no table knows.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise typer.BadParameter(
            f"{text!r} is no number of devices; write 8*h100, or 8 for devices of any kind", param_hint=option
        )
    if match[2] is not None:
        _check_chip(match[2], option)
    return ChipCount(int(match[1]), match[2])


def _check_chip(name: str, option: str) -> None:
    from meshwright.topology.chips import find_chip, read_chips

    if name.lower() == CPU or find_chip(name) is not None:
        return
    known = [CPU, *(alias for chip in read_chips() for alias in chip.aliases)]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or ["h100", "v5p"]
    raise typer.BadParameter(
        f"no table knows a chip {name!r}; near: {', '.join(near)}; `meshwright targets` lists them", param_hint=option
    )
