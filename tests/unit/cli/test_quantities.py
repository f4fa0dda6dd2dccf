"""Quantities with their units: what is taken, what could mean two things, and what is said then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.quantities import (
    BYTE_UNITS,
    parse_devices,
    parse_duration,
    parse_memory,
    parse_moment,
    parse_rate,
)

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("79GiB", 79 * 2**30), ("80GB", 80 * 10**9), ("0.5 TiB", 2**39), ("81559MiB", 81559 * 2**20), ("1kB", 1000)],
)
def test_memory_is_binary_or_decimal_as_its_unit_says(text: str, size_bytes: int) -> None:
    assert parse_memory(text, "--min-hbm") == size_bytes


@pytest.mark.parametrize(
    "text", ["79", "79G", "79Gib", "79gib", "79GB/s", "0GiB", "-1GiB", "GiB", "", "7 9GiB", "∞GiB"]
)
def test_memory_without_a_clear_unit_is_refused_with_one_that_works(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="79GiB") as caught:
        parse_memory(text, "--min-hbm")
    assert caught.value.param_hint == "--min-hbm"


@pytest.mark.parametrize(("text", "per_s"), [("300GB/s", 3e11), ("279.4 GiB/s", 279.4 * 2**30), ("900000MB/s", 9e11)])
def test_a_gigabyte_a_second_is_1e9(text: str, per_s: float) -> None:
    assert parse_rate(text, "--min-busbw") == pytest.approx(per_s, rel=1e-12)


@pytest.mark.parametrize("text", ["300", "300GB", "300Gb/s", "300GBps", "300gb/s", "0GB/s", "300 GB /s", ""])
def test_a_rate_without_a_clear_unit_is_refused_with_one_that_works(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="300GB/s"):
        parse_rate(text, "--min-busbw")


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


@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTE_UNITS)))
def test_parsing_what_was_printed_gives_the_same(number: int, unit: str) -> None:
    assert parse_memory(f"{number}{unit}", "x") == number * BYTE_UNITS[unit]
    assert parse_rate(f"{number}{unit}/s", "x") == number * BYTE_UNITS[unit]


@given(st.text(max_size=40))
def test_any_text_is_a_quantity_or_a_usage_error(text: str) -> None:
    for parse in (parse_memory, parse_rate, parse_duration, parse_devices):
        try:
            assert parse(text, "x")
        except typer.BadParameter:
            continue


def test_a_count_of_chips_that_is_none_is_a_usage_error_of_its_option() -> None:
    with pytest.raises(typer.BadParameter, match=r"8\*h100") as caught:
        parse_devices("h100:8", "--require")
    assert caught.value.param_hint == "--require"
