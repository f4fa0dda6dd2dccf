from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import UnknownHardwareError
from meshwright.planning.hardware import HardwareType, detect_hardware, parse_hardware
from meshwright.topology.chips import Chip, find_chip, read_chips

chips = st.sampled_from(read_chips())


@pytest.mark.parametrize(("platform", "kind", "expected"),[
    ("cpu", "Intel(R) Xeon(R)", HardwareType.CPU), ("cuda", "NVIDIA H100 PCIe", HardwareType.H100),
    ("gpu", "NVIDIA H100 NVL", HardwareType.H100), ("gpu", "NVIDIA A100-PCIE-40GB", HardwareType.A100),
    ("gpu", "Tesla V100-SXM2-16GB", HardwareType.V100), ("rocm", "AMD Instinct MI300X", HardwareType.MI300X),
])  # fmt: skip
def test_a_device_is_known_by_platform_and_kind(platform: str, kind: str, expected: HardwareType) -> None:
    """Of a family also where the chip itself is in no row; each row's own kinds: the test of all chips."""
    assert detect_hardware(platform, kind) is expected


@pytest.mark.parametrize(("platform", "kind"), [
    ("gpu", "NVIDIA H800 PCIe"), ("gpu", "NVIDIA A100X"), ("gpu", "Tesla V100S-PCIE-32GB"),
    ("gpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), ("gpu", ""), ("gpu", "TPU v5 lite"),
    ("tpu", "NVIDIA H100 80GB HBM3"), ("metal", "Apple M3"),
])  # fmt: skip
def test_an_accelerator_that_no_row_is_for_is_unknown(platform: str, kind: str) -> None:
    assert detect_hardware(platform, kind) is HardwareType.UNKNOWN


@given(chips)
def test_each_chip_belongs_to_a_hardware_type_by_all_its_names(chip: Chip) -> None:
    for kind in chip.kinds:
        assert detect_hardware(chip.platform, kind).value == chip.family
    for name in (chip.name, *chip.aliases, *chip.kinds):
        assert parse_hardware(name).value == chip.family
        assert find_chip(name) is chip


@pytest.mark.parametrize(
    ("name", "near"), [("h1000", "h100"), ("tpu v5e lite", "TPU v5 lite"), ("gb2000", "gb200"), ("mi300", "mi300x")]
)
def test_an_unknown_name_is_refused_with_near_ones(name: str, near: str) -> None:
    with pytest.raises(UnknownHardwareError) as caught:
        parse_hardware(name)
    assert repr(name) in caught.value.detail
    assert near in caught.value.hint
    assert caught.value.errors[0]["field"] == "hardware"
