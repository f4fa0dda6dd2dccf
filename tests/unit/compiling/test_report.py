"""Reports of real compiles: on CPU and TPU targets, in a child process each."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

from meshwright.compiling.hlo import StepEstimate
from meshwright.compiling.report import EFFICIENCY_RATIO, STAGES, count_attention_flops, estimate_step
from meshwright.compiling.request import compile_in_child
from meshwright.planning.tensors import count_parameters, list_tensors
from meshwright.wire.model import ModelSpec, TrainingSpec
from meshwright.wire.runs import Progress
from meshwright.wire.verification import Verification
from tests.process.slice_environment import needs_tpu_compiler
from tests.unit.compiling.step_jobs import CPU, TWO_SLICES, V5E, build_job, verify

MODEL = ModelSpec(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4)
TWO_LAYERS = MODEL.model_copy(update={"num_hidden_layers": 2})
TRAINING = TrainingSpec(global_batch_size=8, seq_len=128)
LONG = TrainingSpec(global_batch_size=4, seq_len=512)


@functools.cache
def verify_two_layers(**changes: Any) -> Verification:
    """Returns the report on `LONG`, whose layers are scanned and whose attention is in blocks, with these changes."""
    return verify(build_job(V5E, {"fsdp": 4}, TWO_LAYERS, LONG.model_copy(update=changes)))


def test_a_step_for_cpus_is_reported_with_memory_and_collectives() -> None:
    told: list[Progress] = []
    job = build_job(CPU, {"fsdp": 2, "tp": 2}, MODEL, TRAINING)
    found: Any = compile_in_child(job, on_progress=told.append)
    assert (found.status, found.target, found.reason) == ("verified", "cpu:4", None)
    assert found.parameter_count == count_parameters(MODEL)
    assert found.capacity_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    # Weights and two moments in float32, of which fsdp and tp leave a quarter; norms are whole; and the batch.
    whole = 3 * 4 * list_tensors(MODEL).measure("norms")
    state = whole + (3 * 4 * count_parameters(MODEL) - whole) // 4
    assert found.memory.argument_bytes == pytest.approx(state + 2 * 4 * 8 * 128 / 2, abs=64)
    assert found.memory.alias_bytes == pytest.approx(state, abs=64), "the state is donated"
    assert found.peak_memory_bytes >= found.memory.argument_bytes + (found.memory.temporary_bytes or 0)
    assert {each.axis for each in found.collectives} >= {"fsdp", "tp"}
    assert found.estimated_step_s is None, "only TPU compilers tell cycles"
    assert found.compile_s is not None
    assert {"jax", "jaxlib"} <= set(found.versions)
    assert [(each.done, each.total) for each in told[1:]] == [(done, STAGES) for done in range(STAGES)]


@pytest.mark.exhaustive
def test_a_step_above_the_capacity_that_a_job_has_does_not_fit() -> None:
    found = verify(build_job(CPU, {"fsdp": 4}, MODEL, TRAINING, capacity_bytes=10**6))
    assert found.status == "does_not_fit"
    assert found.needed_bytes == found.peak_memory_bytes
    assert f"needs {found.needed_bytes:,} bytes of a device's memory; a job may use 1,000,000" in str(found.reason)
    assert "fsdp" in str(found.reason)


@pytest.mark.exhaustive
@needs_tpu_compiler
def test_over_two_slices_the_gradients_alone_go_between_them() -> None:
    found = verify(build_job(TWO_SLICES, {"dp": 2, "fsdp": 4}, MODEL, TRAINING))
    assert (found.status, found.target) == ("verified", "2*v5e:2x2")
    sent = {axis: sum(each.bytes for each in found.collectives if each.axis == axis) for axis in ("dp", "fsdp")}
    # What a part of fsdp holds of the gradients: a quarter of the matrices, and the norms whole; XLA sums in bfloat16.
    count, norms = count_parameters(MODEL), list_tensors(MODEL).measure("norms")
    assert sent["dp"] == pytest.approx(2 * ((count - norms) / 4 + norms), rel=0.05)
    assert sent["fsdp"] > 2 * sent["dp"], "weights are gathered in each slice by itself"
    assert {each.group_size for each in found.collectives if each.axis == "dp"} == {2}
    assert found.estimated_step_s is not None


@pytest.mark.exhaustive
@needs_tpu_compiler
def test_a_step_of_unrolled_layers_is_the_step_of_scanned_ones() -> None:
    scanned, unrolled = verify_two_layers(), verify_two_layers(scan_layers=False)
    assert scanned.status == unrolled.status == "verified"
    assert scanned.parameter_count == unrolled.parameter_count == count_parameters(TWO_LAYERS)
    assert sum_bytes(unrolled) == {key: pytest.approx(size, rel=0.02) for key, size in sum_bytes(scanned).items()}
    assert unrolled.estimated_step_s == pytest.approx(scanned.estimated_step_s, rel=0.5)


def sum_bytes(found: Verification) -> dict[tuple[str, bool], float]:
    """Returns bytes by axis, gathers apart: XLA sums whole, or scatters, as it likes in each program."""
    sums: dict[tuple[str, bool], float] = {}
    for each in found.collectives:
        key = each.axis, each.op == "all-gather"
        sums[key] = sums.get(key, 0.0) + each.bytes
    return sums


@pytest.mark.exhaustive
@needs_tpu_compiler
def test_the_estimate_of_attention_in_blocks_is_that_of_a_fused_kernel() -> None:
    # 2 layers, 4 heads of 32, 1 sequence of 512 a device, at half of 197 TFLOP/s; forward, again, backward.
    flops = 4.5 * 2 * 512**2 * 128 * 2
    fused_s = count_attention_flops(TWO_LAYERS, LONG) / 4 / (197e12 * EFFICIENCY_RATIO)
    assert fused_s == pytest.approx(flops / (197e12 / 2), rel=0.01)
    compiled = StepEstimate(total_s=1.0, attention_s=0.25)
    assert estimate_step(compiled, fused_s) == 0.75 + fused_s
    assert estimate_step(compiled, None) == 1.0
    blocked, whole = verify_two_layers(), verify_two_layers(attention="xla")
    assert fused_s < (blocked.estimated_step_s or 0) < (whole.estimated_step_s or 0)
