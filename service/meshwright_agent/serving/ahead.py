"""What answers need of files, read before the first request: tables, and modules that are loaded when first used.

Rule: an agent whose descriptors are all taken answers who is connected as before. What only compiles and tracing load
is left to its time; `api.problem` answers 503 there. Knows no route.
"""

from __future__ import annotations

import gc

import anyio

import meshwright_agent.children.compile_tasks  # noqa: F401  (plans that are compiled load it)
from meshwright.topology.chips import read_chips
from meshwright.topology.systems import read_slices


async def read_ahead() -> None:
    """Reads them; called on the event loop, whose streams are among them.

    Raises:
        OSError: a file of ours cannot be read.
    """
    read_chips()
    read_slices()
    sending, receiving = anyio.create_memory_object_stream[None]()  # as event streams do: loads anyio's backend
    async with anyio.create_task_group(), sending, receiving:
        pass


def spare_collector() -> None:
    """Tells Python's garbage collector that what is there now stays: code, tables, and what was read from the store.

    It walks all else whenever a quarter has been added, and the event loop stands still for that time: with 10,000
    records of benches for 0.1 to 0.3 s, again and again.
    """
    gc.collect()
    gc.freeze()
