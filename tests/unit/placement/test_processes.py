"""Arrays over two processes with two devices each: real ones, on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.process.jobs import run_program

PROGRAM = Path(__file__).with_name("job.py")
ROWS: list[Any] = [None, 1, 2, 3, 4, 5, 6, 7]
"""What the job places, as it comes back: NaN is None."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_program(PROGRAM, tmp_path_factory.mktemp("job"), [], processes=2, devices_each=2)


@pytest.fixture(params=[0, 1])
def rank(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def own_rows(rank: int) -> list[Any]:
    return [ROWS[4 * rank : 4 * rank + 2], ROWS[4 * rank + 2 : 4 * rank + 4]]


def test_the_default_device_is_this_processs_own_and_all_devices_are_told(answers: Any, rank: int) -> None:
    process, count, info = answers[rank]["tell_devices"]
    assert process == rank
    assert count == info["num_devices"] == 4
    assert [device["process_index"] for device in info["devices"]] == [0, 0, 1, 1]
    assert [device["memory_limit_bytes"] for device in info["devices"]] == [None] * 4
    assert answers[rank]["place_by_default"] == [ROWS]
    assert answers[rank]["place_on_another_processs_device"] == []


def test_each_process_puts_its_own_part_of_the_global_value_nan_included(answers: Any, rank: int) -> None:
    assert answers[rank]["split"] == own_rows(rank)
    assert answers[rank]["split_doubles"] == ["float32", own_rows(rank), "int32", [3, 3]]


def test_what_does_not_divide_over_all_processes_is_refused(answers: Any, rank: int) -> None:
    assert "leaf ['x'] has the shape (6,)" in answers[rank]["split_what_does_not_divide"]
    assert "'data' of size 4, which does not divide it: use 4 or 8" in answers[rank]["split_what_does_not_divide"]


def test_equal_values_are_whole_on_every_device_of_every_process(answers: Any, rank: int) -> None:
    assert answers[rank]["replicate"] == [[ROWS] * 2, [list(np.arange(3))] * 2, 4]


def test_copies_that_would_differ_are_refused_in_every_process(answers: Any, rank: int) -> None:
    refused = answers[rank]["replicate_what_differs"]
    assert "the processes of this job hold different values: [1] not that of process 0" in refused
    assert "broadcast_one_to_all" in refused


def test_devices_of_one_process_concern_only_that_one(answers: Any) -> None:
    assert answers[0]["replicate_alone"] == []
    assert answers[1]["replicate_alone"] == [[1, 2]] * 2


# ---- the whole batch or a part of it ----


def make_rows(rank: int, rows: int) -> list[list[float]]:
    """What `make_rows` of the job gives a process."""
    return [[1000.0 * rank + 5 * row + column for column in range(5)] for row in range(rows)]


def halve(rows: list[Any]) -> list[list[Any]]:
    return [rows[: len(rows) // 2], rows[len(rows) // 2 :]]


def test_what_was_refused_is_refused_again_and_goes_as_what_it_is(answers: Any, rank: int) -> None:
    refused, shape, parts = answers[rank]["pass_own_rows_twice"]
    words = "ValueError: the processes pass different batches: process 1 passes other values than"
    assert [said.startswith(words) for said in refused] == [True] * 2
    assert "float32[8, 5]" in refused[0]
    assert "use process_local=True where each process passes its own rows" in refused[0]
    assert shape == [16, 5]
    assert parts == halve(make_rows(rank, 8))


def test_other_shapes_are_named_without_waiting_for_the_time_limit(answers: Any, rank: int) -> None:
    passed = answers[rank]["pass_other_shapes"]
    assert passed.startswith("ValueError: the processes pass different batches")
    assert "process 0 passes the data float32[4, 5]" in passed
    assert "process 1 passes the data float32[8, 5]" in passed
    assert "use process_local=True" in passed
    assert "process 1 passes the data float32[] of a Python number" in answers[rank]["pass_a_number_and_an_array"]
    prefetched = answers[rank]["prefetch_other_shapes"]
    assert "process 0 passes the data float32[2, 5]" in prefetched
    assert "process 1 passes the data float32[4, 5]" in prefetched
    assert "drop or pad rows" in prefetched
    mixed = answers[rank]["name_process_local_in_one_only"]
    assert "with process_local=True; process 1 passes the data float32[8, 1]" in mixed


def test_a_process_that_passes_nothing_is_named_at_the_time_limit(answers: Any) -> None:
    (refused, first), (nothing, second) = (answer["pass_again_what_the_other_missed"] for answer in answers)
    assert refused.startswith("RuntimeError: the processes of this job did not agree within 1 s: process 1 of 2 did")
    assert "every process must pass such a batch" in refused
    assert "process_local=True" in refused
    assert (nothing, [*first, *second]) == ("", [[row] for row in ROWS[:4]])


def test_own_rows_of_every_kind_of_leaf_make_the_global_batch(answers: Any, rank: int) -> None:
    placed = answers[rank]["split_own_rows"]
    assert placed["shapes"] == {"x": [8, 5], "local": [8, 5], "keys": [4], "empty": [0, 3], "step": []}
    assert placed["dtypes"] == {
        "x": "float32", "local": "float32", "keys": "key<fry>", "empty": "float32", "step": "int32",
    }  # fmt: skip
    assert placed["x"] == placed["local"] == halve(make_rows(rank, 4))
    assert placed["step"] == [7, 7]
    assert placed["keys"] == [True, True]
    assert placed["total"] == sum(sum(row) for process in range(2) for row in make_rows(process, 4))


def test_a_part_is_divided_by_the_devices_of_its_process(answers: Any, rank: int) -> None:
    refused = answers[rank]["split_own_rows_that_do_not_divide"]
    assert "leaf ['x'] has the shape (3, 5)" in refused
    assert "of size 4, 2 of them in this process, which does not divide it: use 2 or 4" in refused


def test_what_processes_share_must_be_equal_beside_own_rows(answers: Any, rank: int) -> None:
    step = answers[rank]["pass_other_steps_beside_own_rows"]
    assert step.startswith("ValueError: processes 0 and 1 cover the same part of leaf ['step'] and pass different")
    rows = answers[rank]["pass_other_rows_where_both_cover_the_same"]
    assert rows.startswith("ValueError: processes 0 and 1 cover the same part of leaf ['x'] and pass different")
    assert "process_batch_shard" in rows


def test_only_processes_with_devices_of_a_sharding_are_asked(answers: Any) -> None:
    assert answers[0]["place_in_this_process_only"] == []
    assert answers[1]["place_in_this_process_only"] == [[[None], [1]]] * 3
    assert answers[0]["place_where_this_process_has_no_device"] == [halve(ROWS[:4])] * 2
    whole, part = answers[1]["place_where_this_process_has_no_device"]
    assert whole == []
    assert "its sharding is a NamedSharding over devices of process 0" in part


def test_the_first_batch_of_a_kind_is_compared_and_threads_do_not_disturb_each_other(answers: Any, rank: int) -> None:
    assert answers[rank]["count_exchanges"] == [1, 1, 1]
    assert answers[rank]["prefetch_twice_at_once"] == [[0, 1, 2], [10, 11, 12]]
    assert answers[rank]["pass_in_other_orders_from_threads"] == ["mw1-", 8, 9]
    assert answers[rank]["close_while_it_waits"] == ("never asked" if rank else "ended")
