from __future__ import annotations

from typing import get_args

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.arguments import parse_case, parse_chips, parse_devices, parse_duration
from meshwright.wire.bench import BenchCase


def test_numbers_are_local_indices_and_other_words_are_names() -> None:
    assert parse_devices("0, 1,GPU-fa4e,0000:19:00.0", "--devices") == (0, 1, "GPU-fa4e", "0000:19:00.0")


@given(st.sampled_from(get_args(BenchCase)))
def test_a_case_may_be_written_with_hyphens_or_in_capitals(case: str) -> None:
    assert parse_case(case.replace("_", "-").upper()) == case


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
