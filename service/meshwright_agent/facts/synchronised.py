"""Whether something keeps the kernel's clock right: NTP, PTP, or a hypervisor that says so. Runs in the probe.

Rule: the kernel is asked (adjtimex) and nothing is set. Many virtual machines keep good time and never say so.

Source: adjtimex(2), <linux/timex.h>.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Final

_STATUS_OFFSET: Final = 40
"""Of `status` in struct timex on 64-bit Linux: an int with padding and four longs stand before it."""
_UNSYNCHRONISED: Final = 0x0040
_ROOM: Final = 512


def read_synchronised() -> bool | None:
    """Returns what the kernel says; None where it cannot be asked, as in sandboxes."""
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    room = ctypes.create_string_buffer(_ROOM)
    try:
        answer = ctypes.CDLL(None).adjtimex(room)
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else parse_timex_status(room.raw)


def parse_timex_status(timex: bytes) -> bool:
    """Returns whether a struct timex says that the clock is synchronised."""
    (status,) = struct.unpack_from("=i", timex, _STATUS_OFFSET)
    return not status & _UNSYNCHRONISED
