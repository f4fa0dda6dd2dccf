"""Shows the progress of a run or a compile as a bar on stderr of a terminal; and answers that are compiled here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from meshwright.cli.output import clean
from meshwright.cli.session import Session
from meshwright.errors import AgentTimeoutError
from meshwright.wire.base import RequestPart

if TYPE_CHECKING:
    from meshwright.wire.batch_size import BatchSizeRequest
    from meshwright.wire.mesh import PlanRequest, Plans, SearchRequest
    from meshwright.wire.runs import Progress as RunProgress

A = TypeVar("A")


@contextmanager
def show_progress(session: Session) -> Iterator[Callable[[RunProgress], None]]:
    """Yields a function that shows each progress of a run, for the duration of the block."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    visible = session.err.is_terminal and not session.as_json
    with Progress(*columns, console=session.err, transient=True, disable=not visible) as bar:
        task = bar.add_task("queued", total=None)

        def show(progress: RunProgress) -> None:
            bar.update(task, completed=progress.done, total=progress.total, description=clean(progress.message))

        yield show


@contextmanager
def follow_compile(
    session: Session, request: PlanRequest | SearchRequest | BatchSizeRequest
) -> Iterator[Callable[[RunProgress], None]]:
    """Yields the function of `show_progress`, while an agent answers the request.

    Raises:
        AgentTimeoutError: the block waited too long. The hint says how to return to a compile, which continues.
    """
    try:
        with show_progress(session) as show:
            yield show
    except AgentTimeoutError as error:
        if request.compile:
            goes_on = "the compile goes on: `meshwright runs list` shows it, and the same command gets its answer"
            error.hint = f"{goes_on}; or give a longer --timeout"
        raise


def answer_here(session: Session, answer: Callable[..., A], request: RequestPart) -> A:
    """Returns the answer of an agent, from a function of this process that compiles in a child process.

    Raises:
        typer.BadParameter: --url names an agent.
    """
    _check_offline(session)
    limit_s = session.options.timeout_s
    with show_progress(session) as on_progress:
        return answer(request, on_progress=on_progress, **({} if limit_s is None else {"limit_s": limit_s}))


def answer_plans_here(session: Session, request: PlanRequest | SearchRequest) -> Plans:
    """Returns the plans that an agent would make on a target or a topology; errors as of `answer_here`."""
    if request.compile:
        from meshwright.compiling.request import answer_plans  # here, so that other plans do not wait for it

        return answer_here(session, answer_plans, request)
    from meshwright.planning.request import answer_request  # here, so that an agent's answer does not wait for it

    _check_offline(session)
    with show_progress(session):
        return answer_request(request)


def _check_offline(session: Session) -> None:
    if session.options.url is not None:
        raise typer.BadParameter("it asks no agent, and --url names one; give one of them", param_hint="--offline")
