"""The accuracy page's tables: figures beside goals; and every row, as a table and as CSV.

Rule: text from figures; judges nothing that `goals` does not ask.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tests.accuracy.evaluate import Row
from tests.accuracy.goals import (
    COVERAGE,
    MEMORY_ERRORS,
    MEMORY_SETS,
    MOST_FALSE_ALARMS,
    MOST_MISSES,
    OUT_OF_MEMORY_SETS,
    STEP_GOALS,
    Goal,
    judge,
)
from tests.accuracy.metrics import Errors
from tests.accuracy.report import SetReport
from tests.accuracy.run import LeftOut
from tests.accuracy.sets import MAXTEXT, SETS
from tests.compiler.steps.weigh import write_table

GIB: Final = 2**30

_MISSING: Final = "–"
_CSV_COLUMNS: Final = (
    *("set", "row", "target", "layout", "step_s", "predicted_s", "low_s", "high_s"),
    *("peak_bytes", "predicted_bytes", "oom", "predicted_oom", "left_out"),
)


def build_section(
    nulls: Mapping[str, SetReport],
    reports: Mapping[str, SetReport],
    left_out: Sequence[LeftOut],
    name: str,
) -> str:
    """Returns the text between the page's marks.

    Args:
        nulls: figures of the null predictor by set.
        reports: figures of the predictor that is judged.
        left_out: rows that nobody is asked about.
        name: of the predictor.
    """
    parts = [
        f"## Step time: {name}\n\n{build_step_table(nulls, reports, left_out)}",
        f"## Order within groups\n\n{build_ranking_table(nulls, reports)}",
        f"## Intervals of 80 %\n\n{build_interval_table(reports)}",
        f"## Memory\n\n{build_memory_table(reports)}",
        f"## Left out\n\n{list_left_out(left_out)}",
        f"## Where the rows come from\n\n{list_sources()}",
        "## Rows\n\nEvery row of every set stands in [rows.csv](../tests/accuracy/rows.csv).",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def build_step_table(
    nulls: Mapping[str, SetReport], reports: Mapping[str, SetReport], left_out: Sequence[LeftOut]
) -> str:
    """Returns medians and 90th percentiles of errors, set by set."""
    nulls_of = ("null, all rows", "null, these rows")
    columns = ("set", "rows", "left out", *nulls_of, "here", "bias", "silent", "goal", "reached")
    return write_table(columns, (_list_step_cells(goal, nulls, reports, left_out) for goal in _find_goals(reports)))


def _list_step_cells(
    goal: Goal, nulls: Mapping[str, SetReport], reports: Mapping[str, SetReport], left_out: Sequence[LeftOut]
) -> tuple[str, ...]:
    null, here = nulls.get(goal.name), reports.get(goal.name)
    own = _pick(goal, here)
    told = None if own is None else (own.median, own.p90)
    verdicts = {judge(figure, bound) for figure, bound in zip(told or (), goal.errors or (), strict=False)}
    reached = _MISSING if not verdicts else "no" if "no" in verdicts else "yes"
    return (
        f"{goal.label}{', after one scale a chip' if goal.is_scaled else ''}",
        str(here.rows if here else 0),
        str(sum(row.set_name == goal.name for row in left_out)),
        _write_pair(goal.null),
        _write_errors(_pick(goal, null)),
        _write_errors(own),
        _MISSING if own is None else f"{own.bias:+.1%}",
        str(here.silent if here else 0),
        _write_pair(goal.errors),
        reached,
    )


def build_ranking_table(nulls: Mapping[str, SetReport], reports: Mapping[str, SetReport]) -> str:
    """Returns τ and regret of the sets that are ranked."""
    columns = ("set", "groups", "null τ", "null regret", "τ", "least τ", "regret", "worst regret", "goal", "reached")
    ranked = [goal for goal in _find_goals(reports) if goal.is_ranked]
    return write_table(columns, (_list_ranking_cells(goal, nulls, reports) for goal in ranked))


def _list_ranking_cells(
    goal: Goal, nulls: Mapping[str, SetReport], reports: Mapping[str, SetReport]
) -> tuple[str, ...]:
    null, here = (found.ranking if found else None for found in (nulls.get(goal.name), reports.get(goal.name)))
    verdicts = {
        judge(here.median_tau if here else None, goal.median_tau, is_least=True),
        judge(here.least_tau if here else None, goal.least_tau, is_least=True),
        judge(here.median_regret if here else None, goal.median_regret),
    }
    asked = [
        f"τ ≥ {goal.median_tau}",
        f"in each ≥ {goal.least_tau}" if goal.least_tau is not None else "",
        f"regret ≤ {goal.median_regret:.0%}" if goal.median_regret is not None else "",
    ]
    return (
        goal.label,
        str(here.groups if here else 0),
        f"{_write(null.median_tau if null else None, '.2f')} ({_write(goal.null_tau, '.2f')})",
        f"{_write(null.median_regret if null else None, '.1%')} ({_write(goal.null_regret, '.1%')})",
        _write(here.median_tau if here else None, ".2f"),
        _write(here.least_tau if here else None, ".2f"),
        _write(here.median_regret if here else None, ".1%"),
        _write(here.worst_regret if here else None, ".1%"),
        ", ".join(filter(None, asked)),
        "no" if "no" in verdicts else "yes" if "yes" in verdicts else _MISSING,
    )


def build_interval_table(reports: Mapping[str, SetReport]) -> str:
    """Returns how many rows lie in their intervals, and how wide these are."""
    columns = ("set", "rows", "covered", "median width", "goal", "reached")
    return write_table(columns, (_list_interval_cells(goal, reports.get(goal.name)) for goal in _find_goals(reports)))


def _list_interval_cells(goal: Goal, here: SetReport | None) -> tuple[str, ...]:
    found = here.coverage if here else None
    low, high = COVERAGE
    reached = _MISSING if found is None else "yes" if low <= found.share <= high else "no"
    return (
        goal.label,
        str(found.count if found else 0),
        _write(found.share if found else None, ".0%"),
        _write(found.median_width if found else None, ".0%"),
        f"{low:.0%} to {high:.0%}",
        reached,
    )


def build_memory_table(reports: Mapping[str, SetReport]) -> str:
    """Returns errors of peaks, and verdicts on what ran out of memory."""
    columns = ("set", "rows", "here", "bias", "goal", "misses", "false alarms", "reached")
    named = [name for name in MEMORY_SETS if name in reports]
    return write_table(columns, (_list_memory_cells(name, reports[name]) for name in named))


def _list_memory_cells(name: str, here: SetReport) -> tuple[str, ...]:
    errors, verdicts = here.memory, here.verdicts
    bounds, judged = MEMORY_ERRORS.get(name), verdicts if name in OUT_OF_MEMORY_SETS else None
    verdict = {
        judge(errors.median if errors else None, bounds[0] if bounds else None),
        judge(errors.p90 if errors else None, bounds[1] if bounds else None),
        judge(judged.misses if judged else None, MOST_MISSES),
        judge(judged.false_alarms if judged else None, MOST_FALSE_ALARMS),
    }
    return (
        name,
        str(errors.count if errors else 0),
        _write_errors(errors),
        _MISSING if errors is None else f"{errors.bias:+.1%}",
        _write_pair(bounds),
        str(verdicts.misses) if verdicts else _MISSING,
        str(verdicts.false_alarms) if verdicts else _MISSING,
        "no" if "no" in verdict else "yes" if "yes" in verdict else _MISSING,
    )


def list_left_out(left_out: Iterable[LeftOut]) -> str:
    """Returns the reasons, each with the rows that it leaves out."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in left_out:
        reasons.setdefault((row.set_name, row.reason), []).append(row.id)
    lines = [f"- {name}, {len(ids)}: {reason} ({', '.join(ids)})." for (name, reason), ids in reasons.items()]
    return "\n".join(lines) or "Nothing."


def list_sources() -> str:
    """Returns where each set was published, how seconds follow, and what holds for all its rows."""
    return "\n".join(
        f"- {each.name}: {each.source}. Seconds: {each.seconds}.{f' {each.notes}.' if each.notes else ''}"
        for each in (MAXTEXT, *SETS)
    )


def build_row_table(rows: Sequence[Row]) -> str:
    """Returns one line a row."""
    figures = ("published s", "here s", "error", "GiB", "here GiB")
    columns = ("row", "target", "layout", "batch", "dtype", "remat", *figures)
    return write_table(columns, map(_list_row_cells, rows))


def _list_row_cells(row: Row) -> tuple[str, ...]:
    run, told = row.run, row.prediction
    return (
        f"[{run.id}]({run.source.split(' ')[0]})",
        run.target,
        write_layout(row),
        f"{run.global_batch}×{run.sequence_length}",
        run.compute_dtype,
        run.published_recompute,
        f"{_write(run.step_s, '.3f')}{'' if run.step_basis in ('', 'published') else '*'}",
        _write(told.step_s, ".3f"),
        _write(row.error, "+.1%"),
        "out of memory" if run.oom else _write(run.peak_bytes and run.peak_bytes / GIB, ".1f"),
        _write(told.peak_bytes and told.peak_bytes / GIB, ".1f"),
    )


def write_layout(row: Row) -> str:
    """Returns axes that split something, and micro-batches × passes: "fsdp:16,tp:4 24×1"."""
    layout = row.run.layout
    sizes = {name: int(getattr(layout, name)) for name in ("dp", "fsdp", "tp", "cp", "ep", "pp")}
    axes = ",".join(f"{name}:{size}" for name, size in sizes.items() if size > 1)
    stages = f" interleaved {int(layout.interleave)}" if int(layout.interleave) > 1 else ""
    return f"{axes or 'dp:1'} {int(layout.micro_batch)}×{int(layout.passes)}{stages}"


def write_rows(rows: Sequence[Row], left_out: Sequence[LeftOut]) -> str:
    """Returns every row as CSV, those that are left out with their reason."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for row in rows:
        run, told = row.run, row.prediction
        figures = (run.step_s, told.step_s, told.low_s, told.high_s, run.peak_bytes, told.peak_bytes)
        cells = [_write(figure, ".6g") if figure is not None else "" for figure in figures]
        verdicts = ["" if verdict is None else str(verdict).lower() for verdict in (run.oom, told.runs_out)]
        writer.writerow((run.set_name, run.id, run.target, write_layout(row), *cells, *verdicts, ""))
    for out in left_out:
        writer.writerow((out.set_name, out.id, *[""] * 10, out.reason))
    return text.getvalue()


def _find_goals(reports: Mapping[str, SetReport]) -> list[Goal]:
    return [goal for goal in STEP_GOALS if goal.name in reports]


def _pick(goal: Goal, report: SetReport | None) -> Errors | None:
    if report is None:
        return None
    return report.scaled if goal.is_scaled else report.errors


def _write_errors(errors: Errors | None) -> str:
    return _write_pair(None if errors is None else (errors.median, errors.p90))


def _write_pair(pair: tuple[float, float] | None) -> str:
    return _MISSING if pair is None else f"{pair[0]:.1%} / {pair[1]:.1%}"


def _write(value: float | None, form: str) -> str:
    return _MISSING if value is None else format(value, form)
