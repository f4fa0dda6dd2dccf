"""`meshwright compile`: a step of your own, compiled for a plan's hardware in a child of this process. No agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.progress import show_progress
from meshwright.cli.session import Session
from meshwright.cli.verification import judge, print_verification

PlanFileOption = Annotated[
    Path, typer.Option("--plan", metavar="FILE", help="What `meshwright plan … --save FILE` kept.")
]


def compile_step(
    session: Session,
    builder: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Called with the mesh; returns (step, arguments).")
    ],
    plan: PlanFileOption,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="The plan's hardware, where it was made on a host.")
    ] = None,
) -> int:
    """Compile a step of your own for a plan's hardware, which need not be here.

    MODULE:FUNCTION (or FILE.py:FUNCTION) is called with the mesh and returns the step and its arguments, as shapes.
    --timeout bounds the compile.

    Exit codes: 0 it compiled and fits · 1 it does not fit, does not trace or compile, or the compiler gave no answer ·
    2 usage, a plan that is none, or no such function.
    """
    from meshwright._verify.ask import ask_child, parse_step  # imported here, so that other commands start faster

    found_step = parse_step(builder)
    with show_progress(session) as on_progress:
        found = ask_child(
            plan,
            found_step,
            target=target,
            limit_s=session.options.timeout_s,
            on_progress=on_progress,
            paths=list_paths(),
        )
    if session.as_json:
        session.print_lines(found.model_dump_json())
    else:
        print_verification(session, found)
    return judge([found])


def list_paths() -> tuple[str, ...]:
    """Returns the child's module search path: the working folder first, as with `python -m`."""
    return (str(Path.cwd()), *sys.path)
