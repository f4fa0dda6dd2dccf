"""Constants of frameworks: the tables, whose rows count, what intervals say."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshwright.planning.cost.step_time import (
    Constant,
    Practice,
    find_practice,
    interval,
    read_spreads,
)
from meshwright.topology.chips import read_table


def test_every_row_of_the_tables_has_its_source_and_figures_that_can_be() -> None:
    names = {field.name for field in fields(Practice)}
    for constant in read_table("meshwright.planning.cost", "constants.csv", Constant):
        assert constant.name in names
        assert constant.unit in ("ratio", "1", "bytes", "s")
        assert constant.source
    for spread in read_spreads().values():
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
