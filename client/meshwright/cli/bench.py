"""`meshwright bench`: measures, with a progress bar on stderr; shows the records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import typer
from rich.text import Text

from meshwright._client.requests import build_request
from meshwright.cli.arguments import parse_devices, read_object
from meshwright.cli.output import (
    Column,
    build_table,
    clean,
    format_bytes,
    format_indices,
    format_rate,
    format_time,
    print_notices,
    print_warning,
)
from meshwright.cli.progress import show_progress
from meshwright.cli.session import FAILED, OK, Session
from meshwright.wire.bench import BenchRecord, BenchRequest, BenchResult, LatestBench


def run_bench(
    session: Session,
    suite: Annotated[
        Literal["quick", "full"] | None,
        typer.Option(help="quick (default): at most 20 s; full: more sizes and samples."),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(metavar="CASE", help="Measure only this case, such as all_reduce. May be repeated."),
    ] = None,
    devices: Annotated[str | None, typer.Option(metavar="0,1", help="Local indices; default: all.")] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="ID", envvar="MESHWRIGHT_LEASE", help="Your own lease: its devices may be measured."),
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON of POST /placement/bench, - for stdin; other options win.")
    ] = None,
    latest: Annotated[
        bool, typer.Option("--latest", help="Measure nothing; show the newest records, of --case and --devices.")
    ] = False,
) -> int:
    """Measure transfers, collectives, matmul and memory.

    Runs on the host's devices, which must be idle, one run at a time; an interrupt cancels it.

    Exit codes: 0 measured, and every result was right · 1 failed, cancelled, a wrong result, the
    devices are busy or reserved, or nothing could be measured · 2 usage, queue full, or no answer.
    """
    with session.open() as client:
        answer: BenchResult | LatestBench
        cases = [text.strip().lower().replace("-", "_") for text in case] if case else None
        chosen = None if devices is None else parse_devices(devices, "--devices")
        if latest:
            answer = client.latest_bench()
            records = (each for each in answer.records if cases is None or each.case in cases)
            records = (each for each in records if chosen is None or set(each.device_indices) <= set(chosen))
            answer = answer.model_copy(update={"records": tuple(records)})
        else:
            options = {"suite": suite, "cases": cases, "devices": chosen, "lease": lease}
            named = {name: value for name, value in options.items() if value is not None}
            asked = build_request(BenchRequest, None, (read_object(request, "--request") if request else {}) | named)
            with show_progress(session) as on_progress:
                answer = client.bench(asked, on_progress=on_progress)
        if session.as_json:
            session.print_json(answer)
        else:
            print_records(session, answer)
    return find_exit_code(answer.records)


def find_exit_code(records: Iterable[BenchRecord]) -> int:
    """Returns the exit code of records: 0 only where there are some and all are right."""
    verdicts = [record.correct and record.wrong_elements == 0 for record in records]
    return OK if verdicts and all(verdicts) else FAILED


def print_records(session: Session, answer: BenchResult | LatestBench) -> None:
    """Prints the records of a bench; those of the newest benches with their age."""
    columns = COLUMNS
    if isinstance(answer, LatestBench):
        columns = (*COLUMNS, Column("age", lambda record: format_time(record.age_s), "right"))
    if isinstance(answer, BenchResult):
        session.out.print(_describe_run(answer), soft_wrap=True)
        session.out.print()
    if answer.records:
        session.out.print(build_table(columns, answer.records))
    else:
        print_warning(session, "nothing was measured")
    if isinstance(answer, BenchResult):
        for entry in answer.skipped:
            session.out.print(Text(f"skipped {entry.case}: ", "yellow") + Text(clean(entry.reason)), soft_wrap=True)
        print_notices(session, answer.warnings)


def _describe_run(result: BenchResult) -> Text:
    where = f"{result.device_count} × {result.device_kind} ({result.platform})"
    return Text(clean(f"{result.suite} suite on {where}, jax {result.jax}, {format_time(result.duration_s)}"), "bold")


def _describe_devices(record: BenchRecord) -> str:
    if record.case == "device_to_device":
        return "→".join(map(str, record.device_indices))
    return format_indices(record.device_indices)


def _describe_result(record: BenchRecord) -> Text:
    if find_exit_code([record]) == OK:
        return Text("ok", "green")
    return Text(f"{record.wrong_elements} wrong" if record.wrong_elements else "no collective ran", "bold red")


COLUMNS: Final[tuple[Column[BenchRecord], ...]] = (
    Column("case", lambda record: record.case),
    Column("devices", _describe_devices),
    Column("axis", lambda record: "" if record.axis is None else f"{record.axis}:{record.axis_size}"),
    Column("size", lambda record: format_bytes(record.size_bytes), "right"),
    Column("dtype", lambda record: record.dtype),
    Column("median", lambda record: format_time(record.median_s), "right"),
    Column("p10 … p90", lambda record: f"{format_time(record.p10_s)} … {format_time(record.p90_s)}", "right"),
    Column("n", lambda record: str(len(record.samples_s)), "right"),
    Column("algbw", lambda record: format_rate(record.algbw_bytes_per_s, "B/s"), "right"),
    Column("busbw", lambda record: format_rate(record.busbw_bytes_per_s, "B/s"), "right"),
    Column("compute", lambda record: format_rate(record.flops_per_s, "FLOP/s"), "right"),
    Column("result", _describe_result),
)
