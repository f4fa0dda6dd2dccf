"""PartitionSpecs as Python: the text runs, and its specs are those of the step that is compiled, leaf by leaf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.exports import _WRITERS
from meshwright.wire.mesh import ExportName
from tests.unit.planning.exports.asking import EXPERTS, TINY, export, make_plan

CHECK = """
import json, sys
import jax, numpy as np
from jax.sharding import PartitionSpec as P
from meshwright.compiling.step import build_step
from meshwright.wire.model import ModelSpec, TrainingSpec

def is_spec(leaf):
    return isinstance(leaf, P)

for case in json.load(sys.stdin):
    found = {}
    exec(compile(case["text"], "<export>", "exec"), found)
    assert found["mesh"].shape == case["mesh"], found["mesh"]
    training = TrainingSpec.model_validate(case["training"])
    built = build_step(ModelSpec.model_validate(case["model"]), training, found["mesh"])
    state, batch = built.arguments
    for name in set(state) - {"count"}:
        specs, paths = jax.tree.flatten_with_path(found["PARAMETERS"], is_leaf=is_spec)
        leaves, same = jax.tree.flatten_with_path(state[name])
        assert paths == same, (paths, same)
        for (path, spec), (_, leaf) in zip(specs, leaves, strict=True):
            assert spec == leaf.sharding.spec, (case["mesh"], path, spec, leaf.sharding.spec)
    for leaf in batch.values():
        assert found["BATCH"] == leaf.sharding.spec
        assert leaf.shape == (
            found["MICRO_BATCHES"], found["GLOBAL_BATCH"] // found["MICRO_BATCHES"], found["SEQUENCE_LENGTH"]
        )
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), state["weights"])
    placed = jax.device_put(zeros, found["shard"](found["PARAMETERS"]))
    for leaf, wanted in zip(jax.tree.leaves(placed), jax.tree.leaves(state["weights"]), strict=True):
        assert leaf.sharding == wanted.sharding
        assert len(leaf.addressable_shards) == 8
    tokens = jax.device_put(np.zeros(batch["tokens"].shape, np.int32), found["shard"](found["BATCH"]))
    assert tokens.sharding == batch["tokens"].sharding
    for name in ("nothing_saveable", "everything_saveable", "dots_with_no_batch_dims_saveable"):
        if case["policy"] == name:
            assert found["REMAT_POLICY"] is getattr(jax.checkpoint_policies, name)
    assert callable(found["REMAT_POLICY"])
print("held", len(sys.argv))
"""
"""Runs each text in a process with 8 CPU devices, and holds it against the step that is built on its mesh."""

MOE = {**TINY, **EXPERTS}
LEARNED = {"positions": "learned", "max_position_embeddings": 64, "norm": "layernorm", "gated": False}
BIASED = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "qk_norm": True}
CASES: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("fsdp:8", TINY, {}, "nothing_saveable"),
    ("dp:2,fsdp:4", {**TINY, "tie_word_embeddings": True}, {"remat": "none"}, "everything_saveable"),
    ("tp:8", {**TINY, **BIASED}, {"remat": "minimal"}, "dots_with_no_batch_dims_saveable"),
    ("fsdp:2,cp:2,tp:2", {**TINY, **LEARNED}, {"gradient_accumulation_steps": 2}, "nothing_saveable"),
    ("data:2,model:4", {**TINY, "num_key_value_heads": 2}, {"scan_layers": False}, "nothing_saveable"),
    ("fsdp:2,ep:2,tp:2", {**MOE, "num_shared_experts": 1}, {"remat": "minimal"}, "of experts"),
    ("fsdp:2,ep:4", {**MOE, "moe_intermediate_size": 32}, {"optimizer": "sgd"}, "nothing_saveable"),
    ("tp:8", {**TINY, "hidden_size": 36, "head_dim": 8, "num_key_value_heads": 1}, {}, "nothing_saveable"),
    ("fsdp:4,cp:2", {**TINY, "hidden_size": 36, "head_dim": 8}, {"remat": "offload"}, "save_and_offload_only_these"),
)


def test_each_export_has_a_writer() -> None:
    assert set(_WRITERS) == set(get_args(ExportName))


def build_case(mesh: str, model: dict[str, Any], training: dict[str, Any], policy: str) -> dict[str, Any]:
    plan, spec, trained = make_plan(mesh=mesh, model=model, training=training)
    text = export("jax", mesh=mesh, model=model, training=training)
    said = {"model": spec.model_dump(), "training": trained.model_dump()}
    return {"text": text, "mesh": plan.mesh_shape, "policy": policy, **said}


def test_the_text_runs_and_its_specs_are_those_of_the_compiled_step(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text(CHECK, encoding="utf-8")
    environment = {**os.environ, **make_plan(mesh="dp:8")[0].environment}
    cases = json.dumps([build_case(*case) for case in CASES])
    ran = subprocess.run(
        [sys.executable, str(script)], input=cases, capture_output=True, text=True, env=environment, timeout=300
    )
    assert (ran.returncode, ran.stdout) == (0, "held 1\n"), ran.stderr


def test_names_from_outside_stand_in_it_as_literals() -> None:
    name = "a'; import this #"
    text = export("jax", mesh="fsdp:8", model={**TINY, "name": name})
    assert f"# How {name!r} is trained on it." in text
    with pytest.raises(InvalidRequestError, match="one line"):
        export("jax", mesh="fsdp:8", model={**TINY, "name": "a\nimport this"})


def test_a_mesh_over_several_hosts_binds_its_plan() -> None:
    text = export("jax", mesh="fsdp:8", target="2*cpu:4")
    assert "from meshwright import load_plan" in text
    assert "mesh = build_mesh(load_plan())" in text
    assert text.index("import jax") < text.index("jax.checkpoint_policies")
