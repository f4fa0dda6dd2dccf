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
    assert "1 of them stays idle" in fallback.message
    small = ask_fallback("h100:8", model="llama3.2-3b", training={"seq_len": 8192, "global_batch_size": 144})
    assert small.message.endswith("no global_batch_size near 144 is faster on more of them")
    assert "hosts run together" in ask_fallback("v5e:4x8").message
    alone = ask_fallback("h100:1", model="llama3.2-1b", training={"seq_len": 2048, "global_batch_size": 8})
    assert (alone.plans, alone.message) == ((), "without one device no device is left")


@pytest.mark.parametrize(
    ("target", "left"), [("gb200:72", 68), ("gb200:32", 28), ("2*gb200:72", 140), ("3*h100:8", 16)]
)
def test_a_device_goes_with_its_host_also_of_an_nvlink_domain(target: str, left: int) -> None:
    fallback = ask_fallback(target, training={"seq_len": 4096, "global_batch_size": 576})
    lost = 8 if "h100" in target else 4
    assert f"a host of {lost} devices" in fallback.message
    idle = [int(word) for word in fallback.message.split() if f"; {word} of them stay" in fallback.message]
    assert count(fallback.plans[0]) + sum(idle[:1]) == left


def test_a_batch_for_more_of_the_devices_that_are_left_is_found_on_fewer_than_all() -> None:
    training = {"seq_len": 8192, "global_batch_size": 512}
    fallback = ask_fallback("16*h100:8", model="llama3-70b", training=training)
    assert "56 of them stay idle; with a global_batch_size of 480 all 120 work, 40.5 s" in fallback.message


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
    assert notice.message.startswith("1 of the devices left stays idle")


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
