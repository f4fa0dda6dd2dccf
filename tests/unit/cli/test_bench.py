from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meshwright import errors
from meshwright.wire.bench import BenchRecord, BenchResult, LatestBench, Skipped
from tests.fakes.scripted import end_run
from tests.fakes.stored import build_record
from tests.unit.cli.conftest import CommandLine


def _build_result(meshwright: CommandLine, *records: BenchRecord, **changes: Any) -> BenchResult:
    return BenchResult(
        suite="quick", platform="cpu", device_kind="cpu", device_count=8, jax="0.10.0", jaxlib="0.10.0",
        started_at=datetime.now(UTC), duration_s=12.0, records=records, **changes,
    )  # fmt: skip


def _end(meshwright: CommandLine, outcome: BenchResult | errors.ProblemError | None) -> None:
    """Lets benches end so; None: not at all."""
    meshwright.fake.answer("POST", "/placement/bench", end_run(outcome))


def test_records_show_bandwidth_spread_and_whether_they_were_right(meshwright: CommandLine) -> None:
    figures: dict[str, Any] = {"device_indices": range(8), "size_bytes": 2**20, "p10_s": 0.9e-3, "p90_s": 1.1e-3}
    figures["algbw_bytes_per_s"] = 1.05e9
    reduced = build_record(axis="x", axis_size=8, busbw_bytes_per_s=1.84e9, **figures)
    multiplied = build_record(case="matmul", axis=None, axis_size=None, flops_per_s=1e12, **figures)
    _end(meshwright, _build_result(meshwright, reduced, multiplied))
    printed = meshwright("bench", "--case", "all-reduce", "--case", "matmul")
    assert (printed.code, printed.err) == (0, "")
    rows = {line.split()[0]: line for line in printed.out.splitlines() if "MiB" in line}
    assert set(rows) == {"all_reduce", "matmul"}
    assert rows["all_reduce"].split()[1:3] == ["0-7", "x:8"]
    assert "900 µs … 1.1 ms" in rows["all_reduce"]
    assert "1.84 GB/s" in rows["all_reduce"]
    assert "1 TFLOP/s" in rows["matmul"]
    assert all(row.rstrip().endswith("ok") for row in rows.values())


@pytest.mark.parametrize(("arguments", "field", "value"), [
    (("--suite", "full"), "suite", "full"), (("--case", "matmul"), "cases", ["matmul"]),
    (("--devices", "0,1"), "devices", [0, 1]),
])  # fmt: skip
def test_every_option_reaches_the_agent(
    meshwright: CommandLine, arguments: tuple[str, ...], field: str, value: object
) -> None:
    meshwright("bench", *arguments)
    assert meshwright.body(0)[field] == value


@pytest.mark.parametrize(("request_", "words"), [
    ({"samples": 1}, "samples"), ({"tier": "full"}, "tier"), ({"on_progress": 1}, "on_progress"),
])  # fmt: skip
def test_a_wrong_field_of_a_request_is_2_and_named(
    meshwright: CommandLine, tmp_path: Path, request_: dict[str, Any], words: str
) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(request_))
    printed = meshwright("bench", "--request", str(file))
    assert (printed.code, words in printed.err, meshwright.fake.requests) == (2, True, [])


@pytest.mark.parametrize("arguments", [("--case", "sums"), ("--suite", "small"), ("--devices", "a")])
def test_a_wrong_value_is_2_and_starts_nothing(meshwright: CommandLine, arguments: tuple[str, ...]) -> None:
    assert meshwright("bench", *arguments).code == 2
    assert meshwright.fake.requests == []


def test_a_wrong_result_is_1_and_says_how_many(meshwright: CommandLine) -> None:
    _end(meshwright, _build_result(meshwright, build_record(wrong_elements=3, correct=False)))
    printed = meshwright("bench")
    assert (printed.code, "3 wrong" in printed.out) == (1, True)


def test_what_was_skipped_is_told_and_nothing_measured_is_1(meshwright: CommandLine) -> None:
    skipped = Skipped(case="all_reduce", reason="one device has nobody to reduce with")
    _end(meshwright, _build_result(meshwright, skipped=(skipped,)))
    printed = meshwright("bench")
    assert printed.code == 1
    assert "skipped all_reduce: one device has nobody to reduce with" in printed.out
    assert "warning: nothing was measured" in printed.err


def test_json_is_the_result_of_the_run(meshwright: CommandLine) -> None:
    printed = meshwright("bench", "--format=json")
    with meshwright.fake.client() as client:
        run = client.runs().runs[0]
        assert printed.json == client.run(run.id).result
    shown = meshwright("runs", "show", run.id).out
    assert all(record["case"] in shown for record in printed.json["records"])


def test_latest_tells_the_age_of_records_and_is_1_without_any(meshwright: CommandLine) -> None:
    assert meshwright("bench", "--latest").code == 1
    meshwright.fake.answer("GET", "/placement/bench", LatestBench(records=(build_record(),)))
    assert meshwright("bench", "--latest").out.splitlines()[0].endswith("age")
    assert meshwright("bench", "--latest", "--case", build_record().case, "--devices", "0,1,2,3,4,5,6,7").code == 0
    assert meshwright("bench", "--latest", "--case", "permute").code == 1
    assert meshwright("bench", "--latest", "--devices", "0").code == 1  # the record is of two devices


@pytest.mark.parametrize("outcome", [
    errors.UnavailableError("it died", log=["Fatal Python error"], code="worker_failed"),
    errors.RunFailedError("released", code="run_cancelled"),
])  # fmt: skip
def test_a_run_that_failed_or_was_cancelled_is_1(meshwright: CommandLine, outcome: errors.ProblemError) -> None:
    _end(meshwright, outcome)
    printed = meshwright("bench")
    assert (printed.code, printed.out) == (1, "")
    assert outcome.detail in printed.err
    assert all(f"  log: {line}" in printed.err for line in outcome.log)


def test_an_interrupt_cancels_the_run_and_is_130(meshwright: CommandLine) -> None:
    def interrupt(delay_s: float) -> None:
        raise KeyboardInterrupt

    _end(meshwright, None)
    meshwright.pause = interrupt
    printed = meshwright("bench")
    assert printed.code == 130
    with meshwright.fake.client() as client:
        assert [run.state for run in client.runs().runs] == ["cancelled"]
