"""`meshwright-agent token`: add, list, remove. The agent that uses the file sees each change within a second or two.

Rule: a token is printed once, when it is made, on stdout and alone, so that a script can keep it; no other line has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.scopes import SCOPES
from meshwright_agent.access.token_file import add_token, read_token_file, remove_token
from meshwright_agent.access.tokens import Token, TokenLineError, format_time, make_token, parse_time

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tokens of those who may ask an agent: make one, list them, take one back.",
)

T = TypeVar("T")
TokenFile = Annotated[Path, typer.Option("--file", envvar="MESHWRIGHT_TOKENS_FILE", help="The agent's token file.")]
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Who will use it; stands in the audit, such as prolog.")],
    file: TokenFile,
    scope: Annotated[str, typer.Option(help=f"{', '.join(SCOPES)}; each holds those before it.")] = "read",
    expires: Annotated[str, typer.Option(help="90d, 12h, or a time: 2027-01-31T00:00:00Z. Never, if left out.")] = "",
) -> None:
    """Make a token, print it (this once), and write its hash into the file."""
    if scope not in SCOPES:
        raise _stop(f"--scope {scope!r} is none of {', '.join(SCOPES)}; --scope operate")
    try:
        secret, token = make_token(name, scope, parse_expiry(expires, datetime.now(UTC)) if expires else None)
    except TokenLineError as error:
        raise _stop(str(error)) from None
    _do(lambda: add_token(file, token))
    typer.echo(secret)
    typer.echo(f"{token.name} may {token.scope} {_say_expiry(token)}; shown this once, {file} has its hash", err=True)


@app.command("list")
def list_tokens(file: TokenFile) -> None:
    """Print the names, scopes and times of all tokens; the file has no secret to print."""
    now = datetime.now(UTC)
    for token in _do(lambda: read_token_file(file)).all:
        state = " (its time is over)" if token.is_expired(now) else ""
        typer.echo(f"{token.name:<24} {token.scope:<8} {_say_expiry(token)}{state}")


@app.command("remove")
def remove(name: Annotated[str, typer.Argument(help="A name that `list` shows.")], file: TokenFile) -> None:
    """Take a token back: the agent refuses it within a second or two."""
    _do(lambda: remove_token(file, name))
    typer.echo(f"{name} is removed from {file}", err=True)


def parse_expiry(text: str, now: datetime) -> datetime:
    """Returns the moment that a duration from now, or an RFC 3339 time, means.

    Raises:
        TokenLineError: it is neither, or is past.
    """
    if found := _DURATION.fullmatch(text):
        return now + timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    moment = parse_time(text)
    if moment <= now:
        raise TokenLineError(f"--expires {text}: is past; give a time to come, or a duration such as 90d")
    return moment


def _say_expiry(token: Token) -> str:
    return f"until {format_time(token.expires)}" if token.expires else "for ever"


def _do(change: Callable[[], T]) -> T:
    try:
        return change()
    except AccessSettingsError as error:
        raise _stop(str(error)) from None


def _stop(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)
