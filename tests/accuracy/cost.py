"""The cost model as a predictor of runs on GPUs, and the maker of its tables: `python -m tests.accuracy.cost`.

    python -m tests.accuracy.cost            fits all, prints errors of runs left out, set by set
    python -m tests.accuracy.cost --write    and puts its rows into constants.csv and intervals.csv

Rule: what is said of a run was fitted without any row of its fold. A framework that no fold touches is fitted once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshwright.planning.cost.practice import Practice
from tests.accuracy.cost_fit import Start, Tuned, fit_framework, fit_set, price_runs
from tests.accuracy.evaluate import Prediction, Predictor
from tests.accuracy.run import Run
from tests.accuracy.runs import select_timed

_COMMON: Final = ("matmul", "attention", "traffic", "traffic_cut", "tensor", "network")
_FEW: Final = {"hidden": 0.5, "tensor": 0.5, "network": 0.5, "matmul": 0.5, "memory": 0.3, "skew": 0.5}

_MODERN: Final = Practice(
    matmul=0.9,
    narrow=0.8,
    cast_bytes=4.0,
    attention=0.4,
    traffic=8.0,
    traffic_cut=4.0,
    launch_s=3e-4,
    tensor=0.9,
    network=0.7,
    hidden=3.0,
    skew=0.8,
    step_s=0.02,
)
"""Of frameworks that hide communication and fuse attention."""

STARTS: Final[Mapping[str, Start]] = {
    "megatron-lm-2021": Start(
        Practice(
            matmul=0.95,
            attention=0.6,
            traffic=6.0,
            traffic_cut=2.0,
            score_bytes=13.0,
            misaligned=0.1,
            launch_s=8e-4,
            tensor=0.95,
            network=0.5,
            partial=0.4,
            hidden=1.0,
            skew=0.6,
            pass_s=2e-3,
            step_s=3e-3,
        ),
        (*_COMMON, "score_bytes", "misaligned", "launch_s", "partial", "skew", "pass_s", "tensor_latency_s"),
        scale=0.05,
    ),
    "llm-foundry": Start(
        replace(_MODERN, traffic=30.0, traffic_cut=6.0, logits_bytes=20.0, step_s=0.03),
        (*_COMMON, "step_s", "narrow", "cast_bytes", "hidden", "launch_s", "logits_bytes", "optimizer_bytes", "memory"),
        {"h100": ("attention", "matmul", "memory")},
        _FEW,
    ),
    "megatron-core": Start(
        replace(
            _MODERN,
            attention=0.5,
            traffic=6.0,
            launch_expert_s=1e-4,
            dispatch_s=1e-3,
            tensor=1.0,
            network=0.6,
            optimizer_bytes=20.0,
            logits_bytes=12.0,
        ),
        (
            *(*_COMMON, "step_s", "narrow", "cast_bytes", "routed", "hidden"),
            *("launch_s", "launch_expert_s", "dispatch_s", "skew"),
        ),
        dict.fromkeys(("h100", "b200", "gb200", "b300", "gb300"), ("matmul",)),
        {**_FEW, "traffic": 0.5, "traffic_cut": 0.5, "attention": 0.5},
    ),
    "torchtitan": Start(_MODERN, (*_COMMON, "step_s", "narrow", "cast_bytes", "hidden", "launch_s"), spreads=_FEW),
}
"""By framework: what its constants are before any run is seen."""


@dataclass(frozen=True)
class Constants:
    """Fits by framework, and by set."""

    frameworks: Mapping[str, Tuned]
    sets: Mapping[str, Tuned]

    def find(self, run: Run) -> Tuned | None:
        """Returns a run's constants: those of its set, else of its framework; None: neither was fitted."""
        return self.sets.get(run.set_name) or self.frameworks.get(run.practice)


def fit(runs: Sequence[Run]) -> Constants:
    """Returns constants fitted to those of the runs that are on GPUs and told their seconds."""
    timed = [run for run in select_timed(runs) if run.practice in STARTS]
    frameworks: dict[str, Tuned] = {}
    sets: dict[str, Tuned] = {}
    for name in dict.fromkeys(run.practice for run in timed):
        found = _fit_framework(tuple(run for run in timed if run.practice == name))
        frameworks[name], own = found
        sets.update(own)
    return Constants(frameworks, sets)


@functools.cache
def _fit_framework(runs: tuple[Run, ...]) -> tuple[Tuned, Mapping[str, Tuned]]:
    start = STARTS[runs[0].practice]
    framework = fit_framework(runs, start)
    names = dict.fromkeys(run.set_name for run in runs)
    if len(names) == 1:
        return framework, dict.fromkeys(names, framework)
    members = {name: [run for run in runs if run.set_name == name] for name in names}
    return framework, {name: fit_set(own, start, framework) for name, own in members.items()}


def predict(constants: Constants, runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Returns the seconds of each run of a framework that was fitted, and nothing of others."""
    found = [Prediction() for _ in runs]
    groups: dict[int, tuple[Tuned, list[int]]] = {}
    for place, run in enumerate(runs):
        tuned = constants.find(run)
        if tuned is not None:
            groups.setdefault(id(tuned), (tuned, []))[1].append(place)
    for tuned, places in groups.values():
        seconds = price_runs([runs[place] for place in places], tuned)
        for place, value in zip(places, seconds, strict=True):
            found[place] = Prediction(step_s=float(value))
    return tuple(found)


COST: Final = Predictor("step-time model on GPUs", fit, predict)


if __name__ == "__main__":
    from tests.accuracy.cost_tables import main

    sys.exit(main(sys.argv[1:]))
