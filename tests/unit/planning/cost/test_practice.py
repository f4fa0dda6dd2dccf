"""Constants of frameworks: the tables, whose rows count, what intervals say."""

from __future__ import annotations

from importlib.resources import files

import pytest

from meshwright.planning.cost.practice import (
    UNITS,
    find_practice,
    interval,
    parse_constants,
    parse_spreads,
)

FOLDER = files("meshwright.planning.cost")


def test_every_row_of_the_tables_has_its_unit_its_source_and_figures_that_can_be() -> None:
    for constant in parse_constants((FOLDER / "constants.csv").read_text().splitlines()):
        assert UNITS[constant.name] == constant.unit
        assert constant.source
    for spread in parse_spreads((FOLDER / "intervals.csv").read_text().splitlines()):
        assert spread.low <= spread.high
        assert spread.source


def test_an_unknown_practice_has_the_constants_of_xla_and_says_so() -> None:
    found = find_practice("nobody", "gpu", "h100")

    assert found.practice == find_practice("xla", "gpu", "h100").practice
    assert found.basis.startswith("xla/gpu")
    assert not found.is_own
    assert find_practice("xla", "gpu").is_own


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match="'gpu' and 'tpu'"):
        find_practice("xla", "cpu")
    with pytest.raises(ValueError, match="'gpu' and 'tpu'"):
        interval(1.0, "xla", "cpu")
