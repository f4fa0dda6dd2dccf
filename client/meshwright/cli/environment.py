"""`meshwright env`: the environment of a job, as lines that a shell can evaluate."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from meshwright.cli.output import print_notices
from meshwright.cli.session import OK, Session


def show_environment(
    session: Session,
    memory_strategy: Annotated[
        Literal["conservative", "balanced", "aggressive"],
        typer.Option(help="How much of a device's memory the job may take."),
    ] = "balanced",
) -> int:
    """Print the variables that a job should start with.

    As lines for a shell: eval "$(meshwright env)".
    """
    with session.open() as client:
        reply = client.environment(memory_strategy)
    if session.as_json:
        session.print_json(reply)
        return OK
    session.print_lines(*reply.exports)
    print_notices(session, reply.warnings)
    return OK
