"""The host as `GET /devices` shows it: facts of the probe joined with what JAX reports. Pure.

Each part keeps the evidence of its source. Missing facts and contradictions are warnings, never an error. The devices
of one host are one granule. CPU devices share the host's memory, and each pair of them has a HOST link; until a worker
has reported them, they are declared, not live.
"""

from __future__ import annotations

import platform
import platform as python_platform
from collections.abc import Callable
from datetime import datetime
from itertools import combinations
from typing import Final, get_args

import meshwright_agent
from meshwright.wire.base import Notice
from meshwright.wire.devices import (
    Cpu,
    Device,
    Devices,
    Granule,
    Host,
    Link,
    Memory,
    NumaNode,
    Platform,
    Software,
    Worker,
)
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.view.gpu import build_gpus, find_domain
from meshwright_agent.view.sight import JaxSight, Look, Part
from meshwright_agent.view.tpu import build_tpus, find_slice

_ACCELERATORS: Final[dict[Platform, Callable[[Look], Part]]] = {"gpu": build_gpus, "tpu": build_tpus}


def build_devices(
    facts: HostFacts | None,
    facts_at: datetime | None,
    jax: JaxSight | None,
    worker: Worker,
    *,
    now: datetime,
    cpu_devices: int | None = None,
) -> Devices:
    """Returns the host as a topology.

    Args:
        facts, facts_at: what the probe read, and when; None: it has not answered yet.
        jax: what the device worker showed last; None: it has not looked yet.
        worker: its state, passed on.
        now: to which ages are counted.
        cpu_devices: set when the agent runs on that many CPU devices whatever else is here.
    """
    name = (facts.machine.name if facts else python_platform.node()) or "localhost"
    known = jax if jax is not None and jax.platform in get_args(Platform) else None
    look = Look(name, now, facts, facts_at, known)
    platform = choose_platform(look, cpu_devices)
    build = _ACCELERATORS.get(platform)
    part = build(look) if build else build_cpus(look, configured_count=cpu_devices)
    return Devices(
        host=build_host(look),
        cpu=build_cpu(look),
        numa_nodes=build_numa_nodes(look),
        software=build_software(look),
        platform=platform,
        worker=worker,
        granules=(_build_granule(look, platform, len(part.devices)),),
        devices=part.devices,
        links=part.links,
        warnings=(*_warn(look, jax), *part.warnings),
    )


def choose_platform(look: Look, cpu_devices: int | None) -> Platform:
    """Returns what the host's devices are: CPUs where that was asked for, else accelerators that were seen."""
    if cpu_devices is not None:
        return "cpu"
    seen = {"gpu": bool(look.facts and look.facts.gpus), "tpu": bool(look.facts and look.facts.tpus)}
    by_jax = look.jax.platform if look.jax else "cpu"
    if by_jax in _ACCELERATORS:
        seen = {name: name == by_jax for name in seen}
    return next((name for name in _ACCELERATORS if seen[name]), "cpu")


def _build_granule(look: Look, platform: Platform, count: int) -> Granule:
    """Returns what the devices listed here belong to; of a slice of several hosts, the whole slice's shape."""
    if platform != "tpu":
        domain = find_domain(look) if platform == "gpu" else None
        return Granule(ordinal=0, kind="host", name=look.host, device_count=count, domain=domain)
    slice_ = find_slice(look)
    return Granule(
        ordinal=0,
        kind="slice",
        name=(look.facts.slice.name if look.facts else None) or look.host,
        device_count=count,
        shape=slice_.shape,
        wrap=slice_.wrap,
        twisted=slice_.twisted,
    )


def _warn(look: Look, jax: JaxSight | None) -> tuple[Notice, ...]:
    notices = [
        Notice(code="driver_problem", message=problem.text) for problem in (look.facts.problems if look.facts else ())
    ]
    if look.facts is None:
        notices.append(_tell_unread())
    elif look.facts.kfd is not None and jax is None:
        notices.append(_tell_unlisted())
    if jax is not None and look.jax is None:
        notices.append(_tell_unknown(jax.platform))
    return tuple(notices)


def _tell_unread() -> Notice:
    return Notice(
        code="facts_missing",
        message="the probe has not answered yet: driver, PCI and memory facts are null",
        hint="GET /health tells why; the devices are those that JAX shows",
    )


def _tell_unlisted() -> Notice:
    return Notice(
        code="gpus_not_listed",
        message="AMD's driver is here (/dev/kfd); its GPUs are not among these devices until JAX has listed them",
        hint="GET /health tells at `worker` what JAX waits for: it is not started while others hold the GPUs",
    )


def _tell_unknown(platform: str) -> Notice:
    return Notice(
        code="jax_platform_unknown",
        message=f"JAX runs on {platform!r}, none of {', '.join(get_args(Platform))}: its view is left out",
        hint="set JAX_PLATFORMS to cpu, cuda, rocm or tpu",
    )


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


def build_host(look: Look) -> Host:
    """Returns the machine; only its name before the probe has answered."""
    if look.facts is None:
        return Host(name=look.host, **look.stamp("passive"))
    machine = look.facts.machine
    return Host(
        name=look.host,
        boot_id=machine.boot_id,
        kernel=machine.kernel,
        operating_system=machine.operating_system,
        container=machine.container,
        **look.passive(),
    )


def build_cpu(look: Look) -> Cpu:
    """Returns processors and memory; all null before the probe has answered."""
    if look.facts is None:
        return Cpu(**look.stamp("passive"))
    cpu = look.facts.cpu
    return Cpu(
        model=cpu.model,
        architecture=cpu.architecture,
        sockets=cpu.sockets,
        cores=cpu.cores,
        threads=cpu.threads,
        usable_threads=cpu.usable_threads,
        memory_bytes=cpu.memory_bytes,
        available_bytes=cpu.available_bytes,
        **look.passive(),
    )


def build_numa_nodes(look: Look) -> tuple[NumaNode, ...]:
    """Returns the NUMA nodes; none before the probe has answered."""
    nodes = look.facts.numa_nodes if look.facts else ()
    return tuple(
        NumaNode(
            node=one.node,
            cpus=one.cpus,
            memory_bytes=one.memory_bytes,
            distances=one.distances,
            **look.passive(),
        )
        for one in nodes
    )


def build_software(look: Look) -> Software:
    """Returns versions: JAX's as the worker said them, the driver's as the probe read them."""
    versions = look.jax.view if look.jax else {}
    driver = look.facts.driver if look.facts else None
    return Software(
        agent=meshwright_agent.__version__,
        python=platform.python_version(),
        jax=versions.get("jax"),
        jaxlib=versions.get("jaxlib"),
        libtpu=versions.get("libtpu"),
        driver=driver.version if driver else None,
        cuda_driver=driver.cuda_version if driver else None,
        **(look.by_jax() if look.jax else look.passive()),
    )
