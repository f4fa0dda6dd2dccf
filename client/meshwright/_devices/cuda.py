"""Detects the NVIDIA GPUs that CUDA shows this process, without CUDA.

Rule: NVML makes no context and is shut down after each read; a value that it cannot read leaves one field empty. Where
there is no NVML (the package nvidia-ml-py is not the client's), the kernel module's files give the cards and the
driver. Independent of JAX.

Source: NVIDIA, NVML API Reference Guide; for what CUDA shows of divided GPUs, MIG User Guide, "CUDA Device
Enumeration": one instance at most, and no whole GPU beside it.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshwright._devices.capabilities import DeviceCapabilities, DevicePart, DeviceType, build_capabilities
from meshwright.topology.identity import HostGpu, VisibleGpu, parse_visible, read_gpus_from_proc

PROC: Final = Path("/proc")
_MIG_ENABLED: Final = 1
_DRIVER_VERSION: Final = re.compile(r"\b\d{3,}\.\d+(?:\.\d+)*\b")


@dataclass(frozen=True)
class GpuCard:
    """A card of this host, and its MIG instances by uuid; None: it is not divided."""

    gpu: HostGpu
    part: DevicePart
    instances: Mapping[str, DevicePart] | None = None


@dataclass(frozen=True)
class GpuReading:
    """What was read of this host's cards."""

    cards: tuple[GpuCard, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None


class CUDADetector:
    """Detects the host's GPUs that CUDA shows this process: `CUDA_VISIBLE_DEVICES` and MIG are honoured.

    Args:
        environ: None means `os.environ`, as it is at each call.
        nvml: returns the module `pynvml`, or a module with the same functions, or None where there is none.
        proc: where the kernel module's files are.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, nvml: Callable[[], Any] | None = None, proc: Path = PROC
    ) -> None:
        self._environ = environ
        self._find_nvml = nvml or find_nvml
        self._proc = proc

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the capabilities of the GPUs that CUDA shows; `device_count` 0 where it shows none."""
        reading = read_gpus(self._find_nvml(), self._proc)
        parts = select_visible(os.environ if self._environ is None else self._environ, reading.cards)
        return build_capabilities(
            DeviceType.GPU, parts, driver_version=reading.driver_version, cuda_version=reading.cuda_version
        )


def find_nvml() -> Any:
    """Returns the module `pynvml` (package nvidia-ml-py); None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def read_gpus(nvml: Any, proc: Path) -> GpuReading:
    """Returns the host's cards and driver, from NVML or else from the kernel module's files."""
    try:
        if nvml is not None:
            nvml.nvmlInit()
    except nvml.NVMLError:
        nvml = None
    if nvml is None:
        return read_gpus_from_files(proc)
    reader = _Reader(nvml)
    try:
        return reader.read()
    finally:
        reader.ask("nvmlShutdown")


def read_gpus_from_files(proc: Path) -> GpuReading:
    """Returns the cards and the driver's version; the files do not have MIG instances and compute capability."""
    gpus = read_gpus_from_proc(proc / "driver/nvidia/gpus")
    cards = tuple(GpuCard(gpu, DevicePart(kind=gpu.model or None)) for gpu in gpus)
    return GpuReading(cards, read_driver_version(proc))


def read_driver_version(proc: Path) -> str | None:
    """Returns the loaded kernel module's version, "535.129.03"; None where no module is loaded."""
    try:
        text = (proc / "driver/nvidia/version").read_text(errors="replace")
    except OSError:
        return None
    match = _DRIVER_VERSION.search(text.partition("\n")[0])
    return match[0] if match else None


def format_cuda_version(number: int | None) -> str | None:
    """Returns CUDA's 12020 as "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def select_visible(environ: Mapping[str, str], cards: Sequence[GpuCard]) -> tuple[DevicePart, ...]:
    """Returns the cards that CUDA shows, as far as its order is known. `cards` is in PCI order.

    Where CUDA's own order is not known (different models, numbers in CUDA_VISIBLE_DEVICES), the count is still right,
    and only values common to all cards are reported.
    """
    gpus = [card.gpu for card in cards]
    visible = parse_visible({**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, gpus) or ()
    shown = [part for gpu in visible for part in _find_parts(gpu, cards)]
    divided = [part for part, is_instance in shown if is_instance]
    parts = tuple(divided[:1] or [part for part, _ in shown])
    if "CUDA_VISIBLE_DEVICES" in environ and parse_visible(environ, gpus) is None:
        return (_blend([card.part for card in cards]),) * len(parts)
    return parts


def _find_parts(gpu: VisibleGpu, cards: Sequence[GpuCard]) -> list[tuple[DevicePart, bool]]:
    """Returns (part, whether it is a MIG instance) for one visible GPU; empty for a card without instances."""
    if gpu.host_position is not None:
        card = cards[gpu.host_position]
        if card.instances is None:
            return [(card.part, False)]
        return [(part, True) for part in card.instances.values()][:1]
    instances = {uuid: part for card in cards for uuid, part in (card.instances or {}).items()}
    # An instance that cannot be listed, or a name of older drivers (MIG-GPU-…/1/0), still counts as one device.
    return [(instances.get(gpu.uuid, DevicePart()), True)]


def _blend(parts: Sequence[DevicePart]) -> DevicePart:
    common = {
        name: values.pop() if len(values := {getattr(part, name) for part in parts}) == 1 else None
        for name in ("kind", "memory_bytes", "capability")
    }
    return DevicePart(**common)


class _Reader:
    """One read, between nvmlInit and nvmlShutdown."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def ask(self, function: str, *args: Any) -> Any:
        """Returns the answer of NVML; None if it has no answer, or if this release of nvidia-ml-py has no such
        function."""
        try:
            return getattr(self._nvml, function)(*args)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def read(self) -> GpuReading:
        handles = [
            self.ask("nvmlDeviceGetHandleByIndex", index) for index in range(self.ask("nvmlDeviceGetCount") or 0)
        ]
        cards = [self._read_card(handle) for handle in handles if handle is not None]
        return GpuReading(
            tuple(sorted(cards, key=lambda card: card.gpu.pci_bus_id.lower())),
            _to_text(self.ask("nvmlSystemGetDriverVersion")),
            format_cuda_version(self.ask("nvmlSystemGetCudaDriverVersion_v2")),
        )

    def _read_card(self, handle: Any) -> GpuCard:
        pci = self.ask("nvmlDeviceGetPciInfo", handle)
        uuid = _to_text(self.ask("nvmlDeviceGetUUID", handle)) or ""
        capability = self.ask("nvmlDeviceGetCudaComputeCapability", handle)
        part = self._read_part(handle, (capability[0], capability[1]) if capability else None)
        gpu = HostGpu(_to_text(pci.busId) or "" if pci else "", uuid, part.kind or "")
        mode = self.ask("nvmlDeviceGetMigMode", handle)
        is_divided = bool(mode) and mode[0] == _MIG_ENABLED
        return GpuCard(gpu, part, self._read_instances(handle, part) if is_divided else None)

    def _read_instances(self, card: Any, whole: DevicePart) -> dict[str, DevicePart]:
        slots = range(self.ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0)
        handles = [self.ask("nvmlDeviceGetMigDeviceHandleByIndex", card, slot) for slot in slots]
        return {
            _to_text(self.ask("nvmlDeviceGetUUID", handle)) or "": self._read_part(handle, whole.capability)
            for handle in handles
            if handle is not None
        }

    def _read_part(self, handle: Any, capability: tuple[int, int] | None) -> DevicePart:
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle, getattr(self._nvml, "nvmlMemory_v2", None))
        kind = _to_text(self.ask("nvmlDeviceGetName", handle))
        return DevicePart(kind, None if memory is None else int(memory.total), capability)


def _to_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
