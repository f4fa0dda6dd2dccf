"""Plans verified by XLA's CUDA compiler through the command, as README.md shows it; `make test-compile-cuda`."""

from __future__ import annotations

import json
import math
import subprocess
from importlib.util import find_spec
from typing import Any

import pytest

from tests.agents import MESHWRIGHT

pytestmark = [
    pytest.mark.skipif(
        find_spec("jax_plugins") is None or find_spec("jax_plugins.xla_cuda12") is None,
        reason="XLA's CUDA compiler is not installed: make test-compile-cuda",
    ),
    pytest.mark.timeout(600),
]

LAYERS, HIDDEN, SEQUENCE, ROWS = 80, 8192, 8192, 64
PARAMETERS = 70_553_706_496
"""Of Llama 3 70B, as its safetensors index says."""


def run_plan(*options: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code of `meshwright plan`, and the verification of its plan."""
    request = '{"training": {"remat": "full", "gradient_accumulation_steps": 1}}'
    command = [*MESHWRIGHT, "--format=json", "plan", "--offline", "--compile", "--request", "-", *options]
    done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=500, check=False)
    assert done.stdout, done.stderr
    [plan] = json.loads(done.stdout)["plans"]
    return done.returncode, plan["verification"]


def test_the_readmes_70b_on_512_h100_fits_and_communicates_as_counted_by_hand_on_cuda() -> None:
    mesh = ("fsdp:64,tp:8", "--target", "64*h100:8")
    status, found = run_plan(
        *mesh, "--model", "llama3-70b", "--global-batch-size", str(ROWS), "--seq-len", str(SEQUENCE)
    )
    assert (status, found["status"], found["parameter_count"]) == (0, "verified", PARAMETERS)
    assert found["capacity_bytes"] == int((81_559 - 768) * 2**20 * 0.92)  # of what CUDA offers, a plan's share
    state_bytes = 3 * 4 * PARAMETERS / 512
    assert state_bytes < found["memory"]["argument_bytes"] < 1.02 * state_bytes
    assert state_bytes < found["peak_memory_bytes"] < found["capacity_bytes"]
    by_kind = {(each["axis"], each["op"]): each for each in found["collectives"]}
    # A block gathers its input and scatters its output, [1, 8192, 8192] in bf16 on each fsdp part. Forward 2 + 2 a
    # layer, computed again 2 + 1 (the layer's own output is not needed again), backward 2 + 2.
    activation_bytes = ROWS // 64 * SEQUENCE * HIDDEN * 2
    gathers, scatters = by_kind["tp", "all-gather"], by_kind["tp", "reduce-scatter"]
    assert 6 * LAYERS <= gathers["count"] <= 6 * LAYERS + 5
    assert 5 * LAYERS <= scatters["count"] <= 5 * LAYERS + 5
    assert math.isclose(gathers["bytes"], 6 * LAYERS * activation_bytes, rel_tol=0.05)
    assert math.isclose(scatters["bytes"], 5 * LAYERS * activation_bytes, rel_tol=0.05)
    # Weights are gathered in bf16 for the forward pass and again for the backward one; each part of tp has an eighth.
    assert math.isclose(by_kind["fsdp", "all-gather"]["bytes"], 2 * 2 * PARAMETERS / 8, rel_tol=0.05)


def test_what_needs_more_than_the_jobs_share_of_a_gpu_does_not_fit_and_exits_1_on_cuda() -> None:
    options = ("fsdp:8,tp:8", "--target", "8*h100:8", "--model", "llama3-70b", "--seq-len", "8192")
    status, found = run_plan(*options, "--global-batch-size", "512")
    assert (status, found["status"]) == (1, "does_not_fit")
    assert found["needed_bytes"] == math.ceil(1.04 * found["peak_memory_bytes"]) > found["capacity_bytes"]
    assert f"{found['needed_bytes']:,} bytes (with 4% for what the card's own compile may add)" in found["reason"]
