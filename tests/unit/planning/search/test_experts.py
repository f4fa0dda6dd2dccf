"""The warning of mixtures of experts on TPUs: who gets it, and that its figures are those of the published runs."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planning.models import find_preset
from meshwright.planning.search.search import CODE, LEAST_RATIO, MOST_RATIO, RUNS, list_expert_notices
from meshwright.wire.mesh import Plans
from tests.accuracy.experts import find_error, read_expert_runs
from tests.fakes.asking import ask_planner

TRAINING = {"sequence_length": 4096, "global_batch": 256}


def ask(model: str, target: str, **fields: Any) -> Plans:
    asked = {"target": target, "model": model, "training": TRAINING, "include_devices": False, **fields}
    return ask_planner(**asked)


def test_the_warning_has_the_figures_of_the_published_runs() -> None:
    short = sorted(-find_error(each) for each in read_expert_runs())
    assert len(short) == RUNS
    assert short[0] == pytest.approx(LEAST_RATIO, abs=0.005)
    assert short[-1] == pytest.approx(MOST_RATIO, abs=0.005)
    preset = find_preset("mixtral-8x7b")
    assert preset is not None
    (notice,) = list_expert_notices(preset.model, "tpu")
    assert "10% to 51% too fast on the 7 runs" in notice.message


def test_experts_on_tpus_are_warned_of_where_a_mesh_is_chosen_and_where_it_is_given() -> None:
    assert [notice.code for notice in ask("mixtral-8x7b", "v5p:4x4x4").warnings] == [CODE]
    (plan,) = ask("mixtral-8x7b", "v5p:4x4x4", mesh="fsdp:64").plans
    assert CODE in {notice.code for notice in plan.warnings}


@pytest.mark.parametrize(("model", "target"), [("llama3-8b", "v5p:4x4x4"), ("mixtral-8x7b", "8*h100:8")])
def test_dense_models_and_gpus_are_not(model: str, target: str) -> None:
    found = ask(model, target)
    assert found.plans
    assert CODE not in {notice.code for notice in (*found.warnings, *found.plans[0].warnings)}
