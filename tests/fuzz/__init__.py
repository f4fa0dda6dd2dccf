"""Fuzzing: whole hosts with spoiled files, damaged databases, wrong bodies, bytes on the socket.

`make test-all` runs a small budget, `make fuzz` the large one; FUZZ_EXAMPLES scales both, 30 being the small one.
"""

from __future__ import annotations

import os
from typing import Final

SMALL: Final = 30
EXAMPLES: Final = int(os.environ.get("FUZZ_EXAMPLES", str(SMALL)))


def scale(small: int) -> int:
    """Returns how many inputs are tried where the small budget tries so many."""
    return max(1, small * EXAMPLES // SMALL)
