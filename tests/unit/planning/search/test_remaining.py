"""What is left when devices fail: as many of them as some mesh cuts, the fastest of those, none that failed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.request import Inventory
from meshwright.topology.targets import build_target
from tests.fakes.asking import ask_planner

TRAINING = {"seq_len": 4096, "global_batch_size": 64}


def ask(target: str, *, failed: tuple[int, ...] = (), **fields: Any) -> Any:
    here = Inventory(build_target(target), health=dict.fromkeys(failed, "unhealthy"))
    return ask_planner(here, **{"model": "llama3-8b", "training": TRAINING, "top": 1, **fields})


def ask_fallback(target: str, **fields: Any) -> Any:
    return ask(target, fallback=True, **fields).fallback


def count(plan: Any) -> int:
    return math.prod(plan.mesh_shape.values())


def test_of_one_host_a_device_goes_alone() -> None:
    fallback = ask_fallback("h100:8")
    assert count(fallback.plans[0]) == 6
    assert "one device" in fallback.message
    assert "1 of them stay idle" in fallback.message
    assert "hosts run together" in ask_fallback("v5e:4x8").message


def test_where_nothing_is_left_that_holds_the_model_it_is_said() -> None:
    fallback = ask_fallback("2*v5e:2x4", training={"seq_len": 2048, "global_batch_size": 32}, model="llama2-13b")
    assert fallback.plans == ()
    assert "nothing fits" in fallback.message


def test_a_device_that_has_failed_is_planned_around_and_the_idle_ones_are_told() -> None:
    found = ask("h100:8", failed=(3,))
    (plan,) = found.plans
    assert 3 not in {device.local_index for device in plan.devices}
    assert count(plan) == 6
    notice = next(notice for notice in found.warnings if notice.code == "devices_left_idle")
    assert notice.message.startswith("1 of the devices that are left stay idle")


def test_the_fastest_step_counts_and_not_the_most_devices() -> None:
    asked: dict[str, Any] = {"model": "llama3-70b", "training": {"seq_len": 4096, "global_batch_size": 1}}
    left = ask("6*h200:8", failed=(0,), **asked).plans[0]
    most = ask("6*h200:8", devices={"count": 40}, **asked).plans[0]
    assert count(left) == 32
    assert left.step_time.total_s < most.step_time.total_s


def test_a_number_that_was_asked_for_is_never_made_smaller() -> None:
    with pytest.raises(PlanInfeasibleError, match="no mesh of 7 devices"):
        ask("h100:8", devices={"count": 7})
    excluded = ask("h100:8", devices={"exclude": [0]}).plans[0]
    assert count(excluded) == 6
    assert 0 not in {device.local_index for device in excluded.devices}
