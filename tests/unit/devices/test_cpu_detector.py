from __future__ import annotations

from pathlib import Path

import jax
import pytest

from meshwright._devices.choice import choose_detector, choose_platform
from meshwright._devices.cpu import count_cpu_devices, parse_device_count
from meshwright.devices import CPUDetector, DeviceCapabilities, DeviceType


def test_a_cpu_tells_its_devices_and_the_memory_that_they_share(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:        8053128 kB\nMemFree:          100 kB\n")
    assert CPUDetector(proc=tmp_path, count=lambda: 4).detect_capabilities() == DeviceCapabilities(
        DeviceType.CPU, 4, total_memory_mb=7864, supports_distributed=True, device_kinds=("cpu",)
    )


def test_memory_that_the_kernel_does_not_tell_is_unknown(tmp_path: Path) -> None:
    assert CPUDetector(proc=tmp_path, count=lambda: 1).detect_capabilities().total_memory_mb is None
    (tmp_path / "meminfo").write_text("nothing\n")
    assert CPUDetector(proc=tmp_path, count=lambda: 1).detect_capabilities().total_memory_mb is None


def test_one_cpu_device_has_nobody_to_join() -> None:
    assert not CPUDetector(count=lambda: 1).detect_capabilities().supports_distributed


def test_a_backend_that_runs_is_asked_for_the_count() -> None:
    assert len(jax.devices("cpu")) == count_cpu_devices() == 8


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


def test_the_detector_is_that_of_the_backend_that_runs() -> None:
    assert jax.default_backend() == "cpu"
    assert isinstance(choose_detector(), CPUDetector)
