"""Published runs of mixtures of experts on TPUs: no constant is fitted to them, and here is how far the others carry.

    python -m tests.accuracy.experts

Rule: the runs stand in `data/experts.csv` with their sources; seconds are predicted with the constants that a plan has.
What is said of such plans (`meshwright.planning.search.experts`) is what comes out here. Gemma 4 26B is not among them:
it has heads of two sizes, and keys that are values too, which a model is not described with.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

from scipy.optimize import brentq

from meshwright.planning.cost.practice import find_practice
from meshwright.planning.cost.remat import Output, find_repeated
from meshwright.planning.cost.step_time import StepTime, price_step
from meshwright.planning.presets import find_preset
from meshwright.wire.model import TrainingSpec
from tests.accuracy.cases import build_case_run
from tests.accuracy.run import Run
from tests.accuracy.sets import MAXTEXT
from tests.accuracy.tpu import SET, build_case
from tests.compiler.steps.cases import Case

TABLE: Final = Path(__file__).parent / "data" / "experts.csv"
ROUTED_MOST: Final = 2000.0
"""More than any of the runs would need."""


@dataclass(frozen=True)
class ExpertRun:
    """One of the runs. `kept`: what the backward pass finds of a layer besides its input."""

    run: Run
    kept: tuple[Output, ...]


def read_expert_runs() -> tuple[ExpertRun, ...]:
    """Returns the runs, in the order of their table.

    Raises:
        ValueError: a row names no known model, or an output that no layer has.
    """
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(_read_row(row) for row in csv.DictReader(file))


def _read_row(row: Mapping[str, str]) -> ExpertRun:
    preset = find_preset(row["model"])
    kept = tuple(output for output in get_args(Output) if output in row["kept"].split())
    if preset is None or len(kept) != len(row["kept"].split()):
        raise ValueError(
            f"{row['id']}: no model {row['model']!r}, or not all of {row['kept']!r} are {get_args(Output)}"
        )
    sizes = {name: int(row[name]) for name in ("global_batch", "sequence_length")}
    case = Case(row["target"], row["mesh"], preset.model, TrainingSpec(remat="full", **sizes))
    measured = {"step_s": float(row["step_s"]), "step_basis": "published", "source": row["source"]}
    return ExpertRun(build_case_run(MAXTEXT, case, row["id"], row["id"], **measured), kept)


def price_experts(expert_run: ExpertRun, *, routed: float | None = None) -> StepTime:
    """Returns the seconds of a step by part.

    Args:
        expert_run: the run.
        routed: the constant of that name (`Practice`); None: the table's.
    """
    case = build_case(expert_run.run)
    repeated = find_repeated(case.work, expert_run.kept)
    execution = replace(case.execution, repeated_matmuls=repeated.matmuls, repeated_attention=repeated.attention)
    practice = find_practice(SET, "tpu", case.family).practice
    practice = practice if routed is None else replace(practice, routed=routed)
    return price_step(case.work, expert_run.run.layout, case.machine, case.spans, practice, execution)


def find_error(expert_run: ExpertRun) -> float:
    """Returns predicted ÷ published − 1."""
    return float(price_experts(expert_run).total_s) / (expert_run.run.step_s or float("nan")) - 1


def find_routed(expert_run: ExpertRun) -> float:
    """Returns what `routed` would have to be for a run to be met.

    Raises:
        ValueError: none of 0 to `ROUTED_MOST` does.
    """

    def miss(routed: float) -> float:
        return float(price_experts(expert_run, routed=routed).total_s) - (expert_run.run.step_s or float("nan"))

    return float(brentq(miss, 0.0, ROUTED_MOST, xtol=0.01))


def main() -> int:
    """Prints each run with what is predicted of it."""
    for each in read_expert_runs():
        predicted = float(price_experts(each).total_s)
        print(
            f"{each.run.id}: published {each.run.step_s} s, predicted {predicted:.2f} s, {find_error(each):+.1%}; "
            f"met with routed {find_routed(each):.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
