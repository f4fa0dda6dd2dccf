"""From a request to the batch of a step: which mesh is taken, what it runs on, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, RequestError
from meshwright.planning.batch_request import check_batch_hardware, estimate_request, name_batch_hardware
from meshwright.planning.request import Inventory, answer_request
from meshwright.planning.search.measured import Measurement
from meshwright.topology.targets import build_target
from meshwright.wire.batch_size import BatchSizeRequest
from meshwright.wire.mesh import Plan, PlanRequest
from tests.fakes.asking import ask_planner

HERE = Inventory(build_target("h100:8"))


def build(**fields: Any) -> BatchSizeRequest:
    known = {"model": "llama3-8b", "target": "v5e:4x4", "mesh": "fsdp:16", "training": {"seq_len": 2048}}
    return BatchSizeRequest.model_validate({**known, **fields})


def estimate(here: Inventory | None = None, **fields: Any) -> Any:
    return estimate_request(build(**fields), here)


def plan(**fields: Any) -> Plan:
    return answer_request(PlanRequest.model_validate({"mesh": "fsdp:8", "include_devices": False, **fields})).plans[0]


# ---- which mesh -----------------------------------------------------------------------------------------------------


def test_what_it_costs_is_what_a_plan_of_the_same_mesh_and_batch_says() -> None:
    found = estimate(mesh="fsdp:4,tp:4")
    own = found.plan
    assert (own.mesh_shape, own.target) == ({"fsdp": 4, "tp": 4}, "v5e:4x4")
    training = {"seq_len": 2048, "global_batch_size": found.recommended}
    told = plan(mesh="fsdp:4,tp:4", target="v5e:4x4", model="llama3-8b", training=training)
    assert (own.memory, own.step_time, own.schedule) == (told.memory, told.step_time, told.schedule)
    assert (own.tokens_per_s, own.mfu) == (told.tokens_per_s, told.mfu)


def test_without_a_mesh_the_fastest_is_found_for_the_least_batch_near_the_best() -> None:
    found = estimate(mesh=None, training={"seq_len": 512})
    batch = int(found.message.split()[-4])
    assert batch % 16 == 0
    training = {"seq_len": 512, "global_batch_size": batch}
    best = ask_planner(target="v5e:4x4", model="llama3-8b", training=training).plans[0]
    assert found.plan.mesh_shape == best.mesh_shape


@pytest.mark.parametrize(("most", "batch"), [(48, 48), (100, 96), (7, 7)])
def test_the_mesh_is_searched_for_the_largest_batch_that_all_devices_share(most: int, batch: int) -> None:
    found = estimate(mesh=None, training={"seq_len": 512, "global_batch_size": most})
    assert f"the fastest that was found for {batch} sequences a step" in found.message
    assert found.recommended <= most


def test_a_stored_plan_gives_mesh_hardware_and_memory() -> None:
    careful, bold = (plan(target="h100:8", memory_strategy=each) for each in ("conservative", "aggressive"))
    found: list[Any] = [
        estimate_request(build(mesh=None, target=None, plan=each.fingerprint), stored=each) for each in (careful, bold)
    ]
    assert [each.plan.target for each in found] == ["h100:8", "h100:8"]
    assert found[0].plan.largest_batch < found[1].plan.largest_batch


# ---- on what --------------------------------------------------------------------------------------------------------


def test_what_was_measured_here_counts_here_and_not_on_a_target() -> None:
    slow = Measurement(
        case="matmul", dtype="bfloat16", device_kind=HERE.topology.devices[0].kind, device_indices=(0,),
        size_bytes=8192 * 8192 * 2, median_s=2 * 8192**3 / 300e12, flop_count=2 * 8192**3, run_id="r1",
        observed_at=datetime(2026, 1, 2, tzinfo=UTC),
    )  # fmt: skip
    rows = [slow.model_copy(update={"device_indices": (place,)}) for place in range(8)]
    asked: dict[str, Any] = {"mesh": "fsdp:8", "training": {"global_batch_size": 8}}
    here = [estimate(replace(HERE, measured=each), target=None, **asked).plan for each in ((), tuple(rows))]
    assert here[1].step_time.compute_s > 1.5 * here[0].step_time.compute_s
    assert [figure.value for figure in here[1].measured] == [pytest.approx(300e12)]
    there = estimate(replace(HERE, measured=tuple(rows)), target="h100:8", **asked).plan
    assert (there.step_time, there.measured) == (here[0].step_time, ())


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "field", "words"), [
    ({"model": None}, "training", "model is not given"),
    ({"model": None, "training": None}, "mesh", "model is not given"),
    ({"model": None, "training": None, "mesh": None, "plan": "mw1-0"}, "plan", "model is not given"),
    ({"model": None, "training": None, "mesh": None}, "model", "no model is given"),
    ({"model": "llama3-9b"}, "model", "is no preset"), ({"plan": "mw1-0"}, "plan", "only its agent knows"),
    ({"per_device_batch_size": 512}, "per_device_batch_size", "which knows no model"),
    ({"target": None}, "target", "no target is named"),
    ({"hardware": "h100"}, "hardware", "stands beside v5e:4x4, which is v5e"),
    ({"training": {"global_batch_size": 8}}, "training.global_batch_size", "less than one sequence"),
])  # fmt: skip
def test_a_question_that_is_none_is_refused_by_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as refused:
        estimate(**fields)
    assert [error["field"] for error in refused.value.errors] == [field]
    assert refused.value.hint


@pytest.mark.parametrize(("fields", "kind", "words"), [
    ({"mesh": "fsdp:32"}, PlanInfeasibleError, "needs 32 devices"),
    ({"mesh": "fsdp:8"}, RequestError, "8 would stay idle"),
    ({"mesh": "tp:16", "target": "v5e:4x4", "model": "gpt2", "training": {"seq_len": 1024}}, PlanInfeasibleError,
     "num_attention_heads"),
    ({"mesh": "fsdp:8", "target": "cpu:8"}, PlanInfeasibleError, "the devices are cpu"),
    ({"mesh": None, "target": "cpu:8"}, PlanInfeasibleError, "the devices are cpu"),
    ({"mesh": None, "model": "llama3-70b", "target": "v5e:2x2"}, PlanInfeasibleError, "holds this training step"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_a_way(fields: dict[str, Any], kind: type[RequestError], words: str) -> None:
    with pytest.raises(kind, match=words) as refused:
        estimate(**fields)
    assert refused.value.hint


def test_a_mesh_or_another_target_beside_a_stored_plan_is_refused() -> None:
    made = plan(target="h100:8")
    with pytest.raises(InvalidRequestError, match="stands beside plan mw1-"):
        estimate_request(build(plan=made.fingerprint, target=None), stored=made)
    with pytest.raises(InvalidRequestError, match="was last made on h100:8"):
        estimate_request(build(plan=made.fingerprint, mesh=None), stored=made)
    with pytest.raises(InvalidRequestError, match="which is h100"):
        estimate_request(build(plan=made.fingerprint, mesh=None, target=None, hardware="a100"), stored=made)


def test_a_stored_plan_of_hardware_without_figures_is_refused() -> None:
    made = plan(target="cpu:8")
    with pytest.raises(PlanInfeasibleError, match="the devices are cpu"):
        estimate_request(build(plan=made.fingerprint, mesh=None, target=None), stored=made)


def test_a_stored_plan_of_a_host_that_no_table_has_is_refused_by_the_plan() -> None:
    made = plan(target="h100:8")
    six = made.granules[0].model_copy(update={"device_count": 6})
    there = made.model_copy(update={"target": None, "granules": (six,)})
    with pytest.raises(InvalidRequestError, match="is of hardware of no table") as refused:
        estimate_request(build(plan=made.fingerprint, mesh=None, target=None), stored=there)
    assert [error["field"] for error in refused.value.errors] == ["plan"]


def test_hardware_beside_devices_of_no_known_chip_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'h100' stands beside this host, which is of no known chip"):
        check_batch_hardware(BatchSizeRequest(hardware="h100", model="llama3-8b"), None, "this host")


def test_a_target_beside_hardware_is_a_target_of_it() -> None:
    for hardware in ("h100", "H100"):
        request = BatchSizeRequest(hardware=hardware, target="h100:8")
        assert name_batch_hardware(request) == request
    with pytest.raises(InvalidRequestError, match="hardware 'h100' stands beside target v5e:4x4, which is v5e"):
        name_batch_hardware(BatchSizeRequest(hardware="h100", target="v5e:4x4"))
    with pytest.raises(PlanInfeasibleError, match="no chip and no slice is called x"):
        name_batch_hardware(BatchSizeRequest(hardware="h100", target="x"))
