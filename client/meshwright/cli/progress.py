"""Progress: how far a run is, as a bar on stderr where a person looks on, and nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.cli.output import clean
from meshwright.cli.session import Session
from meshwright.errors import AgentTimeoutError
from meshwright.wire.runs import Progress as RunProgress


@contextmanager
def show_progress(session: Session) -> Iterator[Callable[[RunProgress], None]]:
    """Gives what shows each progress of a run, for the length of the block."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    visible = session.err.is_terminal and not session.as_json
    with Progress(*columns, console=session.err, transient=True, disable=not visible) as bar:
        task = bar.add_task("queued", total=None)

        def show(progress: RunProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=clean(progress.message))

        yield show


@contextmanager
def follow_compile(session: Session) -> Iterator[Callable[[RunProgress], None]]:
    """Gives what `show_progress` does, while an agent compiles.

    Raises:
        AgentTimeoutError: the block waited too long; its hint says how to come back to the compile, which goes on.
    """
    try:
        with show_progress(session) as show:
            yield show
    except AgentTimeoutError as error:
        raise AgentTimeoutError(
            str(error.args[0]).partition("\n")[0],
            host=error.host,
            hint="a compile that was begun goes on: `meshwright runs` shows it, and the same command gets its answer; "
            "or give a longer --timeout",
        ) from error
