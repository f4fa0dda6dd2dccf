"""Arguments: parses the texts of the command line, such as times and lists, and the JSON files that options name.

Rule: an invalid text is a usage error that names the option and a value that works. Meshes are not parsed here: the
agent parses them, so that there is one grammar.
"""

from __future__ import annotations

import json
import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from meshwright.errors import SettingsError

if TYPE_CHECKING:
    from meshwright.topology.chips import ChipCount

MAX_TIMEOUT_S: Final = 86400.0
_UNITS_S: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_TIME: Final = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]+)", re.ASCII)


def parse_duration(text: str, option: str, most_s: float = math.inf) -> float:
    """Returns the seconds of "90s", "30min", "24h" or "7d".

    Raises:
        typer.BadParameter: a number has no unit or an unknown unit, is 0, or is more than `most_s`.
    """
    match = _TIME.fullmatch(text.strip())
    found = float(match[1]) * _UNITS_S.get(match[2], 0) if match else 0.0
    if not 0 < found <= most_s:
        bound = "" if most_s == math.inf else f" and up to {most_s / _UNITS_S['d']:g}d"
        message = f"{text!r} is no time above 0{bound} with its unit; write 90s, 30min, 24h or 7d"
        raise typer.BadParameter(message, param_hint=option)
    return found


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


def parse_chips(text: str, option: str) -> ChipCount:
    """Returns the value of "h100:8" or "8".

    Raises:
        typer.BadParameter: the text is not a count, or names a chip that is in no table.
    """
    from meshwright.topology.chips import parse_chip_count  # here, for its table

    try:
        return parse_chip_count(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def parse_devices(text: str, option: str) -> tuple[int | str, ...]:
    """Returns the devices of "0,1" or "GPU-…,0000:19:00.0": numbers are local indices, other words names.

    Raises:
        typer.BadParameter: an entry is empty.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise typer.BadParameter(f"{text!r} has an empty entry; write 0,1 or uuids", param_hint=option)
    return tuple(_parse_device(entry) for entry in entries)


def choose_devices(text: str | None, count: int | None, option: str) -> tuple[int | str, ...] | dict[str, int] | None:
    """Returns the devices that a text names, as `parse_devices`, or their number; None where neither is given.

    Raises:
        typer.BadParameter: an entry is empty, or devices are named and also counted.
    """
    if count is None:
        return None if text is None else parse_devices(text, option)
    if text is not None:
        raise typer.BadParameter(
            f"it chooses devices, and {option} {text} names them; leave one of the two out", param_hint="--count"
        )
    return {"count": count}


def _parse_device(entry: str) -> int | str:
    digits = entry.removeprefix("-")
    return int(entry) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else entry


def check_timeout(timeout_s: float | None) -> float | None:
    """Returns the time limit as it is.

    Raises:
        typer.BadParameter: the value is not a number of seconds above 0 and up to a day.
    """
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise typer.BadParameter(f"{timeout_s} is not above 0 and up to {MAX_TIMEOUT_S:.0f}; write 30")
    return timeout_s


STDIN: Final = "-"


def read_object(path: str | os.PathLike[str], option: str) -> dict[str, Any]:
    """Returns the JSON object that a file holds, or that stdin gives where the path is "-".

    Raises:
        SettingsError: the file cannot be read, or does not hold a JSON object.
    """
    try:
        found = json.loads(_read(path).decode("utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}; name a file that is there") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{option} {path}: no JSON: {error}; it holds one object, such as {{…}}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{option} {path}: its JSON is a {type(found).__name__}; it holds an object, such as {{…}}")
    return found


def _read(path: str | os.PathLike[str]) -> bytes:
    if path != STDIN:
        return Path(path).read_bytes()
    with open(0, "rb", closefd=False) as stdin:
        return stdin.read()
