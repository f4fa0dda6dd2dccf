from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.batch_size import HardwareType, answer_batch_size, recommend_batch_size, validate_batch_size
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest

hardware_types = st.sampled_from(list(HardwareType))
batches = st.integers(-10, 2000) | st.integers()


def ask(hardware: str | None = None, *, platform: str | None = None, kind: str | None = None) -> BatchSize:
    return answer_batch_size(BatchSizeRequest(hardware=hardware), platform=platform, kind=kind, basis="live")


def codes(answer: BatchSize) -> list[str]:
    return [notice.code for notice in answer.warnings]


@given(hardware_types)
def test_every_hardware_type_has_a_row_in_ascending_order(hardware_type: HardwareType) -> None:
    row = recommend_batch_size(hardware_type)
    assert 1 <= row.min_batch_size <= row.critical_batch_size <= row.optimal_batch_size
    assert row.max_memory_batch_size is None


@pytest.mark.parametrize(("value", "expected"), [
    ("h200", (64, 256, 207)), ("h800", (64, 320, 296)), ("h20", (16, 64, 37)), ("gh200", (64, 256, 248)),
    ("gb300", (64, 320, 313)), ("tpu_v3", (32, 192, 137)), ("tpu_v6e", (128, 576, 560)), ("a10g", (32, 128, 117)),
])  # fmt: skip
def test_derived_rows_are_these(value: str, expected: tuple[int, int, int]) -> None:
    row = recommend_batch_size(HardwareType(value))
    assert (row.min_batch_size, row.optimal_batch_size, row.critical_batch_size) == expected


@given(hardware_types, batches)
def test_a_batch_is_valid_from_the_minimum_on_and_critical_is_said(hardware_type: HardwareType, batch: int) -> None:
    row = recommend_batch_size(hardware_type)
    valid, message = validate_batch_size(hardware_type, batch)
    assert valid == (batch >= row.min_batch_size)
    assert ("below minimum" in message) == (batch < row.min_batch_size)
    assert ("below critical" in message) == (row.min_batch_size <= batch < row.critical_batch_size)
    assert ("at or above" in message) == (batch >= row.critical_batch_size)
    assert str(batch) in message
    assert "tokens a device" in message
    assert hardware_type.value in message


@given(hardware_types, batches)
def test_without_the_warning_only_the_text_of_a_small_batch_changes(hardware_type: HardwareType, batch: int) -> None:
    warned, silent = (validate_batch_size(hardware_type, batch), validate_batch_size(hardware_type, batch, False))
    assert warned[0] == silent[0]
    assert "below critical" not in silent[1]
    assert silent[1]
    assert (warned == silent) == ("below critical" not in warned[1])


def test_a_relative_of_a_known_card_gets_the_familys_row_and_no_figures() -> None:
    for answer in (ask("NVIDIA H100 NVL"), ask(platform="gpu", kind="NVIDIA H100 NVL")):
        assert (answer.hardware_type, answer.chip, answer.roofline) == ("h100", None, None)
        assert codes(answer) == ["chip_unknown"]
        assert "NVIDIA H100 NVL" in answer.warnings[0].message


@pytest.mark.parametrize(("platform", "kind"), [
    ("gpu", "NVIDIA H800 PCIe"), ("gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), ("gpu", "TPU v5e"), (None, None),
])  # fmt: skip
def test_an_unknown_device_gets_the_conservative_row_with_a_warning(platform: str | None, kind: str | None) -> None:
    answer = ask(platform=platform, kind=kind)
    assert (answer.hardware_type, answer.chip, answer.roofline) == ("unknown", None, None)
    assert codes(answer) == ["hardware_unknown"]
