from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.topology.chips import ChipCount, parse_chip_count
from meshwright_agent.settings import Settings
from tests.fakes.hosts import build_devices


@pytest.mark.parametrize(("text", "count"), [
    ("8", ChipCount(8)), ("h100:8", ChipCount(8, "h100")), ("v5p:4", ChipCount(4, "v5p")),
    ("cpu:2", ChipCount(2, "cpu")),
])  # fmt: skip
def test_a_count_of_chips_is_written_as_in_targets(text: str, count: ChipCount) -> None:
    assert parse_chip_count(f" {text} ") == count
    assert str(count) == text
    assert Settings(expect=text).expect == text


@pytest.mark.parametrize(("text", "words"), [
    ("h1000:8", r"near: .*h100.*write \w+:8"), ("8*h100", "write h100:8"), ("h100", "write h100:8"),
    ("h100:0", "write h100:8"), ("0", "or 8 for devices of any kind"),
])  # fmt: skip
def test_what_is_no_count_is_refused_with_one_that_is(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_chip_count(text)


@pytest.mark.parametrize(("chip", "host", "is_of"), [
    (None, "h100:2", True), ("h100", "h100:2", True), ("H100", "h100:2", True), ("v5e", "v5e:2x2", True),
    ("v5litepod", "v5e:2x2", True), ("cpu", "cpu:8", True), ("a100", "h100:2", False), ("v5p", "v5e:2x2", False),
    ("cpu", "h100:2", False), ("h100", "cpu:8", False),
])  # fmt: skip
def test_a_device_is_known_by_any_name_of_its_chip(chip: str | None, host: str, is_of: bool) -> None:
    assert {ChipCount(1, chip).is_of(device.kind, None) for device in build_devices(host).devices} == {is_of}
    assert ChipCount(1, "a100").is_of("NVIDIA A100-SXM4-40GB", None)  # one word at blanks
    assert ChipCount(1, chip).is_of("NVIDIA H100 80GB HBM3 MIG 3g.40gb", mig="3g.40gb") == (chip is None)


@given(st.text(max_size=40))
def test_any_text_is_a_count_or_a_value_error(text: str) -> None:
    try:
        assert parse_chip_count(text).count > 0
    except ValueError:
        return
