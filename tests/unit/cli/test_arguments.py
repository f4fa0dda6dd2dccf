from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.arguments import parse_chips, parse_devices, parse_duration


def test_numbers_are_local_indices_and_other_words_are_names() -> None:
    assert parse_devices("0, 1,GPU-fa4e,0000:19:00.0", "--devices") == (0, 1, "GPU-fa4e", "0000:19:00.0")


@pytest.mark.parametrize(
    ("text", "time_s"), [("90s", 90), ("30min", 1800), ("24h", 86400), ("1.5h", 5400), ("7d", 604800)]
)
def test_a_time_has_its_unit(text: str, time_s: float) -> None:
    assert parse_duration(text, "--ttl") == time_s


@pytest.mark.parametrize("text", ["24", "1m", "1M", "1 hour", "0s", "-1h", "", "h", "31d"])
def test_a_time_that_could_mean_two_things_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="30min"):
        parse_duration(text, "--ttl", 30 * 86400)


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_usage_error(text: str) -> None:
    for parse in (parse_duration, parse_chips):
        try:
            assert parse(text, "x")
        except typer.BadParameter:
            continue
