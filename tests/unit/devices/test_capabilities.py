from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import jax
import pytest

from meshwright._devices.capabilities import (
    DevicePart,
    build_capabilities,
    choose_compute_dtype,
    complete,
    describe_jax_devices,
    parse_capability,
)
from meshwright.devices import (
    CPUDetector,
    CUDADetector,
    DeviceCapabilities,
    DeviceDetector,
    DeviceType,
    MemoryStrategy,
    TPUDetector,
)
from tests.fakes.gpu_devices import FakeDevice, FakeGpu, build_host, check_device

GIB = 2**30


def test_the_types_of_devices_are_these() -> None:
    assert {kind.name: kind.value for kind in DeviceType} == {"CPU": "cpu", "GPU": "gpu", "TPU": "tpu"}


def test_the_memory_strategies_and_their_fractions_are_these() -> None:
    assert {strategy.value: strategy.fraction for strategy in MemoryStrategy} == {
        "conservative": 0.60,
        "balanced": 0.75,
        "aggressive": 0.90,
        "custom": None,
    }


def test_capabilities_have_the_published_fields_in_order_with_their_defaults() -> None:
    names = [field.name for field in fields(DeviceCapabilities)]
    assert names[:8] == [
        "device_type",
        "device_count",
        "total_memory_mb",
        "compute_capability",
        "cuda_version",
        "driver_version",
        "supports_mixed_precision",
        "supports_distributed",
    ]
    least = DeviceCapabilities(DeviceType.CPU, 1)
    assert [getattr(least, name) for name in names[2:8]] == [None, None, None, None, False, False]


def test_capabilities_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        DeviceCapabilities(DeviceType.CPU, 1).device_count = 2  # type: ignore[misc]


@pytest.mark.parametrize("count", [-1, 1.5, True, None])
def test_a_count_that_is_none_is_refused(count: Any) -> None:
    with pytest.raises(ValueError, match=r"device_count is .*0 or more, such as 8"):
        DeviceCapabilities(DeviceType.GPU, count)


@pytest.mark.parametrize("detector", [CPUDetector(), CUDADetector(), TPUDetector()])
def test_every_detector_that_ships_is_one(detector: object) -> None:
    assert isinstance(detector, DeviceDetector)


CAPABILITIES = [
    ((9, 0), True, True, "bfloat16"),
    ((10, 0), True, True, "bfloat16"),
    ((8, 0), True, True, "bfloat16"),
    ((7, 5), True, False, "float16"),
    ((7, 0), True, False, "float16"),
    ((6, 1), False, False, "float16"),
    ((5, 3), False, False, "float16"),
    ((5, 2), False, False, "float32"),
]


@pytest.mark.parametrize(("capability", "mixed", "bfloat16", "dtype"), CAPABILITIES)
def test_a_gpus_compute_capability_decides_on_16_bit_types(
    capability: tuple[int, int], mixed: bool, bfloat16: bool, dtype: str
) -> None:
    built = build_capabilities(DeviceType.GPU, [DevicePart("some GPU", GIB, capability)])
    assert (built.supports_mixed_precision, built.supports_bfloat16) == (mixed, bfloat16)
    assert choose_compute_dtype(built) == dtype


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16"),
        ("Tesla T4", "float16"),
        ("AMD Instinct MI300X", "bfloat16"),
        ("NVIDIA GeForce RTX 9999", "float32"),
    ],
)
def test_without_a_compute_capability_the_chip_table_decides(kind: str, dtype: str) -> None:
    assert choose_compute_dtype(build_capabilities(DeviceType.GPU, [DevicePart(kind)])) == dtype


@pytest.mark.parametrize(
    ("told", "dtype"),
    [
        (DeviceCapabilities(DeviceType.GPU, 1, compute_capability="8.0"), "bfloat16"),
        (DeviceCapabilities(DeviceType.GPU, 1, compute_capability="7.5"), "float16"),
        (DeviceCapabilities(DeviceType.GPU, 1, supports_mixed_precision=True), "float16"),
        (DeviceCapabilities(DeviceType.GPU, 1), "float32"),
        (DeviceCapabilities(DeviceType.TPU, 4), "bfloat16"),
        (DeviceCapabilities(DeviceType.CPU, 8, supports_mixed_precision=True), "float32"),
    ],
)
def test_a_callers_own_detector_need_not_tell_what_follows(told: DeviceCapabilities, dtype: str) -> None:
    assert choose_compute_dtype(told) == dtype


def test_what_all_gpus_can_do_is_told_of_different_ones() -> None:
    built = build_capabilities(DeviceType.GPU, [DevicePart("a", GIB, (9, 0)), DevicePart("b", 2 * GIB, (7, 5))])
    assert built.compute_capability == "7.5"
    assert (built.supports_mixed_precision, built.supports_bfloat16) == (True, False)
    assert (built.total_memory_mb, built.device_memory_bytes) == (3 * 1024, (GIB, 2 * GIB))
    assert built.device_kinds == ("a", "b")


def test_ten_is_more_than_nine() -> None:
    built = build_capabilities(DeviceType.GPU, [DevicePart("a", GIB, (10, 0)), DevicePart("b", GIB, (9, 0))])
    assert built.compute_capability == "9.0"


def test_a_total_with_an_unknown_part_is_unknown() -> None:
    built = build_capabilities(DeviceType.GPU, [DevicePart("a", GIB, (9, 0)), DevicePart("b")])
    assert (built.total_memory_mb, built.device_memory_bytes, built.compute_capability) == (None, (), None)


def test_nothing_here_can_nothing() -> None:
    assert build_capabilities(DeviceType.GPU, []) == DeviceCapabilities(DeviceType.GPU, 0)


@pytest.mark.parametrize(("count", "expected"), [(1, False), (2, True)])
def test_several_devices_can_be_joined(count: int, expected: bool) -> None:
    assert build_capabilities(DeviceType.GPU, [DevicePart()] * count).supports_distributed is expected


@pytest.mark.parametrize("device", build_host(cpu=1, gpu=1, tpu=1))
def test_fake_devices_are_like_real_ones(device: object) -> None:
    check_device(device)


def test_jax_devices_tell_kind_count_and_compute_capability() -> None:
    said = describe_jax_devices([FakeGpu(0), FakeGpu(1, compute_capability="8.9")])
    assert said is not None
    assert (said.device_type, said.device_count, said.compute_capability) == (DeviceType.GPU, 2, "8.9")
    assert said.total_memory_mb is None


def test_jax_devices_of_an_unknown_platform_tell_nothing() -> None:
    assert describe_jax_devices([FakeDevice(0, "METAL")]) is None
    assert describe_jax_devices([]) is None


def test_real_cpu_devices_tell_their_count() -> None:
    said = describe_jax_devices(jax.devices("cpu"))
    assert said is not None
    assert (said.device_type, said.device_count, said.supports_mixed_precision) == (DeviceType.CPU, 8, False)


def test_jax_fills_in_what_the_driver_did_not_tell_and_overrides_nothing() -> None:
    told = DeviceCapabilities(DeviceType.GPU, 2, driver_version="535.1", device_kinds=("driver's name",))
    done = complete(told, describe_jax_devices([FakeGpu(0), FakeGpu(1)]))
    assert (done.compute_capability, done.supports_bfloat16, done.supports_distributed) == ("9.0", True, True)
    assert (done.driver_version, done.device_kinds) == ("535.1", ("driver's name",))


def test_a_process_with_fewer_devices_than_cuda_shows_counts_its_own() -> None:
    told = build_capabilities(DeviceType.GPU, [DevicePart("NVIDIA H100", 80 * GIB, (9, 0))] * 8)
    done = complete(told, describe_jax_devices([FakeGpu(3)]))
    assert (done.device_count, done.total_memory_mb, done.device_memory_bytes) == (1, 80 * 1024, (80 * GIB,))


def test_memory_of_fewer_unequal_devices_is_unknown() -> None:
    told = build_capabilities(DeviceType.GPU, [DevicePart("a", GIB, (9, 0)), DevicePart("b", 2 * GIB, (9, 0))])
    assert complete(told, describe_jax_devices([FakeGpu(0)])).total_memory_mb is None


def test_another_platform_of_jax_changes_nothing() -> None:
    told = DeviceCapabilities(DeviceType.GPU, 2)
    assert complete(told, describe_jax_devices(jax.devices("cpu"))) == told
    assert complete(told, None) == told


@pytest.mark.parametrize(("text", "expected"), [("9.0", (9, 0)), ("12.1", (12, 1)), ("gfx942", None), (None, None)])
def test_only_nvidias_compute_capability_is_read(text: object, expected: object) -> None:
    assert parse_capability(text) == expected


@pytest.mark.parametrize(
    ("device_type", "dtype"), [(DeviceType.TPU, "bfloat16"), (DeviceType.CPU, "float32"), (DeviceType.GPU, "bfloat16")]
)
def test_bfloat16_is_taken_where_it_is_in_hardware(device_type: DeviceType, dtype: str) -> None:
    has_it = device_type is not DeviceType.CPU
    assert choose_compute_dtype(DeviceCapabilities(device_type, 1, supports_bfloat16=has_it)) == dtype


def test_a_cpu_computes_in_float32_whatever_it_says() -> None:
    assert choose_compute_dtype(DeviceCapabilities(DeviceType.CPU, 1, supports_mixed_precision=True)) == "float32"
