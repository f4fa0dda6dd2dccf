"""Which meshes cut a model into equal parts, and what is offered for those that do not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError, PlanInfeasibleError, RequestError
from meshwright.planning.models import read_model
from meshwright.planning.parallelism import check_divides
from meshwright.planning.request import answer_request
from meshwright.spec import MeshSpec
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.fakes.asking import ask_planner
from tests.fakes.codes import has_code
from tests.unit.planning.models import models

LLAMA = read_model("llama3-70b")
MIXTRAL = read_model("mixtral-8x7b")
TRAINING = TrainingSpec(global_batch_size=64, seq_len=8192)


def refuse(model: ModelSpec, training: TrainingSpec, mesh: dict[str, int]) -> PlanInfeasibleError:
    with pytest.raises(PlanInfeasibleError, check=has_code("does_not_divide")) as refused:
        check_divides(model, training, mesh)
    return refused.value


def list_wrong(model: ModelSpec, training: TrainingSpec, mesh: dict[str, int]) -> list[str]:
    """The messages of a mesh, none where it divides."""
    try:
        check_divides(model, training, mesh)
    except PlanInfeasibleError as refused:
        return [error["message"] for error in refused.errors]
    return []


def read_thing(message: str) -> str:
    """What a message says is not divided, or is less."""
    return re.split(" does not divide | is more than ", message)[1].split()[0]


@pytest.mark.parametrize(("model", "mesh", "message", "legal"), [
    (LLAMA, {"tp": 24}, "tp:24 does not divide num_attention_heads 64", {"tp": [2, 4, 8, 16]}),
    (LLAMA, {"cp": 3}, "cp:3 does not divide seq_len 8192", {"cp": [1, 2]}),
    (LLAMA, {"pp": 96}, "pp:96 is more than num_hidden_layers 80", {"pp": [16, 20, 40, 80]}),
    (LLAMA, {"dp": 3}, "dp:3 does not divide global_batch_size 64", {"dp": [1, 2]}),
    (MIXTRAL, {"ep": 3}, "ep:3 does not divide num_experts 8", {"ep": [1, 2]}),
    (LLAMA, {"fsdp": 3}, "fsdp:3 does not divide hidden_size 8192", {"fsdp": [1, 2]}),
    (LLAMA, {"tp": 3, "mp": 2}, "tp:3 × mp:2 = 6 does not divide num_attention_heads 64", {"tp × mp": [1, 2, 4]}),
    (LLAMA, {"dp": 4, "fsdp": 32}, "dp:4 × fsdp:32 = 128 does not divide global_batch_size 64",
     {"dp": [1, 2], "fsdp": [2, 4, 8, 16]}),
])  # fmt: skip
def test_an_axis_that_does_not_divide_is_told(model: ModelSpec, mesh: dict[str, int], message: str, legal: Any) -> None:
    refused = refuse(model, TRAINING, mesh)
    entry = next(error for error in refused.errors if error["message"] == message)
    assert entry["field"] == "mesh"
    assert entry["legal"] == legal
    assert refused.hint.startswith("use ") or all(f"{name} may be " in refused.hint for name in legal)


def test_all_that_does_not_divide_is_told_in_one_refusal_always_alike() -> None:
    mesh = {"pp": 96, "dp": 3, "tp": 48, "cp": 5}
    first, second = refuse(LLAMA, TRAINING, mesh), refuse(LLAMA, TRAINING, dict(reversed(mesh.items())))
    assert [read_thing(error["message"]) for error in first.errors] == [
        "num_attention_heads", "intermediate_size", "seq_len", "num_hidden_layers", "global_batch_size",
    ]  # fmt: skip
    assert first.errors == second.errors
    assert "more)" in first.detail


@pytest.mark.parametrize(("mesh", "devices", "hint"), [
    ("tp:24", 24, "use dp:3,tp:8"), ("tp:128", 128, "use fsdp:16,tp:8"), ("fsdp:24", 24, "use dp:3,fsdp:8"),
    ("fsdp:8", 24, "use dp:3,fsdp:8"), ("tp:8", 128, "use fsdp:16,tp:8"),
])  # fmt: skip
def test_a_hint_is_a_mesh_of_all_devices_that_cuts_the_model(mesh: str, devices: int, hint: str) -> None:
    training = {"global_batch_size": 192, "seq_len": 8192}
    request = PlanRequest(mesh=mesh, model="llama3-70b", training=training, target=f"{devices // 8}*h100:8")
    with pytest.raises(PlanInfeasibleError) as refused:
        answer_request(request)
    assert refused.value.hint.startswith(hint)
    answer_request(request.model_copy(update={"mesh": hint.removeprefix("use ")}))


@pytest.mark.parametrize(("model", "tensor", "named"), [
    ("deepseek3-671b", 256, ["num_attention_heads"]),
    ("deepseek2-16b", 256, ["num_attention_heads", "intermediate_size", "moe_intermediate_size"]),
    ("llama4-17b-16e", 5, ["num_key_value_heads", "moe_intermediate_size", "vocab_size"]),
    ("llama4-17b-128e", 5, ["num_key_value_heads", "intermediate_size", "moe_intermediate_size", "vocab_size"]),
])  # fmt: skip
def test_each_block_is_cut_and_latent_attention_has_no_kv_heads(model: str, tensor: int, named: list[str]) -> None:
    wrong = list_wrong(read_model(model), TRAINING, {"tp": tensor})
    assert [read_thing(message) for message in wrong] == named


@pytest.mark.parametrize(("model", "training", "mesh", "message", "hint"), [
    ("llama3-8b", {}, {"x": 2, "y": 3}, "x:2, y:3 has no known role", "fsdp"),
    ("llama3-8b", {}, {"ep": 2}, "the model has none", "dp"),
    ("gpt2", {"seq_len": 2048}, {"dp": 2}, "max_position_embeddings 1024", "1024 or less"),
])  # fmt: skip
def test_what_a_model_has_no_use_for_is_invalid(model: str, training: Any, mesh: Any, message: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refused:
        check_divides(read_model(model), TrainingSpec(global_batch_size=6, **training), mesh)
    assert hint in refused.value.hint


AXES = ["dp", "fsdp", "sp", "tp", "pp", "ep"]
OF_ROLE = {
    "tp": ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "vocab_size"),
    "dp": ("global_batch_size",), "fsdp": ("hidden_size", "global_batch_size"),
    "ep": ("num_experts", "global_batch_size"), "sp": ("seq_len",), "pp": ("num_hidden_layers",),
}  # fmt: skip


ANY = st.integers(1, 512)


@given(models(), ANY, st.integers(1, 4), ANY, st.dictionaries(st.sampled_from(AXES), st.integers(1, 12), max_size=4))
def test_offered_sizes_really_pass(model: ModelSpec, batch: int, accumulation: int, sequence: int, mesh: Any) -> None:
    assume(model.num_experts or mesh.get("ep", 1) == 1)
    assume(model.positions == "rope" or sequence <= (model.max_position_embeddings or 0))
    training = TrainingSpec(global_batch_size=batch, seq_len=sequence, gradient_accumulation_steps=accumulation)
    try:
        check_divides(model, training, mesh)
    except PlanInfeasibleError as refused:
        for error in refused.errors:
            for name, sizes in error["legal"].items():
                for size in sizes:
                    check_offer(model, training, mesh, (name, size), error["message"])
                    assert size <= math.prod(mesh.values())
        if refused.hint.startswith("use "):
            whole = MeshSpec.parse(refused.hint[4:].split(";")[0])
            check_divides(model, training, dict(whole.axes))
            assert whole.device_count == math.prod(mesh.values())


def check_offer(model: ModelSpec, training: TrainingSpec, mesh: dict[str, int], offer: Any, message: str) -> None:
    """The rule that was broken holds with the offer, and what is broken still on this axis no size of it mends."""
    name, size = offer
    left = {read_thing(wrong) for wrong in list_wrong(model, training, {**mesh, name: size})}
    hopeless = {read_thing(wrong) for wrong in list_wrong(model, training, {**mesh, name: 1})}
    assert read_thing(message) not in left
    assert left & set(OF_ROLE[name]) <= hopeless


@given(models(), st.dictionaries(st.sampled_from(["dp", "tp", "fsdp"]), st.integers(1, 9), max_size=3))
def test_it_passes_exactly_where_everything_divides(model: ModelSpec, mesh: dict[str, int]) -> None:
    training = TrainingSpec(global_batch_size=72, seq_len=1)
    tensor, fsdp = mesh.get("tp", 1), mesh.get("fsdp", 1)
    inner = model.expert_size if model.num_experts else model.intermediate_size
    cut = all(size % tensor == 0 for size in (model.num_attention_heads, inner, model.vocab_size))
    kv_cut = model.kv_heads % tensor == 0 or tensor % model.kv_heads == 0
    divides = cut and kv_cut and model.hidden_size % fsdp == 0 and 72 % (mesh.get("dp", 1) * fsdp) == 0
    assert (not list_wrong(model, training, mesh)) == divides


@pytest.mark.parametrize(("model", "target", "batch", "mesh", "works"), [
    ("llama3-8b", "2*h100:8", 12, "fsdp:4", "use fsdp:4,tp:4 or fsdp:-1,tp:4"),
    ("llama3-8b", "2*h100:8", 12, "fsdp:16", "use fsdp:4,tp:4"),
    ("mixtral-8x7b", "cpu:6", 64, "tp:1,ep:4", "no near mesh cuts the model into equal parts; POST /mesh/search"),
])  # fmt: skip
def test_what_is_offered_cuts_the_model(model: str, target: str, batch: int, mesh: str, works: str) -> None:
    asked = {"model": model, "target": target, "training": {"global_batch_size": batch, "seq_len": 1024}}
    with pytest.raises(RequestError) as refused:
        ask_planner(**asked, mesh=mesh)
    assert refused.value.hint.startswith(works)
    if works.startswith("use "):
        assert ask_planner(**asked, mesh=works.split()[1].rstrip(";")).plans
