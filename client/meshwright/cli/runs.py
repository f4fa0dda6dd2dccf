"""`meshwright runs list`, `show` and `cancel`: list, show and cancel the agent's runs."""

from __future__ import annotations

from textwrap import shorten
from typing import Annotated, Final

import typer
from rich.text import Text

from meshwright.cli.bench import print_records
from meshwright.cli.output import Column, build_table, clean, format_indices, format_time, style_state
from meshwright.cli.session import FAILED, OK, Session
from meshwright.wire.base import read_known
from meshwright.wire.bench import BenchResult
from meshwright.wire.runs import FINAL_STATES, Run, RunState

WORDS_MOST: Final = 60
"""Characters of an error in the table; `meshwright runs show` has all of it."""


def list_runs(
    session: Session,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many.")] = None,
    state: Annotated[RunState | None, typer.Option(help="Only those in this state.")] = None,
) -> int:
    """List the agent's runs, newest first."""
    with session.open() as client:
        reply = client.runs(limit, state)
    session.print_reply(reply, build_table(COLUMNS, reply.runs) if reply.runs else "no runs")
    return OK


def show_run(session: Session, run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")]) -> int:
    """Show a run: its state, devices and progress, what a bench measured, and why it failed.

    Exit codes: 0 shown · 1 there is no such run · 2 usage, or no answer.
    """
    with session.open() as client:
        run = client.run(run_id)
    if session.as_json:
        session.print_json(run)
        return OK
    session.out.print(build_table(COLUMNS, [run]))
    if run.error is not None:
        session.out.print(_describe_end(run), soft_wrap=True)
    elif run.kind == "bench" and (result := read_known(BenchResult, run.result)) is not None:
        print_records(session, result)
    elif run.result is not None:
        session.print_lines(f"its answer: meshwright runs show {clean(run.id)} --format json; or ask again")
    return OK


def cancel_run(session: Session, run_id: Annotated[str, typer.Argument(metavar="RUN", help="Its id.")]) -> int:
    """Cancel a run. One that is over stays as it is.

    Exit codes: 0 it is over · 1 it still runs, or there is no such run · 2 usage, or no answer.
    """
    with session.open() as client:
        run = client.cancel_run(run_id)
    session.print_reply(run, _describe_end(run))
    return OK if run.state in FINAL_STATES else FAILED


def _describe_end(run: Run) -> Text:
    if run.state == "cancelled" and run.error is not None:
        return Text(clean(run.error.detail))
    why = f": {run.error.detail}" if run.error else ""
    return Text.assemble(clean(run.id), " ", style_state(run.state), clean(why))


def _describe_devices(run: Run) -> str:
    """Returns the devices of a bench; "" for other runs."""
    if run.kind != "bench":
        return ""
    devices = run.request.get("devices")
    return "all" if devices is None else format_indices(devices)


def _describe_time(run: Run) -> str:
    if run.started_at is None or run.finished_at is None:
        return ""
    return format_time((run.finished_at - run.started_at).total_seconds())


def _describe_progress(run: Run) -> str:
    if run.error is not None:
        return shorten(run.error.detail.removeprefix(f"{run.id} was cancelled: "), WORDS_MOST, placeholder=" …")
    progress = run.progress if run.state != "succeeded" or run.kind == "bench" else None  # its last, of the middle
    return "" if progress is None else f"{progress.done}/{progress.total} {progress.message}".rstrip()


COLUMNS: Final[tuple[Column[Run], ...]] = (
    Column("run", lambda run: run.id),
    Column("kind", lambda run: run.kind),
    Column("state", lambda run: style_state(run.state)),
    Column("created", lambda run: f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}"),
    Column("took", _describe_time, "right"),
    Column("devices", _describe_devices),
    Column("progress", _describe_progress),
)
