"""The batch-size table and the devices, through `DevicePlacement`: every row and phrase of the contract."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from meshwright.placement import BatchSizeRecommendation, DevicePlacement, HardwareType, get_batch_size_recommendation

RECORDED = Path(__file__).parents[2] / "recorded"

VALUES = {
    "TPU_V5E": "tpu_v5e", "TPU_V5P": "tpu_v5p", "TPU_V4": "tpu_v4", "H100": "h100", "A100": "a100", "V100": "v100",
    "CPU": "cpu", "UNKNOWN": "unknown",
}  # fmt: skip
LATER = ["TPU_V2", "TPU_V3", "TPU_V6E", "TPU_7X", "H200", "B200", "GB200", "L4", "A10", "T4", "MI300X"]

PUBLISHED = [
    (HardwareType.TPU_V5E, 64, 256, 240, "roofline"), (HardwareType.TPU_V5P, 128, 512, 480, "Higher throughput"),
    (HardwareType.TPU_V4, 64, 256, 192, "somewhat lower critical"), (HardwareType.H100, 64, 320, 298, "roofline"),
    (HardwareType.A100, 32, 256, 240, "80 GB variant"), (HardwareType.V100, 16, 128, 96, "16 GB"),
    (HardwareType.CPU, 1, 32, 16, "memory bandwidth"), (HardwareType.UNKNOWN, 32, 128, 64, "conservative default"),
]  # fmt: skip


def build_fakes(*said: dict[str, Any]) -> list[Any]:
    """Devices that are not here, of one client, with the attributes of `jax.Device` that are read."""
    kept: list[Any] = []
    client = SimpleNamespace(devices=lambda: kept)
    known = {"id": 0, "process_index": 0, "local_hardware_id": 0, "coords": None, "memory_stats": None}
    for each in said:
        fields = {**known, **each, "client": client}
        stats = fields.pop("memory_stats")
        kept.append(SimpleNamespace(**fields, memory_stats=lambda stats=stats: stats))
    return kept


def build_recorded(machine: str) -> list[Any]:
    """Devices as `jax.devices()` gave them on a recorded machine."""
    recorded = json.loads((RECORDED / machine / "jax.json").read_text())["devices"]
    devices = build_fakes(*({**said, "device_kind": said["kind"]} for said in recorded))
    for device in devices:
        check_fake(device)
    return devices


def check_fake(device: Any) -> None:
    """What a fake says, a real device says as well, and by the same names."""
    real = jax.devices()[0]
    for name in ("id", "platform", "device_kind", "process_index", "local_hardware_id"):
        assert type(getattr(real, name)) is type(getattr(device, name)), name
    assert isinstance(real.client.devices(), list)
    assert real.memory_stats() is None
    assert set(device.memory_stats()) >= {"bytes_limit", "bytes_in_use"}  # as jaxlib names them


def make_placement(platform: str, kind: str) -> DevicePlacement:
    return DevicePlacement(build_fakes({"platform": platform, "device_kind": kind})[0])


def test_hardware_types_are_an_enum_with_the_values_of_the_contract() -> None:
    assert issubclass(HardwareType, Enum)
    assert {name: HardwareType[name].value for name in VALUES} == VALUES
    assert all(HardwareType[name].value == name.lower() for name in LATER)


@pytest.mark.parametrize(("hardware", "least", "best", "critical", "words"), PUBLISHED)
def test_rows_are_as_published(hardware: HardwareType, least: int, best: int, critical: int, words: str) -> None:
    for row in (get_batch_size_recommendation(hardware), DevicePlacement().get_batch_size_recommendation(hardware)):
        assert isinstance(row, BatchSizeRecommendation)
        assert (row.min_batch_size, row.optimal_batch_size, row.critical_batch_size) == (least, best, critical)
        assert row.max_memory_batch_size is None
        assert words in row.notes


def test_no_hardware_type_means_that_of_the_device() -> None:
    assert get_batch_size_recommendation() == get_batch_size_recommendation(HardwareType.CPU)
    h100 = make_placement("gpu", "NVIDIA H100 80GB HBM3")
    assert h100.get_batch_size_recommendation().critical_batch_size == 298
    assert h100.get_batch_size_recommendation(HardwareType.V100).critical_batch_size == 96


@pytest.mark.parametrize(("batch", "warn", "valid", "words"), [
    (63, True, False, "below minimum"), (63, False, False, "below minimum"), (0, True, False, "below minimum"),
    (64, True, True, "below critical"), (297, True, True, "below critical"), (297, False, True, "is valid"),
    (298, True, True, "at or above the critical 298"), (4096, False, True, "at or above the critical 298"),
])  # fmt: skip
def test_a_batch_size_is_judged_as_the_contract_says(batch: int, warn: bool, valid: bool, words: str) -> None:
    verdict, text = make_placement("gpu", "NVIDIA H100 80GB HBM3").validate_batch_size(batch, warn)
    assert verdict is valid
    assert words in text
    assert ("below critical" in text) == (words == "below critical")


def test_the_devices_here_are_told_and_cpus_say_nothing_of_memory() -> None:
    placement = DevicePlacement(jax.devices()[3])
    info = placement.get_device_info()
    assert placement.num_devices == info["num_devices"] == 8
    assert (info["hardware_type"], info["platforms"], info["device_kinds"]) == ("cpu", ["cpu"], ["cpu"])
    assert [device["id"] for device in info["devices"]] == [device.id for device in jax.devices()]
    for device in info["devices"]:
        assert (device["platform"], device["device_kind"], device["process_index"]) == ("cpu", "cpu", 0)
        assert device["memory_limit_bytes"] is None
        assert device["memory_in_use_bytes"] is None
    assert json.loads(json.dumps(info)) == info


@pytest.mark.parametrize(("machine", "count", "hardware", "kind", "limit_bytes", "coords"), [
    ("dgx-h100", 8, "h100", "NVIDIA H100 80GB HBM3", 63_779_000_000, None),
    ("tpu-v5e-8", 8, "tpu_v5e", "TPU v5 lite", 16_909_334_528, [1, 0, 0]),
    ("mig-a100", 1, "unknown", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 15_300_000_000, None),
])  # fmt: skip
def test_accelerators_tell_their_memory_and_coordinates(
    machine: str, count: int, hardware: str, kind: str, limit_bytes: int, coords: Any
) -> None:
    devices = build_recorded(machine)
    info = DevicePlacement(devices[-1]).get_device_info()
    assert (info["num_devices"], info["hardware_type"], info["device_kinds"]) == (count, hardware, [kind])
    assert len(info["devices"]) == count
    told = info["devices"][min(1, count - 1)]
    assert told["memory_limit_bytes"] == limit_bytes
    assert isinstance(told["memory_in_use_bytes"], int)
    assert told["coords"] == coords
