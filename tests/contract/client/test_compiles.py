"""Plans and batch sizes that ask the compiler: 200 where the answer is kept, else 202 and a run that is waited for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwright.errors import InvalidMeshError
from meshwright.testing import FakeAgent
from meshwright.wire.mesh import Plan
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.runs import Progress
from tests.contract.client.both import Kind, ask, both
from tests.fakes.scripted import compile_with

SPEC = ModelSpec(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=8, head_dim=16
)
TRAINING = TrainingSpec(global_batch_size=8, seq_len=128)
ASKED: dict[str, Any] = {"model": SPEC, "training": TRAINING, "compile": True}


def bodies(fake: FakeAgent, path: str) -> list[Any]:
    return [json.loads(request.content) for request in fake.requests if request.url.path == path]


@both
def test_a_plan_that_asks_the_compiler_waits_for_its_word(kind: Kind) -> None:
    fake, heard = FakeAgent(), list[Progress]()
    compile_with(fake)
    plan = ask(kind, fake, lambda client: client.plan("dp:2,tp:4", **ASKED, on_progress=heard.append))
    assert plan.verification.status == "verified"
    assert heard == [Progress(done=1, total=1, message="compiled")]
    model, training = SPEC.model_dump(mode="json", exclude_defaults=True), {"global_batch_size": 8, "seq_len": 128}
    asked = {"mesh": "dp:2,tp:4", "model": model, "training": training, "compile": True}
    assert bodies(fake, "/mesh/plan") == [asked]
    assert ask(kind, fake, lambda client: client.runs()).runs[0].kind == "plan"


# ---- batch sizes ----


@both
def test_the_largest_batch_comes_with_the_table(kind: Kind) -> None:
    fake = FakeAgent("h100:8")
    compile_with(fake)
    question = {"model": SPEC, "mesh": {"fsdp": 8}, "training": {"seq_len": 128}, "compile": True}
    advice = ask(kind, fake, lambda client: client.batch_size(**question))
    assert (advice.table.optimal_batch_size, advice.compiled.per_replica_batch_size) == (320, 8)
    assert advice.compiled.verification.status == "verified"
    (body,) = bodies(fake, "/batch-size")
    assert body["mesh"] == "fsdp:8"
    assert body["training"] == {"seq_len": 128}


def test_a_plan_may_stand_for_mesh_and_target() -> None:
    fake = FakeAgent("h100:8")
    with fake.client() as client:
        plan = client.plan("fsdp:8")
        assert isinstance(plan, Plan)
        for named in (plan, plan.fingerprint):
            client.batch_size(model="llama3-8b", training={}, plan=named, compile=True)
    assert [body["plan"] for body in bodies(fake, "/batch-size")] == [plan.fingerprint] * 2


def test_a_training_spec_bounds_the_search() -> None:
    fake = FakeAgent("h100:8")
    with fake.client() as client:
        client.batch_size(model="llama3-8b", training=TRAINING, mesh="fsdp:8", compile=True)
        with pytest.raises(InvalidMeshError):
            client.batch_size(model="llama3-8b", training=TRAINING, mesh={"fsdp": 0}, compile=True)
    assert bodies(fake, "/batch-size")[0]["training"]["global_batch_size"] == 8
