"""Output: base units in readable form, tables, and messages to stderr. Only this module uses GiB, GB/s and ms.

Memory is in GiB (2^30), bandwidth in GB/s (1e9), as in the field's own tools. Every text from an agent goes through
`clean` before it reaches a terminal. Independent of commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from meshwright.cli.session import Session
from meshwright.errors import MeshwrightError, ProblemError
from meshwright.wire.base import Notice
from meshwright.wire.problem import build_problem

T = TypeVar("T")

STATE_STYLES: Final = {
    "healthy": "green",
    "degraded": "yellow",
    "unhealthy": "bold red",
    "unknown": "magenta",
    "initializing": "cyan",
    "ready": "green",
    "busy": "green",
    "backoff": "yellow",
    "failed": "bold red",
    "succeeded": "green",
    "running": "cyan",
    "cancelled": "yellow",
}
LOG_LINES: Final = 20
NO_ANSWER_CODE: Final = "no_answer"
"""The code of the problem document when no agent answered."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL: Final = ("", "k", "M", "G", "T", "P", "E")
_TIMES: Final = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def clean(text: object) -> str:
    """Returns text that cannot steer a terminal: control characters (a process's name may hold them) as �."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text).replace("\r\n", "\n"))


def format_indices(indices: Sequence[int]) -> str:
    """Returns device numbers in their order: (0, 1, 2, 3) → "0-3", (0, 2) → "0,2"."""
    spans: list[list[int]] = []
    for index in indices:
        if spans and index == spans[-1][-1] + 1:
            spans[-1].append(index)
        else:
            spans.append([index])
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 2 else ",".join(map(str, span)) for span in spans)


def format_bytes(size_bytes: float | None) -> str:
    """Returns a size in binary units: 85899345920 → "80 GiB"; "" where it is not known."""
    return "" if size_bytes is None else _scale(size_bytes, 1024, _BINARY)


def format_rate(per_s: float | None, unit: Literal["B/s", "FLOP/s"]) -> str:
    """Returns a rate in decimal units: 1.25e10 B/s → "12.5 GB/s"; "" where it is not known."""
    return "" if per_s is None else f"{_scale(per_s, 1000, _DECIMAL)}{unit}"


def _scale(value: float, base: int, units: Sequence[str]) -> str:
    power = next((each for each in range(len(units) - 1) if abs(value) < base ** (each + 1)), len(units) - 1)
    return f"{_shorten(value / base**power)} {units[power]}"


def format_time(time_s: float | None) -> str:
    """Returns a duration in the unit that suits it: 0.00125 → "1.25 ms"; "" where it is not known."""
    if time_s is None:
        return ""
    size, unit = next((entry for entry in _TIMES if abs(time_s) >= entry[0]), (1.0, "s"))
    return f"{_shorten(time_s / size)} {unit}"


def _shorten(value: float) -> str:
    """Three digits, and no trailing zeros."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def style_state(state: str) -> Text:
    """Returns a state in its color."""
    return Text(clean(state), STATE_STYLES.get(state, ""))


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table: its heading, and its text of a row ("" for nothing)."""

    heading: str
    read: Callable[[T], str | Text]
    justify: Literal["left", "right"] = "left"


def build_table(columns: Sequence[Column[T]], rows: Iterable[T]) -> Table:
    """Returns a table of the rows, without columns that are empty in all rows; nothing is cut off."""
    lines = [[_build_cell(column.read(row)) for column in columns] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    shown = [index for index in range(len(columns)) if any(line[index] for line in lines)]
    for index in shown:
        table.add_column(columns[index].heading, justify=columns[index].justify, overflow="fold")
    for line in lines:
        table.add_row(*(line[index] for index in shown))
    return table


def print_table(session: Session, columns: Sequence[Column[T]], rows: Sequence[T]) -> None:
    """Prints a table below an empty line; nothing where there are no rows."""
    if rows:
        session.out.print()
        session.out.print(build_table(columns, rows))


def _build_cell(content: str | Text) -> Text:
    return content if isinstance(content, Text) else Text(clean(content))


def print_notices(session: Session, notices: Iterable[Notice]) -> None:
    """Prints warnings on stderr."""
    for notice in notices:
        print_warning(session, notice.message, notice.hint)


def print_warning(session: Session, message: str, hint: str = "") -> None:
    """Says one warning on stderr."""
    _print_marked(session, "warning", "yellow", message)
    _print_part(session, "hint", hint)


def print_error(session: Session, error: MeshwrightError) -> None:
    """Prints on stderr the request, what was found, the rule, and what works; as JSON: a problem document."""
    if session.as_json:
        typer.echo(_dump_error(error), err=True)
        return
    _print_marked(session, "error", "bold red", error.detail)
    if not isinstance(error, ProblemError):
        _print_part(session, "hint", error.hint)
        return
    for number, entry in enumerate(error.errors):
        field, message = str(entry.get("field", "?")), str(entry.get("message", ""))
        if message not in error.detail or (number and field not in error.detail):
            _print_part(session, field, message)
    print_log(session, error.log)
    _print_part(session, "hint", error.hint)
    _print_part(session, "code", " · ".join(part for part in (error.code, error.host, error.request_id) if part))


def print_log(session: Session, log: Sequence[str]) -> None:
    """Prints the last lines of a log on stderr."""
    for line in log[-LOG_LINES:]:
        _print_part(session, "log", line)


def _dump_error(error: MeshwrightError) -> str:
    if isinstance(error, ProblemError):
        return build_problem(error).model_dump_json()
    problem = {"title": type(error).__name__, "detail": error.detail, "code": NO_ANSWER_CODE, "hint": error.hint}
    return json.dumps(problem, ensure_ascii=False)


def _print_marked(session: Session, word: str, style: str, message: str) -> None:
    session.err.print(Text(f"{word}: ", style) + Text(clean(use_options(message))), soft_wrap=True)


_IN_COMMANDS: Final[tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]] = (
    (r"DELETE /leases/([\w.-]+)", r"`meshwright lease end \1`"),
    (r"DELETE /runs/([\w.-]+)", r"`meshwright runs cancel \1`"),
    (r"PUT /leases/\{id\}", "`meshwright lease create`"),
    (r'PUT /leases/([\w.-]+)(?: with \{"devices": "all"\})?', r"`meshwright lease create --id \1 --purpose TEXT`"),
    (r"GET /leases\b(?!/)", "`meshwright lease list`"),
    (r"GET /runs\b(?!/)", "`meshwright runs list`"),
    (r"GET /(devices|health)\b(?![/:])", r"`meshwright \1`"),
    (r'with preemptible: false|and "preemptible": false', "without --preemptible"),
    (r"give `Client` a longer `timeout`, or the call, if it has one, a longer `timeout_s`", "give a longer --timeout"),
    (r"a longer timeout_s", "a longer --timeout"),
    (r"\bcases\.\d+", "--case"),
    (r"name devices by number, such as \[0, 1\]", "name devices by number: --devices 0,1"),
    (r"name devices, or set allow_unused", "choose devices with --devices or --count"),
    (r"POST /mesh/plan a mesh, which needs no prices", "plan a mesh without --model"),
    (r'"compile": true', "--compile"),
    (r'"target": "([^"]+)"', r"--target \1"),
    (r'"training": \{"seq_len": (\d+)\}', r"--seq-len \1"),
    (r"give the job's own `lease`, or choose with devices\.count", "set MESHWRIGHT_LEASE to the job's, or use --count"),
    (r'"cases": \["(\w+)"[^]]*\]', r"--case \1"),
    (r'"devices": "all"', "all"),
    (r'(?:devices )?\{"count": (\d+)\}', r"--count \1"),
    (r'"model": "([^"]+)"', r"--model \1"),
    (r'"training": \{"global_batch_size": (\d+)\}', r"--global-batch-size \1"),
    (r"POST /mesh/(plan|search)\b", r"`meshwright \1`"),
    (r'POST it with "include_devices": false; or use --offline of the command line', "use --offline"),
    (r"give the `lease` that the job has", "set MESHWRIGHT_LEASE to the job's"),
    (r"name a device in `devices`", "name a device in --devices"),
    (r'name a target, such as "([^"]+)"', r"name a target: --target \1"),
    (r"leave out (model|plan|hardware|target)\b", r"leave out --\1"),
    (r'"devices": \[([^]]*)\]', lambda found: f"devices {found[1].replace(' ', '')}"),
)
"""What an agent's hint says in HTTP, in commands."""

_AS_OPTIONS: Final = (
    (r"\b(?:a )?(?:training\.)?global_batch_size(?: of)?\b", "--global-batch-size"),
    (r"\b(?:training\.)?seq_len\b", "--seq-len"),
    (r"\bper_device_batch_size\b", "--per-device-batch-size"),
)
"""Fields of requests that are options too."""


def use_options(text: str) -> str:
    """Returns an error or a hint with options in place of fields."""
    for pattern, option in _AS_OPTIONS:
        text = re.sub(pattern, option, text)
    return text


def use_commands(hint: str) -> str:
    """Returns an agent's hint with commands and options in place of requests."""
    for pattern, command in _IN_COMMANDS:
        hint = re.sub(pattern, command, hint)
    return use_options(hint)


def _print_part(session: Session, name: str, message: str) -> None:
    message = use_commands(message) if name == "hint" else message
    if message:
        session.err.print(Text(f"  {clean(name)}: ", "bold") + Text(clean(message)), soft_wrap=True)
