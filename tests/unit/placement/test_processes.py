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


def own_rows(rank: int) -> list[Any]:
    return [ROWS[4 * rank : 4 * rank + 2], ROWS[4 * rank + 2 : 4 * rank + 4]]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_default_device_is_this_processs_own_and_all_devices_are_told(answers: Any, rank: int) -> None:
    process, count, info = answers[rank]["tell_devices"]
    assert process == rank
    assert count == info["num_devices"] == 4
    assert [device["process_index"] for device in info["devices"]] == [0, 0, 1, 1]
    assert [device["memory_limit_bytes"] for device in info["devices"]] == [None] * 4
    assert answers[rank]["place_by_default"] == [ROWS]
    assert answers[rank]["place_on_another_processs_device"] == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("task", ["split", "split_a_local_array", "split_under_a_transfer_guard"])
def test_each_process_puts_its_own_part_of_the_global_value_nan_included(answers: Any, task: str, rank: int) -> None:
    assert answers[rank][task] == own_rows(rank)


@pytest.mark.parametrize("rank", [0, 1])
def test_dtypes_are_those_that_one_process_would_get(answers: Any, rank: int) -> None:
    assert answers[rank]["split_doubles"] == ["float32", own_rows(rank), "int32", [3, 3]]
    assert answers[rank]["split_keys"] is True


@pytest.mark.parametrize("rank", [0, 1])
def test_a_dimension_is_split_over_processes_and_computed_on(answers: Any, rank: int) -> None:
    columns = [[[ROWS[column], ROWS[4 + column]]] for column in range(4)]
    parts = [[[value] for value in columns[2 * rank + part][0]] for part in range(2)]
    assert answers[rank]["split_a_batch"] == [parts, [7, 7], 28.0]
    assert answers[rank]["prefetch"] == [28.0, 35.0, 42.0]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_does_not_divide_over_all_processes_is_refused(answers: Any, rank: int) -> None:
    assert "leaf ['x'] has the shape (6,)" in answers[rank]["split_what_does_not_divide"]
    assert "'data' of size 4, which does not divide it: use 4 or 8" in answers[rank]["split_what_does_not_divide"]


@pytest.mark.parametrize("rank", [0, 1])
def test_equal_values_are_whole_on_every_device_of_every_process(answers: Any, rank: int) -> None:
    assert answers[rank]["replicate"] == [[ROWS] * 2, [list(np.arange(3))] * 2, 4]
    assert answers[rank]["replicate_again_what_is_global"] == [ROWS] * 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("task", ["replicate_what_differs", "replicate_what_has_other_names"])
def test_copies_that_would_differ_are_refused_in_every_process(answers: Any, task: str, rank: int) -> None:
    refused = answers[rank][task]
    assert "the processes of this job hold different values: [1] not that of process 0" in refused
    assert "broadcast_one_to_all" in refused


def test_devices_of_one_process_concern_only_that_one(answers: Any) -> None:
    assert answers[0]["replicate_alone"] == []
    assert answers[1]["replicate_alone"] == [[1, 2]] * 2
