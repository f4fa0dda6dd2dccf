"""Plans that go through the agent's event loop without being looked at: packed by the planner, unpacked by the store.

Rule: JSON text stands for itself and begins with "{"; a packed one begins with another character. A plan of 512 devices
is 100 KB of which the loop would parse every character only to hand it on; packed it is a thirteenth of that.
"""

from __future__ import annotations

import base64
import zlib
from typing import Final

LEAST_CHARS: Final = 1 << 15
"""Shorter texts are not worth it."""

_MARK: Final = "z:"


def pack(text: str) -> str:
    """Returns a JSON text packed, where it is long."""
    if len(text) < LEAST_CHARS:
        return text
    return _MARK + base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def is_packed(text: str) -> bool:
    """Returns whether a text is no JSON but what `pack` made of one."""
    return text.startswith(_MARK)


def unpack(text: str) -> str:
    """Returns the JSON text that was packed, or that stands there as it is."""
    return zlib.decompress(base64.b64decode(text.removeprefix(_MARK))).decode() if is_packed(text) else text
