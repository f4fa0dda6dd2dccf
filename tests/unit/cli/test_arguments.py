from __future__ import annotations

import math
from typing import get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.arguments import (
    build_selection,
    check_timeout,
    parse_axis_types,
    parse_case,
    parse_devices,
    parse_indices,
)
from meshwright.wire.bench import BenchCase


def test_numbers_are_local_indices_and_other_words_are_names() -> None:
    assert parse_devices("0, 1,GPU-fa4e,0000:19:00.0") == (0, 1, "GPU-fa4e", "0000:19:00.0")


def test_a_device_number_below_zero_stays_a_number_for_the_agent_to_refuse() -> None:
    assert parse_devices("-1") == (-1,)


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_indices_are_read_as_they_were_written(indices: list[int]) -> None:
    assert parse_indices(",".join(map(str, indices))) == tuple(indices)


@pytest.mark.parametrize("text", ["", "0,", ",", "0,,1"])
def test_an_empty_device_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_devices(text)


@pytest.mark.parametrize("text", ["GPU-1", "0,a", "0-3", "9" * 30])
def test_a_bench_takes_local_indices_only(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no local index"):
        parse_indices(text)


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("explicit", "explicit"),
        ("auto,explicit", ("auto", "explicit")),
        ("dp:auto, tp:explicit", {"dp": "auto", "tp": "explicit"}),
        ("dp:auto", {"dp": "auto"}),
    ],
)
def test_axis_types_are_for_all_or_by_place_or_by_name(text: str, types: object) -> None:
    assert parse_axis_types(text) == types


@pytest.mark.parametrize("text", ["", "auto,", "dp:auto,explicit", "dp:", ":auto"])
def test_axis_types_in_mixed_forms_are_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_axis_types(text)


@given(st.sampled_from(get_args(BenchCase)))
def test_a_case_may_be_written_with_hyphens_or_in_capitals(case: str) -> None:
    assert parse_case(case.replace("_", "-").upper()) == case


def test_an_unknown_case_names_the_near_one() -> None:
    with pytest.raises(typer.BadParameter, match="did you mean all_reduce"):
        parse_case("allreduce")


def test_a_case_like_no_other_gets_the_list_and_no_guess() -> None:
    with pytest.raises(typer.BadParameter, match=r"none of host_to_device, .*memory_bandwidth$"):
        parse_case("qqq")


def test_without_a_selection_all_devices_are_meant() -> None:
    assert build_selection(None, None, None) is None


def test_a_selection_says_only_what_was_asked() -> None:
    assert build_selection(None, 4, None) == {"count": 4}
    assert build_selection(None, None, "0,GPU-1") == {"exclude": (0, "GPU-1")}


@pytest.mark.parametrize("others", [(1, None), (None, "3")])
def test_devices_are_named_or_chosen_not_both(others: tuple[int | None, str | None]) -> None:
    with pytest.raises(typer.BadParameter, match="nothing to choose"):
        build_selection("0,1", *others)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_time_limit_that_no_clock_can_keep_is_refused(timeout_s: float) -> None:
    with pytest.raises(typer.BadParameter):
        check_timeout(timeout_s)
