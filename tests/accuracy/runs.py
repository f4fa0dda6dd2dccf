"""Published runs of MaxText, as they were run: what was trained, on what, laid out how, and the seconds of a step.

Rule: `data/runs.csv` has a row a run, with its source. Dimensions are those of the version that was published, where
today's differ. `fit_law` and `predict` are what the page and the tests judge the law by.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from meshwright.planning.cost.spans import Layout, Spans
from meshwright.planning.cost.step_time import LAW, DeviceRates, Execution, Law, StepTime, find_spread
from meshwright.planning.cost.work import Output, Work, build_work
from meshwright.planning.models import read_model
from meshwright.planning.search.candidates import Hardware, scale_links
from meshwright.spec import MeshSpec
from meshwright.topology.chips import Chip
from meshwright.topology.targets import build_target
from meshwright.wire.model import ModelSpec

TABLE: Final = Path(__file__).with_name("data") / "runs.csv"
EFFICIENCIES: Final = 1 / np.linspace(0.6, 1.2, 121)
INTENSITIES: Final = np.linspace(0, 1 / 300, 101)
"""1 ÷ each constant, as fits look at them."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    Attributes:
        id: of the row.
        group: what it is left out with: the model on its chip.
        model: what was trained.
        chip, devices: the hardware.
        work, layout, spans, execution: as the law takes them; `work` with the outputs that the run saved.
        step_s: seconds, as published.
        source: where.
    """

    id: str
    group: str
    model: ModelSpec
    chip: Chip
    devices: int
    work: Work
    layout: Layout
    spans: Spans
    execution: Execution
    step_s: float
    source: str

    @property
    def flops_s(self) -> float:
        """Seconds that the model's FLOPs take at the peak."""
        layout = self.layout
        batch = layout.data_parts * layout.micro_batch_size * layout.gradient_accumulation_steps
        tokens = int(batch) * self.work.seq_len
        return self.work.flops_per_token * tokens / self.devices / self.chip.device_flops_per_s

    def predict(self, law: Law = LAW) -> float:
        """Returns the seconds of a step by the law."""
        machine = DeviceRates(self.chip.platform, self.chip.device_flops_per_s, self.chip.device_memory_bytes_per_s)
        step = StepTime(self.work, self.layout, machine, self.spans, self.execution, law)
        return float(sum(step.price().values()))

    @property
    def spread(self) -> float:
        """The factor of its interval."""
        return find_spread(self.chip, self.work, self.layout)[0]

    @functools.cached_property
    def terms(self) -> tuple[float, float, float]:
        """Seconds that stay, and those that go with 1 ÷ efficiency and with 1 ÷ intensity."""
        one = self.predict(Law(1.0, float("inf")))
        half = self.predict(Law(0.5, float("inf")))
        memory = self.predict(Law(1.0, 1.0))
        return 2 * one - half, half - one, memory - one


@functools.cache
def read_runs() -> tuple[Run, ...]:
    """Returns all runs, in the order of the table.

    Raises:
        ValueError: a row keeps an output that no layer has.
    """
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(map(_build_run, csv.DictReader(file)))


def _build_run(row: dict[str, Any]) -> Run:
    model = read_model(json.loads(row["dimensions"]) if row["dimensions"] else row["model"])
    work = build_work(model, int(row["seq_len"]))
    axes = dict(MeshSpec.parse(row["mesh"]).axes)
    layout = Layout(**axes)
    layout = replace(layout, micro_batch_size=int(row["global_batch_size"]) // int(layout.data_parts))
    topology = build_target(row["target"])
    hardware = Hardware.of(topology, len(topology.devices), range(len(topology.devices)))
    spans = hardware.lay(layout)
    if row["host_network_bytes_per_s"]:
        ratio = float(row["host_network_bytes_per_s"]) / (hardware.chip.nic_bytes_per_s or 1.0)
        spans = {axis: replace(span, outer=scale_links(span.outer, ratio)) for axis, span in spans.items()}
    kept = [output for output in get_args(Output) if output in row["kept"].split()]
    if len(kept) != len(row["kept"].split()):
        raise ValueError(f"{row['id']}: not all of {row['kept']!r} are {get_args(Output)}")
    work = replace(work, unrepeated=work.unrepeated.union(kept))
    return Run(
        id=row["id"], group=f"{hardware.chip.family}/{row['model']}", model=model, chip=hardware.chip,
        devices=len(topology.devices), work=work, layout=layout, spans=spans,
        execution=Execution(capacity_factor=float(row["capacity_factor"] or 0) or None),
        step_s=float(row["step_s"]), source=row["source"],
    )  # fmt: skip


def select(platform: str, *, experts: bool = False) -> list[Run]:
    """Returns the runs on a platform, of dense models or of mixtures of experts."""
    return [run for run in read_runs() if run.chip.platform == platform and run.work.has_experts == experts]


def fit_law(runs: Sequence[Run]) -> Law:
    """Returns the law whose two constants are the nearest to these runs: by the mean size of the errors' logarithms."""
    stays, work, memory = np.array([run.terms for run in runs]).T
    seconds = stays + EFFICIENCIES[:, None, None] * work + INTENSITIES[None, :, None] * memory
    errors = np.abs(np.log(seconds / [run.step_s for run in runs])).mean(axis=-1)
    best = np.unravel_index(errors.argmin(), errors.shape)
    with np.errstate(divide="ignore"):
        return Law(float(1 / EFFICIENCIES[best[0]]), float(1 / INTENSITIES[best[1]]))


def fit_slowdown(runs: Sequence[Run]) -> float:
    """Returns the median slowdown of models, each by its runs on one chip."""
    groups = (tuple(run for run in runs if run.group == group) for group in {run.group for run in runs})
    return float(np.median([_fit_group(group) for group in groups]))


@functools.cache
def _fit_group(runs: tuple[Run, ...]) -> float:
    """Returns the slowdown that is the nearest to the runs of one model on one chip."""
    values = np.linspace(0.8, 2.5, 171)
    laws = [replace(LAW, slowdown=dict.fromkeys(("tpu", "gpu"), value)) for value in values]
    errors = [np.mean([abs(np.log(run.predict(law) / run.step_s)) for run in runs]) for law in laws]
    return float(values[int(np.argmin(errors))])
