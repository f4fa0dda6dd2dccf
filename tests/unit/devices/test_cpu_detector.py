from __future__ import annotations

from pathlib import Path

import pytest

from meshwright._devices.choice import choose_platform
from meshwright._devices.cpu import parse_device_count
from meshwright.devices import CPUDetector, DeviceType


def test_memory_that_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert CPUDetector(proc=tmp_path, count=lambda: 1).detect_capabilities().total_memory_mb is None
    (tmp_path / "meminfo").write_text("nothing\n")
    assert CPUDetector(proc=tmp_path, count=lambda: 1).detect_capabilities().total_memory_mb is None


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ("", 1),
        ("--xla_force_host_platform_device_count=3", 3),
        ("--a=1 --xla_force_host_platform_device_count=3 --xla_force_host_platform_device_count=5", 5),
    ],
)
def test_xla_flags_ask_for_cpu_devices(flags: str, count: int) -> None:
    assert parse_device_count({"XLA_FLAGS": flags}) == count


def test_no_flags_ask_for_one_cpu_device() -> None:
    assert parse_device_count({}) == 1


@pytest.mark.parametrize(
    ("has_gpu", "has_tpu", "chosen"),
    [
        (True, True, DeviceType.GPU),
        (True, False, DeviceType.GPU),
        (False, True, DeviceType.TPU),
        (False, False, DeviceType.CPU),
    ],
)
def test_the_platform_is_chosen_as_jax_chooses(has_gpu: bool, has_tpu: bool, chosen: DeviceType) -> None:
    assert choose_platform(has_gpu=has_gpu, has_tpu=has_tpu) is chosen
