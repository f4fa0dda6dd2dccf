"""The capabilities of this host's devices as one frozen value, and the protocol of their detectors.

Rule: a detector reports its own platform only, and starts no backend. An unreported value is None. Independent of
drivers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, Protocol, runtime_checkable

from meshwright.topology.chips import find_chip
from meshwright.wire.devices import parse_platform

BFLOAT16_CAPABILITY: Final = (8, 0)
TENSOR_CORE_CAPABILITY: Final = (7, 0)
FLOAT16_CAPABILITY: Final = (5, 3)
"""The first compute capability with bfloat16, with tensor cores (float16), and with float16 arithmetic at all.

Source: CUDA C++ Programming Guide, "Feature Support per Compute Capability".
"""

_CAPABILITY: Final = re.compile(r"(\d+)\.(\d+)")
MIB: Final = 2**20


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
        ValueError: `device_count` is not a valid number of devices.
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
        if isinstance(self.device_count, bool) or not isinstance(self.device_count, int) or self.device_count < 0:
            raise ValueError(f"device_count is {self.device_count!r}; it is an integer, 0 or more, such as 8")


@runtime_checkable
class DeviceDetector(Protocol):
    """A source of this host's device capabilities. A detector starts no JAX backend and opens no device."""

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the capabilities of the detector's own platform; `device_count` 0 where there is no device."""
        ...


@dataclass(frozen=True)
class DevicePart:
    """One device while it is read. `capability`: (9, 0)."""

    kind: str | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None

    @property
    def has_bfloat16(self) -> bool:
        """Whether bfloat16 is in hardware: by compute capability, else by the chip table; unknown is no."""
        if self.capability is not None:
            return self.capability >= BFLOAT16_CAPABILITY
        chip = find_chip(self.kind or "")
        return chip is not None and chip.dtype == "bfloat16"

    @property
    def has_mixed_precision(self) -> bool:
        """Whether 16-bit matrices are multiplied in hardware; every chip of the table does."""
        if self.capability is not None:
            return self.capability >= TENSOR_CORE_CAPABILITY
        return find_chip(self.kind or "") is not None


def build_capabilities(device_type: DeviceType, parts: Sequence[DevicePart], **more: Any) -> DeviceCapabilities:
    """Returns the common capabilities of these devices; `more` has fields that the devices do not report."""
    memory = tuple(part.memory_bytes for part in parts if part.memory_bytes is not None)
    is_known = bool(parts) and len(memory) == len(parts)
    versions = [part.capability for part in parts if part.capability is not None]
    lowest = min(versions) if parts and len(versions) == len(parts) else None
    told: dict[str, Any] = {
        "total_memory_mb": sum(memory) // MIB if is_known else None,
        "device_memory_bytes": memory if is_known else (),
        "compute_capability": f"{lowest[0]}.{lowest[1]}" if lowest else None,
        "supports_mixed_precision": bool(parts) and all(part.has_mixed_precision for part in parts),
        "supports_bfloat16": bool(parts) and all(part.has_bfloat16 for part in parts),
        "supports_distributed": len(parts) > 1,
        "device_kinds": _list_once(part.kind for part in parts),
    }
    return DeviceCapabilities(device_type, len(parts), **(told | more))


def describe_jax_devices(devices: Sequence[Any]) -> DeviceCapabilities | None:
    """Returns the capabilities from JAX's own devices, without memory (an allocator's limit is not a capacity); None
    for others."""
    platform = parse_platform(devices[0].platform) if devices else None
    if platform not in {kind.value for kind in DeviceType}:
        return None
    parts = [
        DevicePart(device.device_kind, None, parse_capability(getattr(device, "compute_capability", None)))
        for device in devices
    ]
    return build_capabilities(DeviceType(platform), parts)


def complete(told: DeviceCapabilities, jax_says: DeviceCapabilities | None) -> DeviceCapabilities:
    """Returns the detected capabilities with JAX's count of devices, and with missing values filled in from JAX's
    devices."""
    if jax_says is None or jax_says.device_type is not told.device_type:
        return told
    missing = {field.name: getattr(jax_says, field.name) for field in fields(told) if not getattr(told, field.name)}
    return _recount(replace(told, **missing), jax_says.device_count)


def _recount(told: DeviceCapabilities, count: int) -> DeviceCapabilities:
    """Returns the detected capabilities for `count` devices: a process of a job may have fewer than CUDA shows."""
    if told.device_count == count or not told.device_memory_bytes:
        return replace(told, device_count=count)
    is_equal = len(set(told.device_memory_bytes)) == 1
    memory = told.device_memory_bytes[:1] * count if is_equal else ()
    total = sum(memory) // MIB if memory else None
    return replace(told, device_count=count, device_memory_bytes=memory, total_memory_mb=total)


def parse_capability(text: object) -> tuple[int, int] | None:
    """Returns "9.0" as (9, 0); None for anything else, such as AMD's "gfx942"."""
    match = _CAPABILITY.fullmatch(text) if isinstance(text, str) else None
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


def _list_once(kinds: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(kind for kind in kinds if kind))
