"""`meshwright compile`, and the compiler's report: whether the step fits, the collectives of each axis, the time.

Rule: only "verified" is a yes. A requested compile that did not happen, or gave no answer, is a no. The result goes to
stdout; the compiler's own messages and warnings go to stderr. A step of one's own is compiled in a child; no agent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from meshwright.cli.output import Column, clean, format_bytes, format_time, print_log, print_notices, print_table
from meshwright.cli.progress import show_progress
from meshwright.cli.session import FAILED, OK, Session

if TYPE_CHECKING:
    from meshwright.wire.batch_size import CompiledBatch, TriedBatch
    from meshwright.wire.verification import MemoryParts, Verification, VerificationStatus, VerifiedCollective

_VERDICTS: Final[dict[VerificationStatus, tuple[str, str]]] = {
    "verified": ("compiled: fits", "green"),
    "does_not_fit": ("compiled: does not fit", "bold red"),
    "not_compiled": ("not compiled: nothing is verified", "bold yellow"),
    "aborted": ("the compiler gave no answer: nothing is verified", "bold red"),
}
_UNKNOWN: Final = ("compiled: whether it fits is not known", "bold yellow")
"""The result where the memory of a device is unknown."""


def find_exit_code(found: Verification | None) -> int:
    """Returns the exit code of a requested compile: 0 only where there is a report, and it fits."""
    return OK if found is not None and found.status == "verified" else FAILED


def print_verification(session: Session, found: Verification) -> None:
    """Prints one compile's report."""
    _print_verdict(session.out, found, _list_lines(found))
    print_table(session, COLUMNS, found.collectives)
    session.out.print()
    print_notices(session, found.warnings)
    if found.status != "verified":
        print_log(session, found.log)


def print_refusal(session: Session, found: Verification) -> None:
    """Prints on stderr why a plan was not verified, where stdout has other output; nothing where it was verified."""
    if found.status == "verified":
        return
    _print_verdict(session.err, found, (found.reason or "", _build_memory(found)))
    print_log(session, found.log)


def _print_verdict(console: Console, found: Verification, lines: Iterable[str]) -> None:
    """Prints the result of a compile, and below it the lines that are not empty."""
    words, style = _VERDICTS[found.status]
    if found.status == "verified" and found.capacity_bytes is None:
        words, style = _UNKNOWN
    console.print(Text.assemble((words, style), clean(_describe_origin(found))), soft_wrap=True)
    for line in filter(None, lines):
        console.print(f"  {clean(line)}", soft_wrap=True)


def print_batch(session: Session, found: CompiledBatch) -> None:
    """Prints the largest batch that fits, and the compiles that found it."""
    if found.verification.status == "verified" and found.per_replica_batch_size and found.global_batch_size:
        parts = found.global_batch_size // found.per_replica_batch_size
        bounds = {"memory": "one more does not fit", "asked": "the greatest that was asked for"}
        bound = bounds.get(found.limit or "", "the compiler refuses more, but not for memory")
        line = f"largest batch {found.per_replica_batch_size} × {parts} = {found.global_batch_size} sequences a step"
        session.out.print(Text.assemble((line, "bold"), f" ({bound})"), soft_wrap=True)
    session.out.print(f"{len(found.tried)} compiles", soft_wrap=True)
    print_table(session, TRIED, found.tried)
    if found.tried:
        session.out.print()
    print_verification(session, found.verification)


def _describe_origin(found: Verification) -> str:
    target = f" on {found.target}" if found.target else ""
    took = format_time(found.compile_s)
    when = "an earlier compile's answer" if found.stored else f"compiled in {took}" if took else ""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    details = "; ".join(part for part in (when, versions) if part)
    return f"{target} ({details})" if details else target


def _list_lines(found: Verification) -> Iterator[str]:
    yield found.reason or ""
    yield _build_memory(found)
    yield _describe_parts(found.memory) if found.memory else ""
    if found.parameter_count is not None:
        yield f"{found.parameter_count:,} parameters"
    if found.estimated_step_s is not None:
        yield f"about {format_time(found.estimated_step_s)} a step by the compiler's cycles, without collectives"


def _build_memory(found: Verification) -> str:
    needed = found.needed_bytes or found.peak_memory_bytes
    if needed is None:
        return ""
    word = "peak" if needed == found.peak_memory_bytes else "needs"
    if found.capacity_bytes is None:
        return f"{word} {format_bytes(needed)} a device; how much it may use is not known"
    margin = found.capacity_bytes - needed
    left = f"{format_bytes(margin)} to spare" if margin >= 0 else f"{format_bytes(-margin)} too much"
    return f"{word} {format_bytes(needed)} of {format_bytes(found.capacity_bytes)} a device: {left}"


def _describe_parts(memory: MemoryParts) -> str:
    """Not a sum: arguments and temporaries share memory over the program's time."""
    parts = {
        "arguments": memory.argument_bytes,
        "outputs": memory.output_bytes,
        "in the arguments' place": memory.alias_bytes,
        "temporaries": memory.temporary_bytes,
    }
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)


COLUMNS: Final[tuple[Column[VerifiedCollective], ...]] = (
    Column("axis", lambda found: found.axis),
    Column("collective", lambda found: found.op),
    Column("count", lambda found: f"{found.count:g}", "right"),
    Column("bytes a step", lambda found: format_bytes(found.bytes), "right"),
    Column("group", lambda found: str(found.group_size), "right"),
    Column("async", lambda found: f"{found.asynchronous_count:g}" if found.asynchronous_count else "", "right"),
)

TRIED: Final[tuple[Column[TriedBatch], ...]] = (
    Column("batch a part", lambda tried: str(tried.per_replica_batch_size), "right"),
    Column("fits", lambda tried: Text("yes", "green") if tried.fits else Text("no", "red")),
    Column("needed", lambda tried: format_bytes(tried.needed_bytes), "right"),
)


def compile_step(
    session: Session,
    builder: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Called with the mesh; returns (step, arguments).")
    ],
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="Of `meshwright plan --save FILE`.")],
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
            paths=(str(Path.cwd()), *sys.path),  # as with `python -m`
        )
    if session.as_json:
        session.print_lines(found.model_dump_json())
    else:
        print_verification(session, found)
    return find_exit_code(found)
