"""The CPU as JAX's platform: how many (virtual) devices it shows, and the memory that they share.

Rule: always present, never the fast platform. Reads the JAX configuration, and uses the backend only if it already
runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import jax

from meshwright._devices.capabilities import DeviceCapabilities, DeviceType
from meshwright._devices.starting import has_backend_started
from meshwright._jax_devices import list_devices

_FLAG: Final = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_MEMORY: Final = re.compile(r"MemTotal:\s+(\d+) kB")


class CPUDetector:
    """Detects the number of CPU devices that JAX shows, or would show, and the host's memory.

    16-bit types are emulated or slow on CPUs, so mixed precision is not supported.

    Args:
        proc: where the kernel's files are.
        count: returns the number of devices; None reads JAX's configuration, or its backend if that runs.
    """

    def __init__(self, *, proc: Path = Path("/proc"), count: Callable[[], int] | None = None) -> None:
        self._proc = proc
        self._count = count or count_cpu_devices

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the CPU's devices; `total_memory_mb` is the host's memory (MemTotal), which all of them share."""
        count = self._count()
        return DeviceCapabilities(
            DeviceType.CPU,
            count,
            total_memory_mb=read_memory_mb(self._proc),
            supports_distributed=count > 1,
            device_kinds=("cpu",),
        )


def count_cpu_devices() -> int:
    """Returns how many CPU devices JAX shows this process, or would if it started now."""
    if has_backend_started():
        try:
            return len([device for device in list_devices("cpu") if device.process_index == jax.process_index()])
        except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
            return 0
    configured = int(jax.config.values["jax_num_cpu_devices"])
    return configured if configured > 0 else parse_device_count(os.environ)


def parse_device_count(environ: Mapping[str, str]) -> int:
    """Returns the number of CPU devices that XLA_FLAGS ask for; 1 where they do not set it."""
    found = _FLAG.findall(environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else 1


def read_memory_mb(proc: Path) -> int | None:
    """Returns the host's memory in MiB, rounded down; None where the kernel does not report it."""
    try:
        found = _MEMORY.search((proc / "meminfo").read_text())
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None
