"""What a compile is known by."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.compiling.compilers import build_key
from meshwright.planning.compile_job import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.model import ModelSpec, TrainingSpec

TARGET = CompileTarget(platform="tpu", chip="v5e", shape=(2, 2), name="v5e:2x2")
MESH = CompileMesh(shape={"dp": 4}, axis_types={"dp": "auto"}, places=((0, 0), (0, 1), (0, 2), (0, 3)))
MODEL = ModelSpec(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, name="a"
)
TRAINING = TrainingSpec(global_batch_size=8, seq_len=128)
JOB = CompileJob(target=TARGET, mesh=MESH, model=MODEL, training=TRAINING)


def change(**fields: Any) -> CompileJob:
    return JOB.model_copy(update=fields)


@pytest.mark.parametrize("job", [
    change(target=TARGET.model_copy(update={"twisted": True})),
    change(target=TARGET.model_copy(update={"chip": "v6e"})), change(target=TARGET.model_copy(update={"granules": 2})),
    change(mesh=MESH.model_copy(update={"shape": {"tp": 4}})),
    change(mesh=MESH.model_copy(update={"places": MESH.places[::-1]})),
    change(model=MODEL.model_copy(update={"hidden_size": 128})),
    change(training=TRAINING.model_copy(update={"global_batch_size": 16})), change(capacity_bytes=10**9),
    change(search="largest_batch"),
], ids=["twist", "chip", "granules", "axes", "order", "model", "batch", "capacity", "search"])  # fmt: skip
def test_whatever_changes_the_answer_changes_the_key(job: CompileJob) -> None:
    assert build_key(job) != build_key(JOB)


@pytest.mark.parametrize(("name", "matters"), [
    ("JAX_ENABLE_X64", True), ("JAX_DEFAULT_MATMUL_PRECISION", True), ("LIBTPU_INIT_ARGS", True),
    ("TPU_LIBRARY_PATH", True), ("XLA_PYTHON_CLIENT_MEM_FRACTION", False), ("JAX_COMPILATION_CACHE_DIR", False),
    ("JAX_PLATFORMS", False), ("HOME", False),
])  # fmt: skip
def test_the_environment_that_is_read_is_in_the_key(name: str, matters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    without = build_key(JOB)
    monkeypatch.setenv(name, "1")
    assert (build_key(JOB) != without) == matters
