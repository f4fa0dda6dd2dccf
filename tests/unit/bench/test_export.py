"""The two formats that other tools read."""

from __future__ import annotations

import json

import pytest

from meshwright.wire.bench import BenchRecord
from meshwright_agent.bench.export import MATRIX_LABELS, format_nccl_tests, format_nvbandwidth
from meshwright_agent.bench.scope import CASES, COLLECTIVE_CASES
from tests.unit.bench.records import make_collective, make_record


def all_records() -> list[BenchRecord]:
    return [
        make_collective(case) if case in COLLECTIVE_CASES else make_record(case, (0, 1))
        for case in CASES
        if case != "matmul"
    ]


def test_nccl_tests_has_the_collectives_with_microseconds_and_1e9_bytes_per_second() -> None:
    record = make_collective(took_s=2e-3, size=4_000_000, dtype="bfloat16")
    report = format_nccl_tests([record, make_record("host_to_device", (0,))])
    assert report["version"] == 1
    [result] = report["results"]
    assert (result["size"], result["count"], result["type"], result["redop"]) == (
        4_000_000,
        2_000_000,
        "bfloat16",
        "sum",
    )
    assert result["out_of_place"] == {
        "time": pytest.approx(2000.0),
        "alg_bw": pytest.approx(2.0),
        "bus_bw": pytest.approx(3.0),
        "nwrong": 0.0,
    }
    assert (result["in_place"], result["actual_iterations"]) == (None, 3)
    assert result["experiment_name"] == "all_reduce_jax_test over x:4"
    assert report["average_bus_bandwidth"] == {"bandwidth": pytest.approx(3.0), "okay": "unchecked"}


def test_nccl_tests_averages_over_all_results_and_counts_the_wrong_ones() -> None:
    good, bad = make_collective(took_s=1e-3, size=1_000_000), make_collective(took_s=1e-3, size=3_000_000, nwrong=5)
    report = format_nccl_tests([good, bad])
    assert report["average_bus_bandwidth"]["bandwidth"] == pytest.approx(3.0)
    assert report["out_of_bounds"] == {"count": 1, "okay": "false"}
    assert report["results"][1]["out_of_place"]["nwrong"] == 5.0
    assert (report["config"]["minimum_bytes"], report["config"]["maximum_bytes"]) == (1_000_000, 3_000_000)


def test_nccl_tests_lists_each_device_once_by_rank() -> None:
    config = format_nccl_tests([make_collective(count=2), make_collective("permute", count=4)])["config"]
    assert [(device["rank"], device["device"]) for device in config["devices"]] == [(i, i) for i in range(4)]
    assert {(device["hostname"], device["device_info"], device["pid"]) for device in config["devices"]} == {
        ("a", "cpu", None)
    }
    assert (config["ngpus"], config["warmup_iters"], config["iterations"]) == (4, 2, 3)


def test_only_sums_have_a_reduction() -> None:
    results = format_nccl_tests([make_collective(case) for case in sorted(COLLECTIVE_CASES)])["results"]
    redops = {result["experiment_name"].partition("_jax")[0]: result["redop"] for result in results}
    assert {case for case, redop in redops.items() if redop == "sum"} == {"all_reduce", "reduce_scatter"}


def test_nvbandwidth_has_a_row_for_the_host_and_a_column_per_device() -> None:
    records = [make_record("host_to_device", (i,), took_s=1e-3, size=(i + 1) * 1000) for i in (1, 0)]
    same = [record.model_copy(update={"size_bytes": 2000}) for record in records]
    [case] = format_nvbandwidth(same)["nvbandwidth"]["testcases"]
    assert (case["name"], case["status"]) == ("host_to_device_jax_test", "Passed")
    assert case["bandwidth_matrix"] == [["0.001", "0.002"]]
    assert (case["sum"], case["min"], case["max"]) == (pytest.approx(0.003), pytest.approx(0.001), pytest.approx(0.002))
    assert case["average"] == pytest.approx(0.0015)


def test_nvbandwidth_has_from_in_rows_and_to_in_columns_and_what_is_not_measured_is_not_available() -> None:
    records = [make_record("device_to_device", pair, took_s=1e-3, size=1_000_000) for pair in ((0, 1), (1, 3), (3, 0))]
    [case] = format_nvbandwidth(records)["nvbandwidth"]["testcases"]
    assert case["bandwidth_matrix"] == [["N/A", "1", "N/A"], ["N/A", "N/A", "1"], ["1", "N/A", "N/A"]]


def test_nvbandwidth_takes_the_largest_size_of_each_case() -> None:
    records = [make_record("replicate", (0, 1), size=size, took_s=1.0) for size in (1000, 3_000_000, 2000)]
    [case] = format_nvbandwidth(records)["nvbandwidth"]["testcases"]
    assert (case["size_bytes"], case["bandwidth_matrix"]) == (3_000_000, [["0.003"]])


def test_nvbandwidth_marks_a_case_with_a_wrong_result() -> None:
    [case] = format_nvbandwidth([make_record("shard_batch", (0, 1), nwrong=1)])["nvbandwidth"]["testcases"]
    assert case["status"] == "Error"


def test_every_case_but_matmul_stands_in_one_of_the_formats_and_is_not_called_ce_or_sm() -> None:
    assert set(MATRIX_LABELS) | COLLECTIVE_CASES == set(CASES) - {"matmul"}
    cases = format_nvbandwidth(all_records())["nvbandwidth"]["testcases"]
    assert len(cases) == len(MATRIX_LABELS)
    assert not [case["name"] for case in cases if case["name"].endswith(("_ce", "_sm"))]


def test_both_are_json_also_without_any_record() -> None:
    for records in ([], all_records()):
        json.dumps([format_nccl_tests(records), format_nvbandwidth(records)], allow_nan=False)
    assert format_nccl_tests([])["results"] == []
    assert format_nvbandwidth([])["nvbandwidth"]["testcases"] == []
