"""CPU devices: as many as JAX shows, or will show. They share the host's memory, and every pair a HOST link.

Rule: without a worker's word the devices are declared, never live. Pure.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Link, Memory
from meshwright_agent.view.sight import Look, Part

HOST: Final = "HOST"
MOST_LINKED_DEVICES: Final = 64
"""Links grow with the square of the devices: 64 have 2,016, and all are alike."""


def build_cpus(look: Look, *, configured_count: int | None) -> Part:
    """Returns the CPU devices of JAX's view, else as many as are configured (1 unless told otherwise).

    They are virtual when there are several, or when their number was asked for.
    """
    seen = look.jax.devices if look.jax and look.jax.platform == "cpu" else ()
    count = len(seen) or configured_count or 1
    evidence = look.by_jax() if seen else look.stamp("declared")
    devices = tuple(
        Device(
            host=look.host,
            local_index=index,
            position=index,
            platform="cpu",
            kind=str(seen[index]["kind"]) if seen else "cpu",
            numa_node=find_numa_node(look),
            process_index=seen[index].get("process_index") if seen else None,
            virtual=count > 1 or configured_count is not None,
            memory=build_share(look, count),
            jax=look.build_jax_view(seen[index]) if seen else None,
            processes=(),
            **evidence,
        )
        for index in range(count)
    )
    if count > MOST_LINKED_DEVICES:
        return Part(devices, warnings=(_tell_unlinked(count),))
    return Part(devices, tuple(Link(a=a, b=b, kind=HOST, **evidence) for a, b in combinations(range(count), 2)))


def find_numa_node(look: Look) -> int | None:
    """Returns the host's only NUMA node; None where there are several, since XLA's threads are not pinned."""
    nodes = look.facts.numa_nodes if look.facts else ()
    return nodes[0].node if len(nodes) == 1 else None


def build_share(look: Look, count: int) -> Memory | None:
    """Returns a device's equal share of the memory that this process may use; None: that is not known."""
    cpu = look.facts.cpu if look.facts else None
    total = (cpu.memory_limit_bytes or cpu.memory_bytes) if cpu else None
    return None if total is None else Memory(capacity_bytes=total // count, **look.passive())


def _tell_unlinked(count: int) -> Notice:
    return Notice(
        code="links_left_out",
        message=f"{count} CPU devices have {count * (count - 1) // 2} links, all HOST; they are not listed",
        hint=f"up to {MOST_LINKED_DEVICES} devices are listed with their links",
    )
