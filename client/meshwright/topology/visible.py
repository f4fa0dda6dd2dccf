"""Which NVIDIA GPUs CUDA shows this process, by uuid. No CUDA context is made and nothing stays open.

Rule: `read_` asks the kernel module's files, else the driver's library; `parse_` is pure. What cannot be said
for certain is None, never a guess: then devices are known by their position.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc/driver/nvidia/gpus")
"""One folder a GPU, named by its PCI address. Source: NVIDIA driver README, "The /proc file system
interface"."""


@dataclass(frozen=True)
class HostGpu:
    """A GPU of this host (or of this container), with what orders it."""

    pci_bus_id: str
    uuid: str
    model: str = ""


@dataclass(frozen=True)
class VisibleGpu:
    """What CUDA shows this process. `host_position`: the GPU's place in PCI order; of a MIG instance None."""

    uuid: str
    host_position: int | None


def read_visible_gpus(environ: Mapping[str, str], *, proc: Path = PROC) -> tuple[VisibleGpu, ...] | None:
    """Returns the GPUs in CUDA's order, as `jax.Device.local_hardware_id` counts them; None where that is
    unknown."""
    return parse_visible(environ, read_gpus_from_proc(proc) or read_gpus_from_nvml(_find_nvml()))


def read_gpus_from_proc(proc: Path) -> tuple[HostGpu, ...]:
    """Returns the GPUs that the kernel module lists, in PCI order; none where it is not loaded."""
    files = sorted(proc.glob("*/information"), key=lambda file: file.parent.name.lower())
    gpus = (parse_information(file.parent.name, _read_text(file)) for file in files)
    return tuple(gpu for gpu in gpus if gpu is not None)


def parse_information(pci_bus_id: str, text: str) -> HostGpu | None:
    """Returns the GPU that a file `information` describes; None where it has no uuid."""
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    uuid = fields.get("GPU UUID", "")
    return HostGpu(pci_bus_id, uuid, fields.get("Model", "")) if uuid.startswith("GPU-") and "?" not in uuid else None


def read_gpus_from_nvml(nvml: Any) -> tuple[HostGpu, ...]:
    """Returns the GPUs that NVML lists, in PCI order; none where there is no NVML or it fails."""
    if nvml is None:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        gpus = [
            HostGpu(
                _to_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
                _to_text(nvml.nvmlDeviceGetUUID(handle)),
                _to_text(nvml.nvmlDeviceGetName(handle)),
            )
            for handle in handles
        ]
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()
    return tuple(sorted(gpus, key=lambda gpu: gpu.pci_bus_id.lower()))


def parse_visible(environ: Mapping[str, str], gpus: Sequence[HostGpu]) -> tuple[VisibleGpu, ...] | None:
    """Returns what CUDA_VISIBLE_DEVICES leaves of `gpus` (which are in PCI order), in CUDA's order.

    Numbers count in PCI order when CUDA_DEVICE_ORDER says so or all GPUs are of one model; else CUDA orders
    them by speed, which cannot be told from here: None. The list ends at its first wrong entry.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    is_pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) <= 1
    if text is None:
        return tuple(VisibleGpu(gpu.uuid, rank) for rank, gpu in enumerate(gpus)) if gpus and is_pci_order else None
    visible: list[VisibleGpu] = []
    for entry in (part.strip() for part in text.split(",")):
        if entry.isdigit() and not (gpus and is_pci_order):
            return None
        found = _find(entry, gpus)
        if found is None:
            break
        visible.append(found)
    return tuple(visible) or None


def _find(entry: str, gpus: Sequence[HostGpu]) -> VisibleGpu | None:
    """Returns the GPU that one entry names: a number, a uuid or the unique beginning of one."""
    if entry.startswith("MIG-"):
        return VisibleGpu(entry, None)
    if entry.isdigit():
        return VisibleGpu(gpus[int(entry)].uuid, int(entry)) if int(entry) < len(gpus) else None
    ranks = [rank for rank, gpu in enumerate(gpus) if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
    if len(ranks) == 1:
        return VisibleGpu(gpus[ranks[0]].uuid, ranks[0])
    return VisibleGpu(entry, None) if len(entry) == len("GPU-") + 36 and entry.startswith("GPU-") and not gpus else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _to_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _find_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None
