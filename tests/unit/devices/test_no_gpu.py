from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshwright import _host_devices
from meshwright.devices import GpuSnapshot, explain_no_gpu, read_gpu_snapshot
from meshwright.topology.identity import HostGpu
from tests.fakes.cuda_library import STUB_LIBRARY, FakeCudaLibrary, check_library, provide, refuse
from tests.fakes.nvml import FakeNvml
from tests.fakes.tree import RECORDED, plant

GPUS = tuple(HostGpu(f"0000:0{n}:00.0", f"GPU-{n}0000000-0000-0000-0000-000000000000", "H100") for n in range(2))

FINE = GpuSnapshot(
    device_files=("nvidia0", "nvidiactl"), cards=("0000:00:00.0", "0000:01:00.0"), cuda_number=13000,
    driver_version="580.65", plugins={13: "0.12.0"}, jax_version="0.12.0", gpus=GPUS,
)  # fmt: skip

BROKEN: list[tuple[str, dict[str, Any], list[str]]] = [
    ("no_device_file", {"device_files": (), "cards": ()}, ["no NVIDIA card is on the PCI bus", "run where"]),
    ("no_device_file", {"device_files": ()}, ["2 NVIDIA card", "--gpus all"]),
    ("no_device_file", {"device_files": (), "container_visible": "void"}, ["NVIDIA_VISIBLE_DEVICES is 'void'"]),
    ("no_driver_library", {"library_error": "cannot open"}, ["cannot open", "libcuda.so.1", "install the driver's"]),
    ("driver_too_old", {"cuda_number": 12020}, ["up to 12.2", "CUDA 13", "580 or newer", "jax[cuda12]"]),
    ("driver_too_old", {"cuda_number": 11080, "plugins": {12: "0.12"}}, ["up to 11.8", "525 or newer", "update"]),
    ("no_cuda_plugin", {"plugins": {}}, ["jax 0.12.0 is installed without", "jax[cuda13]"]),
    ("no_cuda_plugin", {"plugins": {}, "cuda_number": 12020}, ["jax[cuda12]"]),
    ("cuda_visible_devices", {"visible": ""}, ["CUDA_VISIBLE_DEVICES is ''", "CUDA_VISIBLE_DEVICES=0"]),
    ("cuda_visible_devices", {"visible": "-1"}, ["CUDA_VISIBLE_DEVICES is '-1'", "hides all"]),
    ("cuda_visible_devices", {"visible": "NoDevFiles"}, ["NoDevFiles"]),
    ("cuda_visible_devices", {"visible": "2"}, ["'2'; this host has 2"]),
    ("cuda_visible_devices", {"visible": "GPU-ffff"}, ["GPU-ffff"]),
    ("cuda_visible_devices", {"visible": "", "gpus": ()}, ["CUDA_VISIBLE_DEVICES is ''"]),
    ("jax_platforms", {"jax_platforms": "cpu"}, ["'cpu'", "JAX_PLATFORMS=cuda,cpu"]),
    ("jax_platforms", {"jax_platforms": "tpu,cpu"}, ["'tpu,cpu'"]),
]


@pytest.mark.parametrize(("code", "change", "words"), BROKEN)
def test_each_reason_is_named_alone_with_rule_and_hint(code: str, change: dict[str, Any], words: list[str]) -> None:
    (reason,) = explain_no_gpu(replace(FINE, **change))
    assert reason.code == code
    assert reason.found
    assert reason.rule
    assert reason.hint
    for word in words:
        assert word in str(reason)


@pytest.mark.parametrize("change", [
    {"visible": "0"}, {"visible": "1,9"}, {"visible": GPUS[1].uuid},
    {"visible": "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"}, {"visible": "7", "gpus": ()},
    {"jax_platforms": "cuda,cpu"}, {"jax_platforms": "gpu"}, {"jax_platforms": ""}, {"cuda_number": None},
    {"cuda_number": 13010}, {"cuda_number": 12020, "plugins": {12: "0.12", 13: "0.12"}}, {"device_files": ("dxg",)},
])  # fmt: skip
def test_what_lets_jax_find_a_gpu_is_no_reason(change: dict[str, Any]) -> None:
    assert explain_no_gpu(replace(FINE, **change)) == ()


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., GpuSnapshot]:
    """Takes a snapshot of a recorded machine."""

    def run(machine: str, *, nvml: Any = None, load: Callable[[str], Any] = refuse, **plugins: str) -> GpuSnapshot:
        plant((RECORDED / machine / "tree.txt").read_text(), tmp_path)
        monkeypatch.setattr(_host_devices, "ROOT", tmp_path)
        monkeypatch.setattr(_host_devices, "_read_cuda_plugins", lambda: {int(k[4:]): v for k, v in plugins.items()})
        monkeypatch.setattr(ctypes, "CDLL", load)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        config = SimpleNamespace(values={"jax_platforms": ""})
        monkeypatch.setattr(_host_devices, "jax", SimpleNamespace(config=config, __version__="0.12.0"))
        for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        return read_gpu_snapshot()

    return run


def test_a_recorded_gpu_machine_with_all_that_jax_needs_has_no_reason(look: Callable[..., GpuSnapshot]) -> None:
    nvml = FakeNvml(json.loads((RECORDED / "dgx-h100/nvml.json").read_text()))
    snapshot = look("dgx-h100", nvml=nvml, load=provide(FakeCudaLibrary(12020)), cuda12="0.10.2")
    assert (len(snapshot.cards), len(snapshot.gpus), snapshot.driver_version) == (8, 8, "535.129.03")
    assert (snapshot.cuda_number, snapshot.library_error) == (12020, None)
    assert explain_no_gpu(snapshot) == ()
    assert not nvml.is_open


def test_a_recorded_machine_without_gpus_lacks_file_library_and_plugin(look: Callable[..., GpuSnapshot]) -> None:
    codes = [reason.code for reason in explain_no_gpu(look("cpu-vm"))]
    assert codes == ["no_device_file", "no_driver_library", "no_cuda_plugin"]


def test_the_toolkits_stub_is_no_driver(look: Callable[..., GpuSnapshot]) -> None:
    snapshot = look("cpu-vm", load=provide(FakeCudaLibrary(0, STUB_LIBRARY)))
    assert "stub" in (snapshot.library_error or "")
    assert snapshot.cuda_number is None


@pytest.mark.parametrize("status", [0, STUB_LIBRARY, 999])
def test_the_fake_library_can_be_called_from_c(status: int) -> None:
    assert check_library(FakeCudaLibrary(12020, status)) == status


def test_jaxs_plugins_are_found_by_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jax_cuda13_pjrt-0.12.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-cuda13-pjrt\nVersion: 0.12.0\n")
    (folder / "entry_points.txt").write_text("[jax_plugins]\nxla_cuda13 = jax_plugins.xla_cuda13\n")
    assert _host_devices._read_cuda_plugins() == {}
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _host_devices._read_cuda_plugins() == {13: "0.12.0"}
