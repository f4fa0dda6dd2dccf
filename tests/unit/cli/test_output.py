from __future__ import annotations

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._client.replies import build_error
from meshwright.cli.output import clean, format_bytes, format_rate, format_time
from tests.unit.cli.conftest import CommandLine


@pytest.mark.parametrize(("size_bytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (80 * 2**30, "80 GiB"), (85899345919, "80 GiB"), (1536, "1.5 KiB"),
    (None, ""),
])  # fmt: skip
def test_memory_is_in_powers_of_1024(size_bytes: int | None, text: str) -> None:
    assert format_bytes(size_bytes) == text


def test_a_hint_of_the_client_is_in_words_of_the_command_line(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(build_error(httpx.ReadTimeout("silence"), "GET /devices", "http://a:1"), times=3)
    assert "  hint: give a longer --timeout; or see /health\n" in meshwright("devices").err


@pytest.mark.parametrize(("per_s", "text"), [
    (1e9, "1 GB/s"), (3.35e12, "3.35 TB/s"), (918e6, "918 MB/s"), (12.34e9, "12.3 GB/s"), (None, ""),
])  # fmt: skip
def test_bandwidth_is_in_powers_of_1000(per_s: float | None, text: str) -> None:
    assert format_rate(per_s, "B/s") == text


_FACTORS = {"h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


@given(st.floats(1e-9, 1e6))
def test_what_a_time_shows_is_right_to_three_digits(time_s: float) -> None:
    number, unit = format_time(time_s).split()
    assert float(number) * _FACTORS[unit] == pytest.approx(time_s, rel=6e-3)


@given(st.text())
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean(text))


def test_a_narrow_terminal_folds_words_and_cuts_none(meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    out = meshwright("health", "--all").out.partition("\n")[2]
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 24
