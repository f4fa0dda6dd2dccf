"""TPUs of this host from the PCI bus, device files and the environment. No device file is opened.

Rule: only one process may use a TPU, so the detection must not open it. A value that neither the bus nor a variable
gives is unknown. Independent of JAX.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from meshwright._devices.capabilities import DeviceCapabilities, DevicePart, DeviceType, build_capabilities
from meshwright.topology.chips import GOOGLE, TPU_KINDS, find_chip

_DEVICES_PER_CHIP: Final[Mapping[str, int]] = {"0x0027": 2, "0x0083": 2}
"""Of chips that the chip table does not know by kind: two cores without megacore. Source: jax/_src/tpu_info.py."""

_TYPE_KINDS: Final = (
    ("v2-", "TPU v2"),
    ("v3-", "TPU v3"),
    ("v4-", "TPU v4"),
    ("v5litepod-", "TPU v5 lite"),
    ("v5p-", "TPU v5"),
    ("v6e-", "TPU v6 lite"),
    ("tpu7x-", "TPU7x"),
)
"""How a TPU_ACCELERATOR_TYPE begins → `jax.Device.device_kind`. Source: Google Cloud, "TPU configurations"."""

_ACCEL: Final = re.compile(r"accel\d+")


class TPUDetector:
    """Detects the TPUs of this host. Memory is the published size of a chip, since no driver reports it.

    Args:
        environ: None means `os.environ`, as it is at each call. Read are TPU_ACCELERATOR_TYPE,
            TPU_VISIBLE_CHIPS (older: TPU_VISIBLE_DEVICES), TPU_WORKER_HOSTNAMES, TPU_HOST_BOUNDS,
            TPU_PROCESS_BOUNDS.
        sysfs, dev: where the PCI bus and device files are listed.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, *, sysfs: Path = Path("/sys"), dev: Path = Path("/dev")
    ) -> None:
        self._environ = environ
        self._sysfs = sysfs
        self._dev = dev

    def detect_capabilities(self) -> DeviceCapabilities:
        """Returns the TPUs that this process may use; `device_count` counts JAX devices, of which a chip can be two."""
        environ = os.environ if self._environ is None else self._environ
        chips = read_chip_ids(self._sysfs) or ("",) * count_device_files(self._dev)
        parts = [part for chip in _limit(environ, chips) for part in _build_parts(chip, environ)]
        return build_capabilities(
            DeviceType.TPU,
            parts,
            supports_mixed_precision=bool(parts),
            supports_bfloat16=bool(parts),
            supports_distributed=len(parts) > 1 or (bool(parts) and count_hosts(environ) > 1),
        )


def read_chip_ids(sysfs: Path) -> tuple[str, ...]:
    """Returns the PCI device ids of the TPU chips on the bus, by address; of a chip's functions the first counts."""
    folders = sorted((sysfs / "bus/pci/devices").glob("*.0"))
    ids = [_read_text(folder / "device") for folder in folders if _read_text(folder / "vendor") == GOOGLE]
    return tuple(found for found in ids if found in TPU_KINDS)


def count_device_files(dev: Path) -> int:
    """Returns the number of the accel driver's files, for hosts without a readable PCI bus; VFIO files give no
    number."""
    return sum(1 for file in dev.glob("accel*") if _ACCEL.fullmatch(file.name))


def parse_accelerator_type(text: str | None) -> str | None:
    """Returns the device kind of an accelerator type: "v5litepod-8" → "TPU v5 lite"; None for others."""
    return next((kind for start, kind in _TYPE_KINDS if (text or "").lower().startswith(start)), None)


def count_hosts(environ: Mapping[str, str]) -> int:
    """Returns the number of the slice's hosts or processes from the environment; 1 where it is not set."""
    names = [name for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip()]
    bounds = [environ.get(name, "") for name in ("TPU_HOST_BOUNDS", "TPU_PROCESS_BOUNDS")]
    return max(1, len(names), *(_multiply(text) for text in bounds))


def _limit(environ: Mapping[str, str], chips: tuple[str, ...]) -> tuple[str, ...]:
    text = environ.get("TPU_VISIBLE_CHIPS", environ.get("TPU_VISIBLE_DEVICES"))
    if text is None:
        return chips
    chosen = {int(entry) for entry in text.split(",") if entry.strip().isdigit()}
    return tuple(chip for index, chip in enumerate(chips) if index in chosen)


def _build_parts(chip_id: str, environ: Mapping[str, str]) -> list[DevicePart]:
    kind = TPU_KINDS.get(chip_id) or parse_accelerator_type(environ.get("TPU_ACCELERATOR_TYPE"))
    chip = find_chip(kind or "")
    if chip is None:
        return [DevicePart(kind)] * _DEVICES_PER_CHIP.get(chip_id, 1)
    return [DevicePart(kind, chip.device_memory_bytes)] * chip.jax_devices_per_chip


def _multiply(text: str) -> int:
    parts = text.split(",")
    return math.prod(int(part) for part in parts) if all(part.strip().isdigit() for part in parts) else 1


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
