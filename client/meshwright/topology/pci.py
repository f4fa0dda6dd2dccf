"""Accelerators on the PCI bus: who makes them, and what JAX calls them.

Rule: identities only, each with its source. Reads no bus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NVIDIA: Final = "0x10de"
GOOGLE: Final = "0x1ae0"
"""Vendors, as sysfs prints them; Google's also of network and storage cards. Source: PCI ID repository."""

DISPLAY_CLASS: Final = "0x03"
"""Display controllers, 3D controllers among them. Source: PCI Code and ID Assignment Specification."""

TPU_KINDS: Final[Mapping[str, str | None]] = {
    "0x0027": None,
    "0x0056": None,
    "0x005e": "TPU v4",
    "0x0062": "TPU v5",
    "0x0063": "TPU v5 lite",
    "0x006f": "TPU v6 lite",
    "0x0076": "TPU7x",
    "0x0083": "TPU8i",
    "0x007c": "TPU8t",
}
"""Device id → `jax.Device.device_kind`; 0x0027 is v2 and v3 alike, 0x0056 has no public name.

Source: jax/_src/hardware_utils.py and jax/_src/tpu_info.py of jax 0.12.
"""
