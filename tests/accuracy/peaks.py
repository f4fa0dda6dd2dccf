"""Peaks of our own training step, as XLA's compilers told them: the cases and their answers.

Rule: `data/peaks.csv` has a row a case, the answer in its last columns; a case without one was not asked. The answers
are those of the versions beside them; the code that asked the compilers is in commit 548beb6.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from meshwright.planning.cost.memory import StepMemory, count_optimizer_bytes
from meshwright.planning.cost.spans import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model
from meshwright.planning.parallelism import find_role
from meshwright.topology.chips import Chip, find_chip
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec
from tests.compiler.steps.cases import DENSE, EXPERTS, LARGE, OLDER, SMALL, Case
from tests.compiler.steps.published import MODELS, build_model

TABLE: Final = Path(__file__).with_name("data") / "peaks.csv"

Platform = Literal["tpu", "gpu"]

REMATS: Final[dict[Remat, int]] = {"none": REMAT_NONE, "minimal": REMAT_MINIMAL, "full": REMAT_FULL}

_OWN: Final = {model.name: model for model in (DENSE, SMALL, LARGE, OLDER, EXPERTS)}
_TEXTS: Final = ("remat", "attention", "weight_dtype", "first_moment_dtype", "second_moment_dtype")
_COUNTS: Final = ("seq_len", "global_batch_size", "gradient_accumulation_steps")
_AXES: Final = {"data": "dp", "fsdp": "fsdp", "tensor": "tp", "context": "cp", "expert": "ep"}


@dataclass(frozen=True, eq=False)
class Peak:
    """A case, and what its compiler said of it.

    Attributes:
        id: of the row.
        case: target, mesh, model and training.
        peak_bytes: of a device; None where it did not compile.
        needed_bytes: what the compiler said it needs, where that is too much.
    """

    id: str
    case: Case
    peak_bytes: int | None
    needed_bytes: int | None

    @property
    def chip(self) -> Chip:
        """The chip's row of the table."""
        chip = find_chip(self.case.target.rpartition("*")[2].partition(":")[0])
        assert chip is not None, f"{self.id}: no chip is called so"
        return chip

    @property
    def platform(self) -> Platform:
        """Whose compiler it is."""
        return cast(Platform, self.chip.platform)

    @property
    def layout(self) -> Layout:
        """The mesh and the batch as the cost model has them."""
        return build_layout(self.case.mesh, self.case.training)


def build_layout(mesh: str, training: TrainingSpec) -> Layout:
    """Returns the layout of a mesh written as "fsdp:4,tp:2".

    Raises:
        KeyError: an axis that the step does not have.
    """
    sizes: dict[str, int] = {}
    for part in mesh.split(","):
        name, _, size = part.partition(":")
        axis = _AXES[str(find_role(name))]
        sizes[axis] = sizes.get(axis, 1) * int(size)
    parts = sizes.get("dp", 1) * sizes.get("fsdp", 1) * sizes.get("ep", 1)
    each, passes = training.global_batch_size // parts, training.gradient_accumulation_steps
    return Layout(
        **sizes, micro_batch_size=each // passes, gradient_accumulation_steps=passes, remat=REMATS[training.remat]
    )


@functools.cache
def find_model(name: str) -> ModelSpec:
    """Returns a model of the compiled steps or of the published ones, or a preset.

    Raises:
        InvalidRequestError: there is none.
    """
    if name in _OWN:
        return _OWN[name]
    return build_model(name) if name in MODELS else read_model(name)


def read_peaks() -> tuple[Peak, ...]:
    """Returns all cases, in the order of the table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(map(_build, csv.DictReader(file)))


def _build(row: dict[str, str]) -> Peak:
    told: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name]}
    told |= {name: int(row[name]) for name in _COUNTS if row[name]}
    case = Case(row["target"], row["mesh"], find_model(row["model"]), TrainingSpec(**told), row["dcn"] or None)
    peak, needed = (int(row[name]) if row[name] else None for name in ("peak_bytes", "needed_bytes"))
    return Peak(row["id"], case, peak, needed)


def price_peak(peak: Peak) -> float:
    """Returns the predicted bytes of the fullest device of a compiled case."""
    model, training = peak.case.model, peak.case.training
    work, layout = build_work(model, training.seq_len), peak.layout
    layout = replace(layout, optimizer_bytes=count_optimizer_bytes(training))
    return float(sum(StepMemory.of(work, layout, model, training, peak.chip).price().values()))
