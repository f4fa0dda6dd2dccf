from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meshwright_agent.expectation import parse_expectation
from meshwright_agent.settings import Settings


@pytest.mark.parametrize(
    ("text", "kind", "met"),
    [
        ("8", "anything", True),
        ("8*h100", "NVIDIA H100 80GB HBM3", True),
        ("8 * H100", "NVIDIA H100 NVL", True),
        ("8*h100", "NVIDIA A100-SXM4-80GB", False),
        ("2*h100", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", True),
        ("4*v5e", "TPU v5 lite", True),
        ("4*v5e", "TPU v5", False),
    ],
)
def test_a_chip_is_known_by_any_of_its_names(text: str, kind: str, met: bool) -> None:
    expected = parse_expectation(text)
    assert expected is not None
    assert expected.is_met_by(kind) is met


@pytest.mark.parametrize("text", ["h100", "8*", "-1", "8*h1000", "8x", "8*h100*2", "٨"])
def test_what_is_no_expectation_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(ValidationError, match=r"8\*h100"):
        Settings(expect=text)


def test_nothing_is_expected_of_an_empty_text() -> None:
    assert parse_expectation(" ") is None
    assert Settings().expect == ""


@given(st.integers(0, 99999), st.sampled_from([None, "h100", "v5e", "l40s"]))
def test_what_is_printed_is_read_again(count: int, chip: str | None) -> None:
    text = f"{count}*{chip}" if chip else str(count)
    assert str(parse_expectation(text)) == text
