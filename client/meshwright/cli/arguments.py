"""Arguments: the small languages of the command line, such as lists, as values.

Rule: a text that is none is a usage error that names the option and a value that works. Meshes are not read
here: the agent reads them, so that there is one grammar. Quantities with units stand in `quantities`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, get_args

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


def parse_axis_types(text: str) -> str | tuple[str, ...] | dict[str, str]:
    """Returns the axis types that a text says: for all, one an axis, or by name.

    As in "explicit", "auto,explicit" and "dp:auto,tp:explicit".

    Raises:
        typer.BadParameter: an entry is empty, or only some name their axis.
    """
    entries = [entry.strip() for entry in text.split(",")]
    named = [entry.partition(":")[::2] for entry in entries if ":" in entry]
    if not all(entries) or len(named) not in {0, len(entries)} or not all(map(all, named)):
        raise typer.BadParameter(
            f"{text!r} mixes forms; write explicit, auto,explicit or dp:auto,tp:explicit",
            param_hint="--axis-types",
        )
    if named:
        return {name.strip(): word.strip() for name, word in named}
    return entries[0] if len(entries) == 1 else tuple(entries)


def build_selection(
    devices: str | None, count: int | None, exclude: str | None
) -> tuple[int | str, ...] | Mapping[str, Any] | None:
    """Returns what `Client.plan` takes as `devices`: names, a selection, or None for all.

    Raises:
        typer.BadParameter: devices are named and also counted.
    """
    selection: dict[str, Any] = {"count": count}
    selection["exclude"] = None if exclude is None else parse_devices(exclude, "--exclude")
    selection = {name: value for name, value in selection.items() if value is not None}
    if devices is None:
        return selection or None
    if selection:
        raise typer.BadParameter(
            f"it names the devices, so --{next(iter(selection))} has nothing to choose; give one of them",
            param_hint="--devices",
        )
    return parse_devices(devices)


def take_mesh(argument: str | None, option: str | None, *, is_searched: bool) -> str | None:
    """Returns the mesh, which stands as an argument or behind --mesh; None where one is searched for.

    Args:
        argument, option: where it may stand.
        is_searched: a model is given, so that a mesh may be found.

    Raises:
        typer.BadParameter: it stands in neither place and there is no model, or in both.
    """
    given = [text for text in (argument, option) if text is not None]
    if is_searched and not given:
        return None
    if len(given) != 1:
        said = "it stands as an argument too" if given else "a plan needs a mesh, or a model to find one for"
        raise typer.BadParameter(f"{said}; write --mesh dp:2,tp:-1", param_hint="--mesh")
    return given[0]
