"""Session: the context of every command: the shared options, a client, and the two consoles.

Opens no connection until a command asks for the client. Independent of commands.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.table import Table

    from meshwright import Client

OK: Final = 0
FAILED: Final = 1
NO_ANSWER: Final = 2
LEASE_LOST: Final = 75
"""EX_TEMPFAIL of sysexits.h: run it again. Like 124 of `timeout`, it replaces the command's own code."""
SIGNALLED: Final = 128
"""And the signal's number, as in a shell. Source: POSIX.1-2024, Shell Command Language, §2.8.2."""

PIPE_WIDTH: Final = 200
"""Columns without a terminal: wide enough that no table is folded."""


@dataclass(frozen=True)
class Options:
    """The options of every command, before or after its name."""

    url: str | None = None
    timeout_s: float | None = None
    form: Literal["text", "json"] | None = None

    def merge(self, nearer: Options) -> Options:
        """Returns these options, overridden by those nearer to the command's end."""
        return replace(self, **{name: value for name, value in vars(nearer).items() if value is not None})


@dataclass(frozen=True)
class Session:
    """One run of one command."""

    options: Options

    def open(self, *, timeout_s: float | None = None, max_retries: int = 2) -> Client:
        """Returns a client; `timeout_s` holds where the person named no limit.

        Raises:
            SettingsError: the address or the token cannot be used.
        """
        from meshwright import Client  # here, so that --help need not wait for the HTTP library

        limit_s = timeout_s if self.options.timeout_s is None else self.options.timeout_s
        given: dict[str, Any] = {} if limit_s is None else {"timeout": limit_s}
        return Client(self.options.url, max_retries=max_retries, **given)

    @property
    def as_json(self) -> bool:
        """Whether stdout gets the agent's JSON and nothing else."""
        return self.options.form == "json"

    @cached_property
    def out(self) -> Console:
        """The answer."""
        return _build_console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """The console for messages about the answer."""
        return _build_console(stderr=True)

    def print_json(self, reply: BaseModel) -> None:
        """Prints a reply as the agent sent it: no field more, no field less."""
        self.print_lines(reply.model_dump_json(exclude_unset=True))

    def print_reply(self, reply: BaseModel, text: Table | Text | str) -> None:
        """Prints a reply as JSON, or its text, of which a line is never folded."""
        if self.as_json:
            self.print_json(reply)
        elif isinstance(text, str):
            self.print_lines(text)
        else:
            self.out.print(text, soft_wrap=isinstance(text, Text))

    def print_lines(self, *lines: str) -> None:
        """Prints lines unchanged, never folded, for pipes and for pasting."""
        with _outlive():
            typer.echo("\n".join(lines))

    def tell(self, line: str) -> bool:
        """Prints a line at once; returns whether stdout still has a reader."""
        try:
            typer.echo(line)
            sys.stdout.flush()
        except BrokenPipeError:
            drop(1)
            return False
        return True

    def flush(self) -> None:
        """Flushes stdout's buffer."""
        with _outlive():
            sys.stdout.flush()


class LateError(BaseException):
    """The command took longer than its --timeout."""


GRACE_S, AGAIN_S = 0.5, 10.0
"""From the limit until a command is ended that did not end by itself: a wait of its own says what goes on; and from
then until the next try, since Python drops what is raised in a finalizer."""


@contextlib.contextmanager
def limit_time(limit_s: float | None) -> Iterator[None]:
    """Raises LateError in the block where that takes longer; None: no limit. For the main thread."""
    if limit_s is None:
        yield
        return

    def end(*_signal: object) -> None:
        raise LateError

    handler = signal.signal(signal.SIGALRM, end)
    outer_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, outer_s)


def open_missing_streams() -> None:
    """Redirects closed stdout and stderr (`>&-`) to /dev/null, as for a reader that has gone away. What the encoding of
    an open one lacks becomes "?"."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""The errors of a write to stdout where the disk is full, or the medium fails."""


@contextlib.contextmanager
def _outlive() -> Iterator[None]:
    """Ignores in the block that the reader goes away (`| head -1`): the remaining output is lost, and the exit code
    does not change."""
    try:
        yield
    except BrokenPipeError:
        drop(1)


def drop(descriptor: int) -> None:
    """Redirects a descriptor to /dev/null, since Python still flushes its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _Console(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Continues without output; rich would end the process with a code that means "no"."""
        self.quiet = True
        drop(2 if self.stderr else 1)


def _build_console(*, stderr: bool) -> Console:
    """Text from the agent is never read as markup. rich applies NO_COLOR and COLUMNS."""
    console = _Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console
