from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from meshwright import _host_devices
from meshwright._host_devices import (
    HostDevice,
    build_capabilities,
    choose_compute_dtype,
    choose_detector,
    complete_capabilities,
)
from meshwright.devices import CPUDetector, CUDADetector, DeviceCapabilities, DeviceType, TPUDetector
from tests.fakes.gpu_devices import FakeDevice, FakeGpu, build_host, check_device

GIB = 2**30


def test_capabilities_have_the_published_fields_in_order_with_their_defaults() -> None:
    names = [field.name for field in fields(DeviceCapabilities)]
    assert names[:8] == [
        "device_type", "device_count", "total_memory_mb", "compute_capability", "cuda_version", "driver_version",
        "supports_mixed_precision", "supports_distributed",
    ]  # fmt: skip
    least = DeviceCapabilities(DeviceType.CPU, 1)
    assert [getattr(least, name) for name in names[2:8]] == [None, None, None, None, False, False]


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device_count is -1; .*0 or more, such as 8"):
        DeviceCapabilities(DeviceType.GPU, -1)


CAPABILITIES = [
    ((9, 0), True, True, "bfloat16"), ((10, 0), True, True, "bfloat16"), ((8, 0), True, True, "bfloat16"),
    ((7, 5), True, False, "float16"), ((7, 0), True, False, "float16"), ((6, 1), False, False, "float16"),
    ((5, 3), False, False, "float16"), ((5, 2), False, False, "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("capability", "mixed", "bfloat16", "dtype"), CAPABILITIES)
def test_a_gpus_capability_decides_on_16_bit_types(capability: Any, mixed: bool, bfloat16: bool, dtype: str) -> None:
    built = build_capabilities(DeviceType.GPU, [HostDevice("some GPU", GIB, capability)])
    assert (built.supports_mixed_precision, built.supports_bfloat16) == (mixed, bfloat16)
    assert choose_compute_dtype(built) == dtype


@pytest.mark.parametrize(("kind", "dtype"), [
    ("NVIDIA H100 80GB HBM3", "bfloat16"), ("Tesla T4", "float16"), ("AMD Instinct MI300X", "bfloat16"),
    ("NVIDIA GeForce RTX 9999", "float32"),
])  # fmt: skip
def test_without_a_compute_capability_the_chip_table_decides(kind: str, dtype: str) -> None:
    assert choose_compute_dtype(build_capabilities(DeviceType.GPU, [HostDevice(kind)])) == dtype


@pytest.mark.parametrize("device", build_host(cpu=1, gpu=1, tpu=1))
def test_fake_devices_are_like_real_ones(device: object) -> None:
    check_device(device)


def test_memory_of_fewer_unequal_devices_is_unknown() -> None:
    found = build_capabilities(DeviceType.GPU, [HostDevice("a", GIB, (9, 0)), HostDevice("b", 2 * GIB, (9, 0))])
    assert complete_capabilities(found, [FakeGpu(0)]).total_memory_mb is None
    assert complete_capabilities(found, [FakeGpu(0), FakeGpu(1)]) == found


def test_jax_fills_in_what_the_driver_does_not_report() -> None:
    found = complete_capabilities(DeviceCapabilities(DeviceType.GPU, 2, driver_version="535.1"), [FakeGpu(0)])
    assert (found.device_count, found.driver_version, found.compute_capability) == (1, "535.1", "9.0")
    assert (found.supports_bfloat16, found.device_kinds) == (True, ("NVIDIA H100 80GB HBM3",))


def test_another_platform_of_jax_changes_nothing() -> None:
    found = DeviceCapabilities(DeviceType.GPU, 2)
    for devices in (jax.devices("cpu"), [FakeDevice(0, "METAL")], []):
        assert complete_capabilities(found, devices) == found


def configure(monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    """Gives JAX options that this process does not have, before its start."""
    monkeypatch.setattr(_host_devices, "jax", SimpleNamespace(config=SimpleNamespace(values=options)))


# ---- CPU ----


@pytest.mark.parametrize(("flags", "count"), [
    (None, 1), ("", 1), ("--xla_force_host_platform_device_count=3", 3),
    ("--a=1 --xla_force_host_platform_device_count=3 --xla_force_host_platform_device_count=5", 5),
])  # fmt: skip
def test_xla_flags_ask_for_cpu_devices(flags: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_devices, "has_backend_started", lambda: False)
    configure(monkeypatch, jax_num_cpu_devices=-1)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if flags is not None:
        monkeypatch.setenv("XLA_FLAGS", flags)
    assert CPUDetector().detect_capabilities().device_count == count


def test_memory_that_the_kernel_does_not_tell_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_devices, "ROOT", tmp_path)
    assert CPUDetector().detect_capabilities().total_memory_mb is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("nothing\n")
    assert CPUDetector().detect_capabilities().total_memory_mb is None


# ---- the detector of this process ----


@pytest.mark.parametrize(("platforms", "gpus", "tpus", "chosen"), [
    ("", 1, 1, CUDADetector), ("", 1, 0, CUDADetector), ("", 0, 1, TPUDetector), ("", 0, 0, CPUDetector),
    ("cpu", 1, 1, CPUDetector), ("tpu,cpu", 1, 1, TPUDetector), ("cuda,cpu", 0, 0, CUDADetector),
])  # fmt: skip
def test_the_choice_is_jaxs(platforms: str, gpus: int, tpus: int, chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_host_devices, "has_backend_started", lambda: False)
    monkeypatch.setattr(_host_devices, "_read_cuda_plugins", lambda: {12: ""})
    monkeypatch.setenv("TPU_LIBRARY_PATH", "libtpu.so")
    configure(monkeypatch, jax_platforms=platforms)
    for detector, kind, count in ((CUDADetector, DeviceType.GPU, gpus), (TPUDetector, DeviceType.TPU, tpus)):
        found = DeviceCapabilities(kind, count)
        monkeypatch.setattr(detector, "detect_capabilities", lambda _self, found=found: found)
    assert isinstance(choose_detector(), chosen)
