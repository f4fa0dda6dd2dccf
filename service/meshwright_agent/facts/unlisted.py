"""What a driver's list of processes leaves out where the reader does not share all process numbers, as in a container.

Rule: an empty list is "nobody" only where the memory in use says so too; else it is None, which may be anybody. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from meshwright_agent.facts.model import GpuFacts, HostFacts, ProcessFacts
from meshwright_agent.facts.owners import find_holders, join_holders

IDLE_BYTES: Final = 32 * 2**20
"""Below it nobody has a context. A bare one was seen to take 107 MiB on 34 multiprocessors (RTX 4060 Ti) and 555 on
188 (RTX PRO 6000): some 3 MiB each beside 8, which makes about 50 on the 14 of the smallest MIG instance. Of an idle
card or instance drivers report 4 to 7 MiB, what they reserve left out.
Source: ggml-org/llama.cpp#23604; nvmlMemory_v2_t of the NVML API reference; tests/recorded."""


def judge_listed(listed: Sequence[ProcessFacts], used_bytes: int | None) -> tuple[ProcessFacts, ...] | None:
    """Returns who holds a device, of a list that may not name all; None: somebody who is not on it may.

    Args:
        listed: whom the driver names to this reader.
        used_bytes: of the device's memory, what the driver reserves left out.
    """
    if any(not process.own for process in listed):
        return tuple(listed)
    own = [process.used_bytes for process in listed]
    told = [used for used in own if used is not None]
    if used_bytes is None or len(told) < len(own):
        return None
    return tuple(listed) if used_bytes - sum(told) < IDLE_BYTES else None


def doubt_unnamed(facts: HostFacts) -> HostFacts:
    """Returns what was read while the agent's worker was there, without naming the worker as somebody else.

    A driver that counts by the host's numbers names it by one that is not to be told from a stranger's. Where it names
    one process and no other, that may be the worker: nobody knows. Of several, one at least is somebody else.
    """
    gpus = tuple(map(_doubt, facts.gpus))
    if gpus == facts.gpus:
        return facts
    computing = find_holders(gpus, facts.tpus)
    return replace(facts, gpus=gpus, holders=join_holders(computing, facts.kfd.holders) if facts.kfd else computing)


def _doubt(gpu: GpuFacts) -> GpuFacts:
    processes = gpu.processes or ()
    return replace(gpu, processes=None) if len(processes) == 1 and processes[0].elsewhere else gpu
