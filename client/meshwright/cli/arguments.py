"""Arguments: the small languages of the command line, such as lists, as values.

Rule: a text that is none is a usage error that names the option and a value that works. Meshes are not read
here: the agent reads them, so that there is one grammar. Quantities with units stand in `quantities`.
"""

from __future__ import annotations

import difflib
from typing import Final, get_args

import typer

from meshwright.wire.bench import BenchCase

MAX_TIMEOUT_S: Final = 86400.0


def parse_devices(text: str, option: str = "--devices") -> tuple[int | str, ...]:
    """Returns the devices of "0,1" or "GPU-…,0000:19:00.0": numbers are local indices, other words names.

    Raises:
        typer.BadParameter: an entry is empty.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not all(entries):
        raise typer.BadParameter(f"{text!r} has an empty entry; write 0,1 or uuids", param_hint=option)
    return tuple(_parse_device(entry) for entry in entries)


def choose_devices(text: str | None, count: int | None, option: str) -> tuple[int | str, ...] | dict[str, int] | None:
    """Returns the devices that a text names, as `parse_devices`, or how many are wanted; None where neither is said.

    Raises:
        typer.BadParameter: an entry is empty, or devices are named and also counted.
    """
    if count is None:
        return None if text is None else parse_devices(text, option)
    if text is not None:
        raise typer.BadParameter(
            f"it chooses devices, and {text!r} names them; write `--count {count}` or `{text}`", param_hint="--count"
        )
    return {"count": count}


def _parse_device(entry: str) -> int | str:
    digits = entry.removeprefix("-")
    return int(entry) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else entry


def parse_indices(text: str, option: str = "--devices") -> tuple[int, ...]:
    """Returns the local indices of "0,1".

    Raises:
        typer.BadParameter: an entry is no number.
    """
    devices = parse_devices(text, option)
    wrong = [device for device in devices if isinstance(device, str)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is no local index; write 0,1", param_hint=option)
    return tuple(device for device in devices if isinstance(device, int))


def parse_case(text: str, option: str = "--case") -> BenchCase:
    """Returns the bench case that "all_reduce" or "all-reduce" names.

    Raises:
        typer.BadParameter: there is none of that name.
    """
    word = text.strip().lower().replace("-", "_")
    cases: tuple[BenchCase, ...] = get_args(BenchCase)
    case = next((case for case in cases if case == word), None)
    if case is None:
        near = difflib.get_close_matches(word, cases, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"{text!r} is none of {', '.join(cases)}{hint}", param_hint=option)
    return case


def check_timeout(timeout_s: float | None) -> float | None:
    """Returns the time limit as it is.

    Raises:
        typer.BadParameter: it is no number of seconds above 0 and up to a day.
    """
    if timeout_s is not None and not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise typer.BadParameter(f"{timeout_s} is not above 0 and up to {MAX_TIMEOUT_S:.0f}; write 30")
    return timeout_s
