from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright import _host_devices
from meshwright.devices import CUDADetector, DeviceCapabilities, DeviceType
from tests.fakes.nvml import FakeNvml
from tests.fakes.tree import RECORDED

Detect = Callable[..., DeviceCapabilities]
MIB = 2**20
NOWHERE = Path("/nowhere")
A100 = "GPU-5c89852c-5b1e-4c0a-9d6f-00000000a00"
H100_MIB = 81559


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / name / "nvml.json").read_text())
    return document


@pytest.fixture
def detect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DeviceCapabilities]:
    """Detects the GPUs of a fake NVML, or of the files of a folder, in an environment."""

    def run(nvml: FakeNvml | None, environ: dict[str, str] | None = None, root: Path = NOWHERE) -> DeviceCapabilities:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(_host_devices, "ROOT", root)
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        return CUDADetector().detect_capabilities()

    return run


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plant_proc(root: Path) -> Path:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.129.03  Release Build\nGCC: 12.3.0\n"
    proc = root / "proc"
    write(proc / "driver/nvidia/version", version)
    for index in range(2):
        uuid = f"GPU-00000000-0000-0000-0000-00000000000{index}"
        write(
            proc / f"driver/nvidia/gpus/0000:0{index}:00.0/information",
            f"Model: NVIDIA H100 80GB HBM3\nGPU UUID: {uuid}\n",
        )
    return root


def test_eight_gpus_are_told_with_all_that_nvml_says(detect: Detect) -> None:
    assert detect(FakeNvml(load("dgx-h100"))) == DeviceCapabilities(
        DeviceType.GPU, 8, total_memory_mb=8 * H100_MIB, compute_capability="9.0", cuda_version="12.2",
        driver_version="535.129.03", supports_mixed_precision=True, supports_distributed=True, supports_bfloat16=True,
        device_kinds=("NVIDIA H100 80GB HBM3",), device_memory_bytes=(H100_MIB * MIB,) * 8,
    )  # fmt: skip


VISIBLE = [("0", 1), ("2,0", 2), ("", 0), ("-1", 0), ("0,9,1", 1), ("NoDevFiles", 0), ("7,6,5,4,3,2,1,0", 8)]


@pytest.mark.parametrize(("visible", "count"), VISIBLE)
def test_cuda_visible_devices_is_honored(visible: str, count: int, detect: Detect) -> None:
    shown = detect(FakeNvml(load("dgx-h100")), {"CUDA_VISIBLE_DEVICES": visible})
    assert (shown.device_count, shown.supports_distributed) == (count, count > 1)
    assert shown.total_memory_mb == (count * H100_MIB if count else None)
    assert shown.cuda_version == "12.2"


@pytest.mark.parametrize(("visible", "kind", "memory_mb"), [
    (None, "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968),
    ("0", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968),
    ("1,0", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 19968),
    ("MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d", "NVIDIA A100-SXM4-40GB MIG 2g.10gb", 9856),
    ("MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d,MIG-84fd49f2-48ad-50e8-9f2e-3bf0dfd47ccb",
     "NVIDIA A100-SXM4-40GB MIG 2g.10gb", 9856),
    ("1", "NVIDIA A100-SXM4-40GB", 40960),
])  # fmt: skip
def test_cuda_shows_one_mig_instance_and_no_gpu(visible: str | None, kind: str, memory_mb: int, detect: Detect) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    shown = detect(FakeNvml(load("mig-a100")), environ)
    assert (shown.device_count, shown.device_kinds, shown.total_memory_mb) == (1, (kind,), memory_mb)
    assert (shown.compute_capability, shown.supports_bfloat16, shown.supports_distributed) == ("8.0", True, False)


def mix_models() -> dict[str, Any]:
    document = copy.deepcopy(load("dgx-h100"))
    document["gpus"] = document["gpus"][:2]
    document["gpus"][1] |= {"name": "Tesla T4", "capability": [7, 5], "memory": [16 * 2**30, 0]}
    return document


def test_of_different_models_by_number_only_the_count_is_certain(detect: Detect) -> None:
    shown = detect(FakeNvml(mix_models()), {"CUDA_VISIBLE_DEVICES": "0"})
    assert (shown.device_count, shown.device_kinds) == (1, ())
    assert (shown.compute_capability, shown.total_memory_mb) == (None, None)


@pytest.mark.parametrize(("function", "field"), [
    ("nvmlDeviceGetMemoryInfo", "total_memory_mb"), ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
    ("nvmlSystemGetDriverVersion", "driver_version"), ("nvmlSystemGetCudaDriverVersion_v2", "cuda_version"),
])  # fmt: skip
def test_a_question_that_nvml_cannot_answer_costs_one_field(function: str, field: str, detect: Detect) -> None:
    document = load("dgx-h100")
    shown = detect(FakeNvml(document, {function: pynvml.NVML_ERROR_UNKNOWN}))
    missing = {name for name in ("total_memory_mb", "compute_capability", "driver_version", "cuda_version")
               if getattr(shown, name) is None}  # fmt: skip
    assert missing == {field}
    assert shown.device_count == 8


def test_without_nvml_the_kernel_modules_files_tell_cards_and_driver(tmp_path: Path, detect: Detect) -> None:
    shown = detect(None, root=plant_proc(tmp_path))
    assert shown == DeviceCapabilities(
        DeviceType.GPU, 2, driver_version="535.129.03", supports_mixed_precision=True, supports_distributed=True,
        supports_bfloat16=True, device_kinds=("NVIDIA H100 80GB HBM3",),
    )  # fmt: skip
