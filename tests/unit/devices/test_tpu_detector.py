from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright import _host_devices
from meshwright.devices import DeviceCapabilities, DeviceType, TPUDetector
from tests.fakes.tree import RECORDED, plant

Detect = Callable[..., DeviceCapabilities]
GIB = 2**30


def plant_chips(root: Path, *ids: str) -> None:
    for index, device in enumerate(ids):
        folder = root / f"sys/bus/pci/devices/0000:00:0{index}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1ae0\n")
        (folder / "device").write_text(f"{device}\n")


@pytest.fixture
def detect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Detect:
    """Detects the TPUs of the files of `tmp_path`, in an environment."""

    def run(environ: dict[str, str] | None = None) -> DeviceCapabilities:
        monkeypatch.setattr(_host_devices, "ROOT", tmp_path)
        for name in [name for name in os.environ if name.startswith("TPU_")]:
            monkeypatch.delenv(name)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        return TPUDetector().detect_capabilities()

    return run


@pytest.mark.parametrize(
    ("machine", "count", "kind", "gib"), [("tpu-v5e-8", 8, "TPU v5 lite", 16), ("tpu-v5p-4", 4, "TPU v5", 95)]
)
def test_recorded_tpus_are_told(machine: str, count: int, kind: str, gib: int, tmp_path: Path, detect: Detect) -> None:
    plant((RECORDED / machine / "tree.txt").read_text(), tmp_path)
    environ = json.loads((RECORDED / machine / "environ.json").read_text())
    assert detect(environ) == DeviceCapabilities(
        DeviceType.TPU, count, total_memory_mb=count * gib * 1024, supports_mixed_precision=True,
        supports_distributed=True, supports_bfloat16=True, device_kinds=(kind,),
        device_memory_bytes=(gib * GIB,) * count,
    )  # fmt: skip


@pytest.mark.parametrize(("pci_id", "environ", "count", "kind"),[
    ("0x0076", {}, 2, "TPU7x"), ("0x0027", {}, 2, None), ("0x0027", {"TPU_ACCELERATOR_TYPE": "v3-8"}, 2, "TPU v3"),
    ("0x005e", {}, 1, "TPU v4"), ("0x006f", {}, 1, "TPU v6 lite"), ("0x0083", {}, 2, "TPU8i"),
    ("0x007c", {}, 1, "TPU8t"), ("0x0056", {}, 1, None),
])  # fmt: skip
def test_a_chip_is_one_or_two(pci_id: str, environ: Any, count: int, kind: Any, tmp_path: Path, detect: Detect) -> None:
    plant_chips(tmp_path, pci_id)
    shown = detect(environ)
    assert (shown.device_count, shown.device_kinds) == (count, (kind,) if kind else ())
    assert (shown.supports_bfloat16, shown.supports_mixed_precision) == (True, True)


@pytest.mark.parametrize("name", ["TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"])
def test_only_visible_chips_count(name: str, tmp_path: Path, detect: Detect) -> None:
    plant_chips(tmp_path, *["0x0063"] * 4)
    assert detect({name: "1,2"}).device_count == 2
    assert detect({name: "0,9"}).device_count == 1


def test_without_a_pci_bus_the_accel_drivers_files_count(tmp_path: Path, detect: Detect) -> None:
    for name in ("accel0", "accel1", "accelerated"):
        (tmp_path / "dev" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "dev" / name).write_text("")
    shown = detect({"TPU_ACCELERATOR_TYPE": "v4-16"})
    assert (shown.device_count, shown.device_kinds) == (2, ("TPU v4",))


@pytest.mark.parametrize(("environ", "is_part"),[
    ({}, False), ({"TPU_WORKER_HOSTNAMES": "localhost"}, False), ({"TPU_WORKER_HOSTNAMES": "a,b,"}, True),
    ({"TPU_HOST_BOUNDS": "2,2,1"}, True), ({"TPU_PROCESS_BOUNDS": "1,2,1"}, True), ({"TPU_HOST_BOUNDS": "many"}, False),
])  # fmt: skip
def test_a_chip_of_a_larger_slice_can_be_joined(environ: Any, is_part: bool, tmp_path: Path, detect: Detect) -> None:
    plant_chips(tmp_path, "0x0063")
    assert detect(environ).supports_distributed is is_part
