"""What this host has for JAX, read without starting JAX: capabilities of its devices, and why JAX has no NVIDIA GPU.

A detector reports its own platform only. It makes no CUDA context and opens no device. An unreported value is None.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import jax

from meshwright._jax_devices import Device, has_backend_started, list_devices
from meshwright.topology.chips import DISPLAY_CLASS, GOOGLE, NVIDIA, TPU_KINDS, find_chip
from meshwright.topology.identity import HostGpu, parse_visible, read_gpus_from_proc, read_text
from meshwright.wire.devices import parse_platform

ROOT = Path("/")
"""Where /dev, /proc and /sys are."""

BFLOAT16_CAPABILITY: Final = (8, 0)
TENSOR_CORE_CAPABILITY: Final = (7, 0)
FLOAT16_CAPABILITY: Final = (5, 3)
"""The first compute capability with bfloat16, with tensor cores (float16), and with float16 arithmetic at all.

Source: CUDA C++ Programming Guide, "Feature Support per Compute Capability".
"""

_MIB: Final = 2**20


# ---- capabilities ----


class DeviceType(Enum):
    """The platforms that have a detector."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


@dataclass(frozen=True)
class DeviceCapabilities:
    """The known capabilities of the devices of one type.

    Attributes:
        device_type: the platform.
        device_count: devices on this host that JAX shows this process, or would show; 0: none.
        total_memory_mb: memory of all those devices together, in MiB (2**20 bytes, rounded down), used or not. Of CPUs
            the host's memory, which they share; of TPUs the published size, since no driver reports it.
        compute_capability: of NVIDIA GPUs, "9.0"; of different GPUs the lowest, which all of them support.
        cuda_version: the newest CUDA that the driver supports, "12.2".
        driver_version: NVIDIA's driver, "535.129.03".
        supports_mixed_precision: every device multiplies 16-bit matrices in hardware: bfloat16 (TPUs; compute
            capability 8.0 or more) or float16 on tensor cores (7.0 or more).
        supports_distributed: collectives can join devices: there are several here (over NCCL on GPUs, ICI on TPUs,
            memory on CPUs), or this host is part of a larger TPU slice by the environment.
        supports_bfloat16: every device has bfloat16 in hardware.
        device_kinds: product names as reported by JAX or the driver, each once.
        device_memory_bytes: memory of each device; empty where the memory of one is not known.

    Raises:
        ValueError: `device_count` is negative.
    """

    device_type: DeviceType
    device_count: int
    total_memory_mb: int | None = None
    compute_capability: str | None = None
    cuda_version: str | None = None
    driver_version: str | None = None
    supports_mixed_precision: bool = False
    supports_distributed: bool = False
    supports_bfloat16: bool = False
    device_kinds: tuple[str, ...] = ()
    device_memory_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.device_count < 0:
            raise ValueError(f"device_count is {self.device_count}; it is an integer, 0 or more, such as 8")


@runtime_checkable
class DeviceDetector(Protocol):
    """A source of this host's device capabilities. A detector starts no JAX backend and opens no device."""

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the capabilities of the detector's own platform; `device_count` 0 where there is no device."""
        ...


@dataclass(frozen=True)
class HostDevice:
    """A device of this host. `capability`: (9, 0). `instances`: of a GPU that is divided (MIG)."""

    kind: str | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    uuid: str = ""
    pci_bus_id: str = ""
    instances: tuple[HostDevice, ...] | None = None


def build_capabilities(device_type: DeviceType, devices: Sequence[HostDevice], **more: Any) -> DeviceCapabilities:
    """Returns the common capabilities of these devices; `more` has fields that the devices do not report."""
    chips = [find_chip(device.kind or "") for device in devices]
    memory = tuple(device.memory_bytes for device in devices if device.memory_bytes is not None)
    versions = [device.capability for device in devices if device.capability is not None]
    has_16_bit, has_bfloat16 = all(chips), all(chip is not None and chip.dtype == "bfloat16" for chip in chips)
    lowest = min(versions) if devices and len(versions) == len(devices) else None
    if lowest:
        has_16_bit, has_bfloat16 = lowest >= TENSOR_CORE_CAPABILITY, lowest >= BFLOAT16_CAPABILITY
    if len(memory) < len(devices):
        memory = ()
    found: dict[str, Any] = {
        "total_memory_mb": sum(memory) // _MIB if memory else None,
        "device_memory_bytes": memory,
        "compute_capability": f"{lowest[0]}.{lowest[1]}" if lowest else None,
        "supports_mixed_precision": bool(devices) and has_16_bit,
        "supports_bfloat16": bool(devices) and has_bfloat16,
        "supports_distributed": len(devices) > 1,
        "device_kinds": tuple(dict.fromkeys(device.kind for device in devices if device.kind)),
    }
    return DeviceCapabilities(device_type, len(devices), **(found | more))


def complete_capabilities(found: DeviceCapabilities, devices: Sequence[Device]) -> DeviceCapabilities:
    """Returns the detected capabilities with JAX's count of devices, and with missing values filled in from JAX's
    devices, except memory: an allocator's limit is not a capacity."""
    if not devices or parse_platform(devices[0].platform) != found.device_type.value:
        return found
    described = build_capabilities(
        found.device_type,
        [HostDevice(d.device_kind, None, parse_capability(getattr(d, "compute_capability", None))) for d in devices],
    )
    values = {field.name: getattr(found, field.name) or getattr(described, field.name) for field in fields(found)}
    memory = found.device_memory_bytes
    if memory and len(memory) != len(devices):  # a process of a job may have fewer than CUDA shows
        memory = memory[:1] * len(devices) if len(set(memory)) == 1 else ()
        values |= {"device_memory_bytes": memory, "total_memory_mb": sum(memory) // _MIB if memory else None}
    return replace(found, **values | {"device_count": len(devices)})


def parse_capability(text: object) -> tuple[int, int] | None:
    """Returns "9.0" as (9, 0); None for anything else, such as AMD's "gfx942"."""
    match = re.fullmatch(r"(\d+)\.(\d+)", text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def choose_compute_dtype(capabilities: DeviceCapabilities) -> str:
    """Returns the name of the hardware's 16-bit compute type, otherwise "float32".

    bfloat16 where all devices have it (TPUs, and compute capability 8.0 or more, also if the detector does not report
    it); float16 on NVIDIA GPUs that have its arithmetic and no bfloat16 (compute capability 5.3 up to 8.0; fast from
    7.0 on, where there are tensor cores); float32 on CPUs and where the hardware is not known.

    Source: CUDA C++ Programming Guide, "Feature Support per Compute Capability".
    """
    capability = parse_capability(capabilities.compute_capability)
    is_recent = capability is not None and capability >= BFLOAT16_CAPABILITY
    if capabilities.supports_bfloat16 or is_recent or capabilities.device_type is DeviceType.TPU:
        return "bfloat16"
    has_float16 = capability >= FLOAT16_CAPABILITY if capability else capabilities.supports_mixed_precision
    return "float16" if capabilities.device_type is DeviceType.GPU and has_float16 else "float32"


# ---- CPU ----


class CPUDetector:
    """Detects the number of CPU devices that JAX shows, or would show, and the host's memory.

    16-bit types are emulated or slow on CPUs, so mixed precision is not supported.
    """

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the CPU's devices; `total_memory_mb` is the host's memory (MemTotal), which all of them share."""
        count = _count_cpu_devices()
        memory = re.search(r"MemTotal:\s+(\d+) kB", read_text(ROOT / "proc/meminfo"))
        return DeviceCapabilities(
            DeviceType.CPU,
            count,
            total_memory_mb=int(memory[1]) // 1024 if memory else None,
            supports_distributed=count > 1,
            device_kinds=("cpu",),
        )


def _count_cpu_devices() -> int:
    """Returns how many CPU devices JAX shows this process, or would if it started now."""
    if has_backend_started():
        try:
            return sum(device.process_index == jax.process_index() for device in list_devices("cpu"))
        except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
            return 0
    configured = int(jax.config.values["jax_num_cpu_devices"])
    flags = re.findall(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return configured if configured > 0 else int((flags or [1])[-1])


# ---- NVIDIA GPUs ----


class CUDADetector:
    """Detects the host's GPUs that CUDA shows this process: `CUDA_VISIBLE_DEVICES` and MIG are honored.

    Where there is no NVML (the package nvidia-ml-py is not the client's), the kernel module's files give the cards and
    the driver.
    """

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the capabilities of the GPUs that CUDA shows; `device_count` 0 where it shows none."""
        cards, driver, cuda = _read_gpus()
        shown = _select_visible(os.environ, cards)
        return build_capabilities(DeviceType.GPU, shown, driver_version=driver, cuda_version=cuda)


def _read_gpus() -> tuple[list[HostDevice], str | None, str | None]:
    """Returns the host's cards in PCI order, the driver's version, and the newest CUDA version that it supports.

    NVML is shut down after the read; a value that it cannot read leaves one field empty.
    Source: NVIDIA, NVML API Reference Guide.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # the package or the driver is not there; the files have neither MIG nor compute capability
        cards = read_gpus_from_proc(ROOT / "proc/driver/nvidia/gpus")
        found = [HostDevice(gpu.model or None, uuid=gpu.uuid, pci_bus_id=gpu.pci_bus_id) for gpu in cards]
        return found, _read_driver_version(), None

    def ask(function: str, *args: Any) -> Any:
        try:
            answer = getattr(nvml, function)(*args)
        except (nvml.NVMLError, AttributeError):  # this release of nvidia-ml-py may not have the function
            return None
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer

    def read_device(handle: Any, capability: tuple[int, int] | None) -> HostDevice:
        memory = ask("nvmlDeviceGetMemoryInfo", handle, getattr(nvml, "nvmlMemory_v2", None))
        total = None if memory is None else int(memory.total)
        return HostDevice(ask("nvmlDeviceGetName", handle), total, capability, ask("nvmlDeviceGetUUID", handle) or "")

    def read_card(handle: Any) -> HostDevice:
        capability: Any = ask("nvmlDeviceGetCudaComputeCapability", handle)
        card = read_device(handle, tuple(capability) if capability else None)
        pci, mode = ask("nvmlDeviceGetPciInfo", handle), ask("nvmlDeviceGetMigMode", handle)
        bus_id = pci.busId if pci else ""
        card = replace(card, pci_bus_id=bus_id.decode() if isinstance(bus_id, bytes) else bus_id)
        if not (mode and mode[0]):
            return card
        slots = range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0)
        handles = [ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, slot) for slot in slots]
        instances = (read_device(each, card.capability) for each in handles if each is not None)
        return replace(card, instances=tuple(instances))

    try:
        handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(ask("nvmlDeviceGetCount") or 0)]
        read = (read_card(handle) for handle in handles if handle is not None)
        found = sorted(read, key=lambda card: card.pci_bus_id.lower())
        number = ask("nvmlSystemGetCudaDriverVersion_v2")
        return found, ask("nvmlSystemGetDriverVersion"), _format_cuda_version(number) if number else None
    finally:
        ask("nvmlShutdown")


def _read_driver_version() -> str | None:
    """Returns the loaded kernel module's version, "535.129.03"; None where no module is loaded."""
    first, _, _ = read_text(ROOT / "proc/driver/nvidia/version").partition("\n")
    match = re.search(r"\b\d{3,}\.\d+(?:\.\d+)*\b", first)
    return match[0] if match else None


def _format_cuda_version(number: int) -> str:
    """Returns CUDA's 12020 as "12.2"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _list_host_gpus(cards: Sequence[HostDevice]) -> tuple[HostGpu, ...]:
    return tuple(HostGpu(card.pci_bus_id, card.uuid, card.kind or "") for card in cards)


def _select_visible(environ: Mapping[str, str], cards: Sequence[HostDevice]) -> list[HostDevice]:
    """Returns the devices that CUDA shows, as far as its order is known. `cards` is in PCI order.

    Where CUDA's own order is not known (different models, numbers in CUDA_VISIBLE_DEVICES), the count is still right,
    and only values common to all cards are reported. Of divided GPUs CUDA shows one instance at most, and no whole GPU
    beside it. An instance that cannot be listed still counts as one device.

    Source: MIG User Guide, "CUDA Device Enumeration".
    """
    gpus = _list_host_gpus(cards)
    instances = {each.uuid: each for card in cards for each in card.instances or ()}
    whole: list[HostDevice] = []
    parts: list[HostDevice] = []
    for gpu in parse_visible({**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, gpus) or ():
        card = None if gpu.host_position is None else cards[gpu.host_position]
        if card is None:
            parts.append(instances.get(gpu.uuid, HostDevice()))
        elif card.instances is None:
            whole.append(card)
        else:
            parts += card.instances[:1]
    shown = parts[:1] or whole
    if "CUDA_VISIBLE_DEVICES" in environ and parse_visible(environ, gpus) is None:
        values = {name: {getattr(card, name) for card in cards} for name in ("kind", "memory_bytes", "capability")}
        common: dict[str, Any] = {name: each.pop() for name, each in values.items() if len(each) == 1}
        return [HostDevice(**common)] * len(shown)
    return shown


# ---- TPUs ----

_DEVICES_PER_CHIP: Final[Mapping[str, int]] = {"0x0027": 2, "0x0083": 2}
"""Of chips that the chip table does not know by kind: two cores without megacore. Source: jax/_src/tpu_info.py."""

_ACCELERATOR_TYPES: Final[Mapping[str, str]] = {
    "v2-": "TPU v2", "v3-": "TPU v3", "v4-": "TPU v4", "v5litepod-": "TPU v5 lite", "v5p-": "TPU v5",
    "v6e-": "TPU v6 lite", "tpu7x-": "TPU7x",
}  # fmt: skip
"""How a TPU_ACCELERATOR_TYPE begins → `jax.Device.device_kind`. Source: Google Cloud, "TPU configurations"."""


class TPUDetector:
    """Detects the TPUs of this host from the PCI bus, device files and the environment.

    Memory is the published size of a chip, since no driver reports it. Only one process may use a TPU, so no device
    file is opened. The variables are TPU_ACCELERATOR_TYPE, TPU_VISIBLE_CHIPS (older: TPU_VISIBLE_DEVICES),
    TPU_WORKER_HOSTNAMES, TPU_HOST_BOUNDS and TPU_PROCESS_BOUNDS.
    """

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the TPUs that this process may use; `device_count` counts JAX devices, of which a chip can be two."""
        visible = os.environ.get("TPU_VISIBLE_CHIPS", os.environ.get("TPU_VISIBLE_DEVICES"))
        devices: list[HostDevice] = []
        for index, chip_id in enumerate(_read_tpu_chips()):
            if visible is None or str(index) in (word.strip() for word in visible.split(",")):
                devices += _build_tpus(chip_id)
        names = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]
        bounds = [os.environ.get(name, "").split(",") for name in ("TPU_HOST_BOUNDS", "TPU_PROCESS_BOUNDS")]
        hosts = [math.prod(map(int, parts)) for parts in bounds if all(part.strip().isdigit() for part in parts)]
        return build_capabilities(
            DeviceType.TPU,
            devices,
            supports_mixed_precision=bool(devices),
            supports_bfloat16=bool(devices),
            supports_distributed=len(devices) > 1 or (bool(devices) and max(len(names), *hosts, 1) > 1),
        )


def _read_tpu_chips() -> list[str]:
    """Returns the PCI device ids of the TPU chips, by address, where of a chip's functions the first counts.

    Without a readable PCI bus, an empty id for each file of the accel driver; VFIO files give no number.
    """
    folders = sorted((ROOT / "sys/bus/pci/devices").glob("*.0"))
    ids = [read_text(folder / "device") for folder in folders if read_text(folder / "vendor") == GOOGLE]
    files = [file for file in (ROOT / "dev").glob("accel*") if re.fullmatch(r"accel\d+", file.name)]
    return [found for found in ids if found in TPU_KINDS] or [""] * len(files)


def _build_tpus(chip_id: str) -> list[HostDevice]:
    name = os.environ.get("TPU_ACCELERATOR_TYPE", "").lower()
    named = (kind for start, kind in _ACCELERATOR_TYPES.items() if name.startswith(start))
    kind = TPU_KINDS.get(chip_id) or next(named, None)
    chip = find_chip(kind or "")
    if chip is None:
        return [HostDevice(kind)] * _DEVICES_PER_CHIP.get(chip_id, 1)
    return [HostDevice(kind, chip.device_memory_bytes)] * chip.jax_devices_per_chip


# ---- the detector of this process ----


def choose_detector() -> DeviceDetector:
    """Returns the detector of the platform that JAX has as its default, or would have if it started now.

    Without a running backend that is the first platform of JAX_PLATFORMS, else the fastest for which there are both
    hardware and a plugin: GPUs (priority 500), then TPUs (300), then the CPU. AMD GPUs are known only once the backend
    runs. Source: jax/_src/xla_bridge.py, `backends`.
    """
    configured = str(jax.config.values["jax_platforms"] or "").split(",")[0].strip()
    if has_backend_started():
        configured = jax.default_backend()
    gpu, tpu = CUDADetector(), TPUDetector()
    if configured:
        detectors: dict[str, DeviceDetector] = {"gpu": gpu, "tpu": tpu}
        return detectors.get(parse_platform(configured), CPUDetector())
    if _read_cuda_plugins() and gpu.detect_capabilities().device_count:
        return gpu
    has_libtpu = bool(os.environ.get("TPU_LIBRARY_PATH")) or importlib.util.find_spec("libtpu") is not None
    return tpu if has_libtpu and tpu.detect_capabilities().device_count else CPUDetector()


# ---- why JAX has no GPU ----

_LIBRARY: Final = "libcuda.so.1"
_DEVICE_FILES: Final = ("nvidia0", "nvidiactl", "dxg")
"""JAX starts CUDA only where one of these is in /dev. Source: jax/_src/hardware_utils.py, `has_visible_nvidia_gpu`."""

_DRIVERS: Final[Mapping[int, int]] = {12: 525, 13: 580}
"""CUDA's major version → the oldest driver for it. Source: jax, docs/installation.md, "NVIDIA GPU"."""

_STUB: Final = 34
"""CUDA_ERROR_STUB_LIBRARY: the toolkit's stub for linking. Source: cuda.h, `CUresult`."""


@dataclass(frozen=True)
class NoGpuReason:
    """One reason why JAX has no GPU: what was found, the rule that it breaks, and what to do."""

    code: Literal[
        "no_device_file",
        "no_driver_library",
        "driver_too_old",
        "no_cuda_plugin",
        "cuda_visible_devices",
        "jax_platforms",
    ]
    found: str
    rule: str
    hint: str

    def __str__(self) -> str:
        return f"{self.found}; {self.rule}; {self.hint}"


@dataclass(frozen=True)
class GpuSnapshot:
    """A snapshot of what JAX needs to find a GPU.

    Attributes:
        device_files: those of nvidia0, nvidiactl and dxg that are in /dev.
        cards: PCI addresses of NVIDIA's cards.
        library_error: why the driver's library cannot be used; None: it is usable.
        cuda_number: the newest CUDA that the driver supports, 12020 for 12.2; None: not reported.
        driver_version: of the loaded kernel module.
        plugins: JAX's CUDA plugins, CUDA's major version → version of the package.
        jax_version: of jax.
        visible: CUDA_VISIBLE_DEVICES; None: not set.
        gpus: the host's GPUs, where the driver lists them.
        container_visible: NVIDIA_VISIBLE_DEVICES, read by container runtimes.
        jax_platforms: the value of JAX_PLATFORMS at the import of jax, or that of `jax.config` since.
    """

    device_files: tuple[str, ...] = ()
    cards: tuple[str, ...] = ()
    library_error: str | None = None
    cuda_number: int | None = None
    driver_version: str | None = None
    plugins: Mapping[int, str] | None = None
    jax_version: str = ""
    visible: str | None = None
    gpus: tuple[HostGpu, ...] = ()
    container_visible: str | None = None
    jax_platforms: str | None = None


def read_gpu_snapshot() -> GpuSnapshot:
    """Returns a snapshot of this machine and process. Starts no backend and makes no CUDA context."""
    library_error, number = _read_driver_library()
    cards, driver, _ = _read_gpus()
    folders = sorted((ROOT / "sys/bus/pci/devices").glob("*"))
    return GpuSnapshot(
        device_files=tuple(name for name in _DEVICE_FILES if (ROOT / "dev" / name).exists()),
        cards=tuple(folder.name for folder in folders if _is_nvidia_card(folder)),
        library_error=library_error,
        cuda_number=number,
        driver_version=driver or _read_driver_version(),
        plugins=_read_cuda_plugins(),
        jax_version=jax.__version__,
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        gpus=_list_host_gpus(cards),
        container_visible=os.environ.get("NVIDIA_VISIBLE_DEVICES"),
        jax_platforms=jax.config.values["jax_platforms"],
    )


def explain_no_gpu(snapshot: GpuSnapshot | None = None) -> tuple[NoGpuReason, ...]:
    """Returns every reason why JAX has no NVIDIA GPU in this process; empty where there is no problem.

    Starts no backend and makes no CUDA context.

    Args:
        snapshot: the snapshot; None reads one of this machine.
    """
    seen = read_gpu_snapshot() if snapshot is None else snapshot
    return (*_check_driver(seen), *_check_settings(seen))


def _check_driver(seen: GpuSnapshot) -> Iterator[NoGpuReason]:
    """Yields what is missing of the driver and of JAX's plugin for it.

    CUDA's major versions are compared: within one, an older driver runs newer minor versions.
    """
    if not seen.device_files:
        names = ", ".join(f"/dev/{name}" for name in _DEVICE_FILES)
        found = f"none of {names} is here, and {len(seen.cards) or 'no'} NVIDIA card is on the PCI bus"
        hint = "load the driver (nvidia-smi on the host does), and give the container its GPUs, as in --gpus all"
        hint = hint if seen.cards else "run where there is a GPU"
        if seen.container_visible in ("void", "none", ""):
            found += f"; NVIDIA_VISIBLE_DEVICES is {seen.container_visible!r}, which keeps GPUs out of the container"
        yield NoGpuReason("no_device_file", found, "JAX starts CUDA only where one of these files is", hint)
    if seen.library_error is not None:
        yield NoGpuReason(
            "no_driver_library",
            f"the driver's library cannot be used: {seen.library_error}",
            f"CUDA needs {_LIBRARY}, which comes with the driver and not with jax",
            "install the driver's user libraries, or let the NVIDIA container toolkit mount them "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility), and check LD_LIBRARY_PATH",
        )
    own = None if seen.cuda_number is None else seen.cuda_number // 1000
    needed = min(seen.plugins or {0: ""})
    if seen.cuda_number is not None and own is not None and own < needed:
        least = f", {_DRIVERS[needed]} or newer" if needed in _DRIVERS else ""
        other = f', or install the plugin for this driver: pip install "jax[cuda{own}]"' if own in _DRIVERS else ""
        yield NoGpuReason(
            "driver_too_old",
            f"the driver ({seen.driver_version or 'of unknown version'}) supports CUDA up to "
            f"{_format_cuda_version(seen.cuda_number)}, and jax's plugin is for CUDA {needed}",
            f"it needs a driver for CUDA {needed}{least}",
            f"update the driver{other}",
        )
    if not seen.plugins:
        yield NoGpuReason(
            "no_cuda_plugin",
            f"jax {seen.jax_version} is installed without a CUDA plugin",
            "jax alone computes on the CPU; its entry point jax_plugins.xla_cudaNN comes with an extra",
            f'install one, as in pip install "jax[cuda{13 if own is None or own >= 13 else 12}]"',
        )


def _check_settings(seen: GpuSnapshot) -> Iterator[NoGpuReason]:
    """Yields the variables that hide GPUs."""
    if seen.visible is not None and not _shows_a_gpu(seen.visible, seen.gpus):
        known = f"; this host has {len(seen.gpus)}, numbered from 0" if seen.gpus else ""
        yield NoGpuReason(
            "cuda_visible_devices",
            f"CUDA_VISIBLE_DEVICES is {seen.visible!r}{known}",
            "CUDA shows the GPUs that it lists, up to the first entry that is none; an empty list or -1 hides all",
            "unset it, or list GPUs, as in CUDA_VISIBLE_DEVICES=0, before the process starts",
        )
    named = {name.strip() for name in (seen.jax_platforms or "").split(",")} - {""}
    if named and named.isdisjoint({"cuda", "gpu"}):
        yield NoGpuReason(
            "jax_platforms",
            f"JAX_PLATFORMS (jax.config.jax_platforms) is {seen.jax_platforms!r}",
            "JAX starts no other platforms than those that are listed there",
            "unset it, or use JAX_PLATFORMS=cuda,cpu, before the first use of jax",
        )


def _shows_a_gpu(text: str, gpus: tuple[HostGpu, ...]) -> bool:
    """Returns whether the first entry names a GPU, as far as is known here: of unknown GPUs, any number may do."""
    first = text.split(",")[0].strip()
    if not gpus:
        return first.isdigit() or first.startswith(("GPU-", "MIG-"))
    return bool(parse_visible({"CUDA_VISIBLE_DEVICES": first, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, gpus))


def _read_driver_library() -> tuple[str | None, int | None]:
    """Returns (why the driver's library cannot be used, or None; the CUDA version that it supports, as 12020).

    `cuDriverGetVersion` needs no initialized driver, and makes no context.
    Source: CUDA Driver API, "Version Management".
    """
    number = ctypes.c_int(0)
    try:
        status = ctypes.CDLL(_LIBRARY).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError) as error:
        return str(error), None
    if status == _STUB:
        return f"{_LIBRARY} is the CUDA toolkit's stub for linking, not the driver's", None
    return None, number.value if status == 0 and number.value else None


def _read_cuda_plugins() -> dict[int, str]:
    """Returns JAX's CUDA plugins by CUDA's major version, as JAX finds them: by entry point."""
    points = metadata.entry_points(group="jax_plugins")
    found = ((re.fullmatch(r"jax_plugins\.xla_cuda(\d+)", point.value), point) for point in points)
    return {int(match[1]): point.dist.version if point.dist else "" for match, point in found if match}


def _is_nvidia_card(folder: Path) -> bool:
    """Returns whether a PCI device is a display or 3D controller of NVIDIA."""
    return read_text(folder / "vendor") == NVIDIA and read_text(folder / "class").startswith(DISPLAY_CLASS)
