"""Quantities with their units, as people write them: memory, rates, times, moments, counts of chips.

Rule: a unit is said, and only as it is written in the field: GiB is 2^30 bytes and GB is 1e9, B is a byte and b a bit.
A text that could mean two things is a usage error that names the option and values that work.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final

import typer

from meshwright.topology.counted import ChipCount, parse_chip_count

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

_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([A-Za-z]*(?:/s)?)", re.ASCII)


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


def parse_devices(text: str, option: str) -> ChipCount:
    """Returns what "8*h100" or "8" says.

    Raises:
        typer.BadParameter: it is no count, or names a chip that no table knows.
    """
    try:
        return parse_chip_count(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
