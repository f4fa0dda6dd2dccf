from __future__ import annotations

import math
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
)
from meshwright.wire.bench import BenchCase


def test_numbers_are_local_indices_and_other_words_are_names() -> None:
    assert parse_devices("0, 1,GPU-fa4e,0000:19:00.0", "--devices") == (0, 1, "GPU-fa4e", "0000:19:00.0")


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_indices_are_read_as_they_were_written(indices: list[int]) -> None:
    assert parse_indices(",".join(map(str, indices))) == tuple(indices)


@given(st.sampled_from(get_args(BenchCase)))
def test_a_case_may_be_written_with_hyphens_or_in_capitals(case: str) -> None:
    assert parse_case(case.replace("_", "-").upper()) == case


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


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_usage_error(text: str) -> None:
    for parse in (parse_duration, parse_chips):
        try:
            assert parse(text, "x")
        except typer.BadParameter:
            continue
