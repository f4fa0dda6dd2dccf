"""Device memory that no foreign process accounts for. Pure.

Rule: a device of which the driver does not tell all (its memory, its processes, or what one of them has) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshwright_agent.facts.model import GpuFacts


def count_unowned(gpus: Iterable[GpuFacts]) -> dict[str, int]:
    """Returns by device the bytes in use, those of foreign processes taken off: the driver's own, and the agent's."""
    counted = ((gpu.key, _count(gpu)) for gpu in gpus)
    return {key: count for key, count in counted if count is not None}


def _count(gpu: GpuFacts) -> int | None:
    if gpu.used_bytes is None or gpu.processes is None:
        return None
    foreign = [process.used_bytes for process in gpu.processes if not process.own]
    known = [used for used in foreign if used is not None]
    return max(0, gpu.used_bytes - sum(known)) if len(known) == len(foreign) else None
