"""Published runs of mixtures of experts on TPUs: no constant is fitted to them, and here is how far the others carry.

Rule: the runs stand in `data/experts.csv` with their sources; seconds are predicted with the constants that a plan has.
What is said of such plans (`meshwright.planning.search.search`) is what comes out here. Gemma 4 26B is not among them:
it has heads of two sizes, and keys that are values too, which a model is not described with.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from meshwright.planning.cost.work import Output
from meshwright.planning.models import find_preset
from meshwright.wire.model import TrainingSpec
from tests.accuracy.maxtext import build_case_run
from tests.accuracy.price import price_run
from tests.accuracy.run import Run
from tests.accuracy.sets import MAXTEXT
from tests.compiler.steps.cases import Case

TABLE: Final = Path(__file__).parent / "data" / "experts.csv"


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


def find_error(expert_run: ExpertRun) -> float:
    """Returns predicted ÷ published − 1."""
    return price_run(expert_run.run, expert_run.kept) / (expert_run.run.step_s or float("nan")) - 1
