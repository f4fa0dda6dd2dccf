"""Long lists as JSON, written entry by entry, so that whoever else waits for the event loop comes in between.

Rule: the text is the one that the whole model would write. Knows no route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from pydantic import BaseModel

TURN_S: Final = 0.005
"""How long a list is written on before others go first."""


async def write_list(reply: BaseModel, field: str, entries: Iterable[BaseModel]) -> bytes:
    """Returns the JSON of a reply whose `field` is empty, with these entries in it."""
    before, hole, after = reply.model_dump_json().partition(f'"{field}":[]')
    assert hole, "the reply is given without its entries"
    parts, began_s = [], time.perf_counter()
    for entry in entries:
        parts.append(entry.model_dump_json().encode())
        if time.perf_counter() - began_s >= TURN_S:
            await asyncio.sleep(0)
            began_s = time.perf_counter()
    return b"".join((before.encode(), hole[:-1].encode(), b",".join(parts), b"]", after.encode()))
