"""Constants of frameworks: the tables, whose rows count, what intervals say."""

from __future__ import annotations

from dataclasses import fields
from importlib.resources import files

import pytest

from meshwright.planning.cost.practice import (
    UNITS,
    Practice,
    find_practice,
    find_spread,
    interval,
    parse_constants,
    parse_spreads,
    read_constants,
    read_spreads,
)

FOLDER = files("meshwright.planning.cost")


def test_every_constant_has_a_unit() -> None:
    assert set(UNITS) == {field.name for field in fields(Practice)}


def test_every_row_of_the_tables_has_its_unit_its_source_and_figures_that_can_be() -> None:
    for constant in parse_constants((FOLDER / "constants.csv").read_text().splitlines()):
        assert UNITS[constant.name] == constant.unit
        assert constant.source
    for spread in parse_spreads((FOLDER / "intervals.csv").read_text().splitlines()):
        assert spread.low <= spread.high
        assert spread.source


def test_every_value_of_the_table_is_above_zero_or_none() -> None:
    table = read_constants()

    assert {("xla", "gpu", ""), ("xla", "tpu", ""), ("megatron-core", "gpu", "")} <= set(table)
    assert all(value >= 0 for rows in table.values() for value in rows.values())
    assert all(rows.get("hidden", 1) >= 0.99 for rows in table.values())


def test_no_practice_or_family_is_a_model() -> None:
    assert {practice for practice, _, _ in read_constants()} == {
        *("xla", "maxtext", "megatron-lm-2021", "llm-foundry", "megatron-core", "torchtitan")
    }


def test_a_family_replaces_what_all_of_its_platform_have() -> None:
    shared, own = find_practice("megatron-core", "gpu"), find_practice("megatron-core", "gpu", "h100")

    assert shared.basis == "megatron-core/gpu"
    assert own.basis == "megatron-core/gpu/h100"
    assert own.practice.matmul != shared.practice.matmul
    assert own.practice.attention == shared.practice.attention


def test_a_family_without_rows_has_those_of_its_platform() -> None:
    found = find_practice("megatron-core", "gpu", "v100")

    assert found.basis == "megatron-core/gpu"
    assert found.practice == find_practice("megatron-core", "gpu").practice


def test_an_unknown_practice_has_the_constants_of_xla_and_says_so() -> None:
    found = find_practice("nobody", "gpu", "h100")

    assert found.practice == find_practice("xla", "gpu", "h100").practice
    assert found.basis.startswith("xla/gpu")
    assert not found.is_own
    assert find_practice("xla", "gpu").is_own


def test_xla_starts_no_kernels_one_by_one() -> None:
    practice = find_practice("xla", "gpu", "h100").practice

    assert (practice.launch_s, practice.launch_expert_s, practice.dispatch_s) == (0, 0, 0)


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match="'gpu' and 'tpu'"):
        find_practice("xla", "cpu")
    with pytest.raises(ValueError, match="'gpu' and 'tpu'"):
        interval(1.0, "xla", "cpu")


def test_an_interval_is_of_the_nearest_kind() -> None:
    table = read_spreads()

    assert find_spread("llm-foundry", "gpu", "a100") == table["llm-foundry", "gpu", "a100"]
    assert find_spread("llm-foundry", "gpu", "v100") == table["llm-foundry", "gpu", ""]
    assert find_spread("xla", "gpu", "h100") == table["", "gpu", "h100"]
    assert find_spread("xla", "gpu", "v100") == table["", "gpu", ""]


@pytest.mark.parametrize("family", ["a100", "h100", "b200", "gb200", "v100"])
def test_an_interval_scales_with_what_is_predicted(family: str) -> None:
    low, high = interval(1.0, "megatron-core", "gpu", family)

    assert 0.3 < low < high < 3
    assert interval(2.0, "megatron-core", "gpu", family) == pytest.approx((2 * low, 2 * high))
