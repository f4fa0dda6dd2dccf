"""Jobs of small steps, for tests that ask XLA's real compilers in a child."""

from __future__ import annotations

import math
from typing import Any

from meshwright.compiling.request import compile_in_child
from meshwright.planning.compile_job import CompileJob, CompileMesh, CompileTarget
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.verification import Verification

V5E = CompileTarget(platform="tpu", chip="v5e", shape=(2, 2), name="v5e:2x2")
TWO_SLICES = CompileTarget(platform="tpu", chip="v5e", shape=(2, 2), granules=2, name="2*v5e:2x2")
CPU = CompileTarget(platform="cpu", chip="cpu", shape=(4,), name="cpu:4")


def build_job(
    target: CompileTarget, mesh: dict[str, int], model: ModelSpec, training: TrainingSpec, **fields: Any
) -> CompileJob:
    """Returns a job on all devices of a target in plain order; the first axes are the ones between granules."""
    count = math.prod(mesh.values())
    places = tuple(divmod(index, count // target.granules) for index in range(count))
    types: dict[str, Any] = dict.fromkeys(mesh, "auto")
    placed = CompileMesh(shape=mesh, axis_types=types, places=places)
    return CompileJob(target=target, mesh=placed, model=model, training=training, **fields)


def verify(job: CompileJob) -> Verification:
    found = compile_in_child(job, limit_s=280)
    assert isinstance(found, Verification)
    return found


def fit(job: CompileJob) -> CompiledBatch:
    found = compile_in_child(job.model_copy(update={"search": "largest_batch"}), limit_s=280)
    assert isinstance(found, CompiledBatch), found
    return found
