from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.arguments import (
    check_timeout,
    choose_devices,
    parse_case,
    parse_chips,
    parse_devices,
    parse_duration,
    parse_indices,
    parse_moment,
)
from meshwright.wire.bench import BenchCase

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_numbers_are_local_indices_and_other_words_are_names() -> None:
    assert parse_devices("0, 1,GPU-fa4e,0000:19:00.0", "--devices") == (0, 1, "GPU-fa4e", "0000:19:00.0")


def test_a_device_number_below_zero_stays_a_number_for_the_agent_to_refuse() -> None:
    assert parse_devices("-1", "--devices") == (-1,)


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_indices_are_read_as_they_were_written(indices: list[int]) -> None:
    assert parse_indices(",".join(map(str, indices))) == tuple(indices)


@pytest.mark.parametrize("text", ["", "0,", ",", "0,,1"])
def test_an_empty_device_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_devices(text, "--devices")


@pytest.mark.parametrize("text", ["GPU-1", "0,a", "0-3", "9" * 30])
def test_a_bench_takes_local_indices_only(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no local index"):
        parse_indices(text)


@given(st.sampled_from(get_args(BenchCase)))
def test_a_case_may_be_written_with_hyphens_or_in_capitals(case: str) -> None:
    assert parse_case(case.replace("_", "-").upper()) == case


def test_an_unknown_case_names_the_near_one() -> None:
    with pytest.raises(typer.BadParameter, match="did you mean all_reduce"):
        parse_case("allreduce")


def test_a_case_like_no_other_gets_the_list_and_no_guess() -> None:
    with pytest.raises(typer.BadParameter, match=r"none of host_to_device, .*memory_bandwidth$"):
        parse_case("qqq")


def test_devices_are_named_or_counted_not_both() -> None:
    assert choose_devices(None, None, "--devices") is None
    assert choose_devices("0,GPU-1", None, "--devices") == (0, "GPU-1")
    assert choose_devices(None, 4, "--devices") == {"count": 4}
    with pytest.raises(typer.BadParameter, match="it chooses devices"):
        choose_devices("0,1", 2, "--devices")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.inf, math.nan, 1e9])
def test_a_time_limit_that_no_clock_can_keep_is_refused(timeout_s: float) -> None:
    with pytest.raises(typer.BadParameter):
        check_timeout(timeout_s)


@pytest.mark.parametrize(
    ("text", "time_s"), [("90s", 90), ("30min", 1800), ("24h", 86400), ("1.5h", 5400), ("7d", 604800)]
)
def test_a_time_has_its_unit(text: str, time_s: float) -> None:
    assert parse_duration(text, "--ttl") == time_s


@pytest.mark.parametrize("text", ["24", "1m", "1M", "1 hour", "0s", "-1h", "", "h"])
def test_a_time_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30min"):
        parse_duration(text, "--ttl")


def test_a_moment_is_so_long_ago_or_a_date() -> None:
    assert parse_moment("1h", "--since", now=NOW) == NOW - timedelta(hours=1)
    assert parse_moment("2026-01-01T10:00:00Z", "--since", now=NOW) == datetime(2026, 1, 1, 10, tzinfo=UTC)
    assert parse_moment("2026-01-01T10:00", "--since", now=NOW).tzinfo is UTC
    for text in ("yesterday", "10", "", "999999999999999d"):
        with pytest.raises(typer.BadParameter, match="2026-11-22T10:00:00Z"):
            parse_moment(text, "--since", now=NOW)


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_usage_error(text: str) -> None:
    for parse in (parse_duration, parse_chips):
        try:
            assert parse(text, "x")
        except typer.BadParameter:
            continue


def test_a_count_of_chips_that_is_none_is_a_usage_error_of_its_option() -> None:
    with pytest.raises(typer.BadParameter, match=r"8\*h100") as caught:
        parse_chips("h100:8", "--require")
    assert caught.value.param_hint == "--require"
