"""The suite on real JAX devices: 8 virtual CPU devices, and one, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.wire.bench import BenchRecord, BenchResult
from meshwright.wire.runs import Progress
from meshwright_agent.bench.scope import CASES, COLLECTIVE_CASES
from meshwright_agent.children.bench.collectives import KINDS

JOB = Path(__file__).with_name("bench_job.py")
LIMIT_S = 240.0

SMALL: dict[str, Any] = {"sizes_bytes": [100_000], "matmul_size": 65, "samples": 3}
MESH = {**SMALL, "mesh": "dp:2,tp:4", "devices": [7, 6, 5, 4, 3, 2, 1, 0], "dtype": "bfloat16"}
SUBSET = {**SMALL, "devices": [5, 2], "dtype": "float16"}
TINY = {"sizes_bytes": [4], "samples": 3, "mesh": "a:2,b:2,c:2", "cases": [*COLLECTIVE_CASES, "shard_batch"]}
FULL = {**SMALL, "suite": "full", "cases": ["device_to_device", "host_to_device"]}


def run_job(mode: str, requests: list[dict[str, Any]], *, devices: int) -> Any:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    environment.pop("XLA_FLAGS", None)
    command = [sys.executable, "-W", "error", str(JOB), mode]
    kept: dict[str, Any] = {"env": environment, "capture_output": True, "text": True, "timeout": LIMIT_S}
    done = subprocess.run(command, input=json.dumps(requests), **kept)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_suites(requests: list[dict[str, Any]], *, devices: int) -> list[tuple[BenchResult, list[dict[str, Any]]]]:
    answers = run_job("suite", requests, devices=devices)
    return [(BenchResult.model_validate(answer["result"]), answer["updates"]) for answer in answers]


@pytest.fixture(scope="module")
def eight() -> dict[str, tuple[BenchResult, list[dict[str, Any]]]]:
    requests = {"quick": {}, "mesh": MESH, "subset": SUBSET, "tiny": TINY, "full": FULL}
    return dict(zip(requests, run_suites(list(requests.values()), devices=8), strict=True))


@pytest.fixture(scope="module")
def one() -> tuple[BenchResult, float, float]:
    """The cases beside which NumPy's figures are put, and those, from the same minute."""
    request = {"cases": [*CASES], "matmul_size": 1024, "samples": 15}
    [(result, _)] = run_suites([request], devices=1)
    return result, measure_numpy_copy(), measure_numpy_matmul()


def measure_numpy_copy(size: int = 32 << 20) -> float:
    source, target = np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)
    return 2 * size / best(lambda: np.copyto(target, source))


def measure_numpy_matmul(n: int = 1024) -> float:
    matrix = np.random.default_rng(0).standard_normal((n, n)).astype(np.float32)
    return 2 * n**3 / best(lambda: np.matmul(matrix, matrix))


def best(call: Any) -> float:
    return min(timeit.repeat(call, repeat=9, number=1))


def of_case(result: BenchResult, case: str) -> list[BenchRecord]:
    return [record for record in result.records if record.case == case]


def test_an_empty_request_measures_all_cases_within_20_seconds(eight: Any) -> None:
    result, _ = eight["quick"]
    assert [record.case for record in result.records] == list(CASES)
    assert result.skipped == ()
    assert result.duration_s < 20
    assert (result.platform, result.device_count, result.device_kind) == ("cpu", 8, "cpu")
    assert [notice.code for notice in result.warnings] == ["virtual_devices"]


@pytest.mark.parametrize("name", ["quick", "mesh", "subset", "tiny", "full"])
def test_every_result_is_right_and_every_sample_is_there(eight: Any, name: str) -> None:
    result, _ = eight[name]
    assert result.records
    for record in result.records:
        assert (record.wrong_elements, record.correct) == (0, True), record
        assert len(record.samples_s) == (10 if name == "quick" else 3)
        assert all(took > 0 for took in record.samples_s)
        assert record.p10_s <= record.median_s <= record.p90_s
        assert record.basis == "measured"


def test_collectives_run_over_each_axis_of_the_mesh_and_stand_in_the_compiled_text(eight: Any) -> None:
    result, _ = eight["mesh"]
    found = [record for record in result.records if record.case in COLLECTIVE_CASES]
    axes = Counter((record.case, record.axis, record.axis_size) for record in found)
    assert axes == {(case, *axis): 1 for case in COLLECTIVE_CASES for axis in (("dp", 2), ("tp", 4))}
    for record in found:
        assert record.correct
        assert record.device_indices == (7, 6, 5, 4, 3, 2, 1, 0)
        factor = KINDS[record.case].factor(record.axis_size)
        assert record.busbw_bytes_per_s == pytest.approx(record.algbw_bytes_per_s * factor)


def test_collectives_of_the_smallest_size_still_give_each_rank_an_element(eight: Any) -> None:
    result, _ = eight["tiny"]
    assert {record.axis for record in result.records} == {"a", "b", "c", None}
    assert {record.size_bytes for record in result.records if record.axis} == {8}


def test_only_the_named_devices_take_part_each_by_itself_and_in_pairs(eight: Any) -> None:
    result, _ = eight["subset"]
    assert {record.device_indices for record in result.records} == {(5,), (2,), (5, 2), (2, 5)}
    assert [record.device_indices for record in of_case(result, "matmul")] == [(5,), (2,)]
    assert {record.dtype for record in result.records} == {"float16"}


def test_the_full_suite_measures_every_device_and_every_pair(eight: Any) -> None:
    result, _ = eight["full"]
    pairs = {record.device_indices for record in of_case(result, "device_to_device")}
    assert len(pairs) == 56
    assert len(of_case(result, "host_to_device")) == 8


def test_each_trial_is_announced_and_each_record_told_as_soon_as_it_is_there(eight: Any) -> None:
    result, updates = eight["quick"]
    steps = [Progress.model_validate(update) for update in updates if "record" not in update]
    assert [step.done for step in steps] == list(range(13))
    assert {step.total for step in steps} == {12}
    assert steps[0].message.startswith("host_to_device: 4194304 bytes on device 0")
    told = [BenchRecord.model_validate(update["record"]) for update in updates if "record" in update]
    assert told == list(result.records)
    assert "record" in updates[1]


@pytest.fixture(scope="module")
def in_vain() -> dict[str, Any]:
    """Requests of which nothing can be measured."""
    requests = {"hurried": {"max_s": 1e-4}, "alone": {"cases": ["all_reduce", "device_to_device"]}}
    answers = run_job("suite", list(requests.values()), devices=1)
    return dict(zip(requests, answers, strict=True))


def test_a_run_in_which_nothing_was_measured_fails_with_every_reason(in_vain: dict[str, Any]) -> None:
    failure, updates = in_vain["hurried"]["failure"], in_vain["hurried"]["updates"]
    assert failure["detail"].startswith("nothing was measured: ")
    assert all(f"{case}: " in failure["detail"] for case in CASES)
    assert failure["detail"].count("time limit of 0.0001 s") == 6
    assert '"max_s"' in failure["hint"]
    assert updates[-1] == {"done": 6, "total": 6, "message": "0 measured, 6 not"}


def test_a_run_that_needs_more_devices_than_are_here_fails_with_that_reason(in_vain: dict[str, Any]) -> None:
    failure = in_vain["alone"]["failure"]
    assert "at least 2 devices" in failure["detail"]
    assert "max_s" not in failure["hint"]
    assert "more devices" in failure["hint"]


def test_one_device_skips_what_needs_two_with_the_reason(one: Any) -> None:
    result, _, _ = one
    assert {entry.case for entry in result.skipped} == COLLECTIVE_CASES | {"device_to_device"}
    for entry in result.skipped:
        assert "2 devices" in entry.reason
    assert {record.case for record in result.records} == set(CASES) - {entry.case for entry in result.skipped}
    assert result.warnings == ()


def test_memory_bandwidth_and_matmul_are_within_a_wide_factor_of_numpys(one: Any) -> None:
    """NumPy copies and multiplies with BLAS in this process; wide, since the machine is shared."""
    result, numpy_copy, numpy_matmul = one
    [memory], [matmul] = (of_case(result, case) for case in ("memory_bandwidth", "matmul"))
    assert 1 / 20 < memory.algbw_bytes_per_s / numpy_copy < 20
    assert 1 / 20 < matmul.flops_per_s / numpy_matmul < 20


def test_wrong_results_and_missing_collectives_are_found() -> None:
    found = run_job("sabotage", [], devices=8)
    right = {name for name, outcome in found.items() if outcome["correct"]}
    assert right == {"right", "sent right", "moved right"}
    assert all(found[name]["wrong_elements"] for name in ("over the other axis", "a maximum", "the wrong way round"))
    counts = {"sent with a flipped byte": 1, "read with a flipped byte": 1, "moved elsewhere": 1024}
    assert {name: found[name]["wrong_elements"] for name in counts} == counts
