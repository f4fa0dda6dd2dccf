"""Which lines of a dying process are worth keeping. Knows no process."""

from __future__ import annotations

import re
from typing import Final

_MAP_LINE: Final = re.compile(r"\b[0-9a-f]{8,16}-[0-9a-f]{8,16} [r-][w-][x-][ps-] ")


def is_map_line(line: str) -> bool:
    """Returns whether a line is one of /proc/self/maps.

    libtpu's crash handler writes hundreds of them after the stack. They say nothing of the crash, and would push the
    stack out of the last lines that are kept.
    """
    return _MAP_LINE.search(line) is not None
