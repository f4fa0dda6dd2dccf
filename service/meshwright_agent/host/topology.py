"""The host as `GET /devices` shows it: facts of the probe joined with JAX's devices. Pure.

Each part keeps the evidence of its source. Missing facts and contradictions are warnings, never an error. The devices
of one host are one granule. CPU devices share the host's memory, and each pair of them has a HOST link; until a worker
has listed them, they are declared, not live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import combinations
from typing import Final, get_args

import meshwright_agent
from meshwright.topology.targets import HOST, MOST_LINKED_CPUS
from meshwright.wire.base import Notice
from meshwright.wire.devices import (
    Cpu,
    Device,
    Devices,
    Granule,
    Host,
    Link,
    MeasuredNetwork,
    Memory,
    Nic,
    NumaNode,
    Platform,
    Software,
)
from meshwright_agent.host.gpu import build_gpus, find_domain
from meshwright_agent.host.snapshot import HostSnapshot, PlatformDevices, View
from meshwright_agent.host.tpu import build_tpus, find_slice

_ACCELERATORS: Final[dict[Platform, Callable[[View], PlatformDevices]]] = {"gpu": build_gpus, "tpu": build_tpus}


def build_devices(snapshot: HostSnapshot, now: datetime) -> Devices:
    """Returns the host as a topology; ages count to `now`."""
    view = View(snapshot, now)
    platform = choose_platform(view)
    build = _ACCELERATORS.get(platform, build_cpus)
    found = build(view)
    machine, cpu = vars(view.facts.machine) | {"name": view.host}, dict(vars(view.facts.cpu))
    del cpu["memory_limit_bytes"]
    granule = _build_granule(view, platform, len(found.devices))
    return Devices(
        host=Host(**machine, **view.passive),
        cpu=Cpu(**cpu),
        numa_nodes=tuple(NumaNode(**vars(node)) for node in view.facts.numa_nodes),
        software=build_software(view),
        platform=platform,
        worker=snapshot.worker,
        granules=(granule,),
        devices=found.devices,
        links=found.links,
        nics=build_nics(view, found.devices),
        network=_date_network(snapshot.network, granule, now),
        warnings=(*_warn(view), *found.warnings),
    )


def _date_network(network: MeasuredNetwork | None, granule: Granule, now: datetime) -> MeasuredNetwork | None:
    """Returns the network with its age; None where hosts share faster links: of a TPU slice or an NVLink domain."""
    if network is None or granule.kind != "host" or granule.domain is not None:
        return None
    return network.model_copy(update={"age_s": max(0.0, (now - network.observed_at).total_seconds())})


def choose_platform(view: View) -> Platform:
    """Returns the platform of the host's devices: CPUs if configured, else the accelerators found."""
    if view.snapshot.cpu_devices is not None:
        return "cpu"
    if view.jax and view.jax.platform in _ACCELERATORS:
        return view.jax.platform
    return "gpu" if view.facts.gpus else "tpu" if view.facts.tpus else "cpu"


def _build_granule(view: View, platform: Platform, count: int) -> Granule:
    """Returns the granule of this host's devices. For a slice of several hosts it has the whole slice's shape."""
    if platform != "tpu":
        domain = find_domain(view) if platform == "gpu" else None
        return Granule(ordinal=0, kind="host", name=view.host, device_count=count, domain=domain)
    name = view.facts.slice.name or view.host
    return Granule(ordinal=0, kind="slice", name=name, device_count=count, **vars(find_slice(view)))


def _warn(view: View) -> tuple[Notice, ...]:
    notices = [Notice(code="driver_problem", message=problem.text) for problem in view.facts.problems]
    jax = view.snapshot.jax
    if view.snapshot.facts is None:
        message = "the probe has not answered yet: driver, PCI and memory facts are null"
        hint = "GET /health tells why; the devices are those that JAX shows"
        notices.append(Notice(code="facts_missing", message=message, hint=hint))
    elif view.facts.kfd is not None and jax is None:
        message = "AMD's driver is here (/dev/kfd); its GPUs are not among these devices until JAX has listed them"
        hint = "GET /health tells at `worker` what JAX waits for: it is not started while others hold the GPUs"
        notices.append(Notice(code="gpus_not_listed", message=message, hint=hint))
    if jax is not None and view.jax is None:
        known = ", ".join(get_args(Platform))
        message = f"JAX runs on {jax.platform!r}, none of {known}: its view is left out"
        hint = "set JAX_PLATFORMS to cpu, cuda, rocm or tpu"
        notices.append(Notice(code="jax_platform_unknown", message=message, hint=hint))
    return tuple(notices)


def build_cpus(view: View) -> PlatformDevices:
    """Returns the CPU devices that JAX lists, else the configured number (default 1).

    They are virtual if there are several, or if their number was configured.
    """
    configured, seen = view.snapshot.cpu_devices, view.list_jax("cpu")
    count = len(seen) or configured or 1
    evidence = view.by_jax if seen else view.declared
    nodes, memory = view.facts.numa_nodes, build_share(view, count)
    devices = tuple(
        view.build_device(
            "cpu",
            index,
            jax,
            kind=str(jax["kind"]) if jax else "cpu",
            numa_node=nodes[0].node if len(nodes) == 1 else None,  # XLA's threads are not pinned
            virtual=count > 1 or configured is not None,
            memory=memory,
            processes=(),
            **evidence,
        )
        for index, jax in enumerate(seen or (None,) * count)
    )
    if count > MOST_LINKED_CPUS:
        message = f"{count} CPU devices have {count * (count - 1) // 2} links, all HOST; they are not listed"
        hint = f"up to {MOST_LINKED_CPUS} devices are listed with their links"
        return PlatformDevices(devices, warnings=(Notice(code="links_left_out", message=message, hint=hint),))
    links = tuple(Link(basis=evidence["basis"], a=a, b=b, kind=HOST) for a, b in combinations(range(count), 2))
    return PlatformDevices(devices, links)


def build_share(view: View, count: int) -> Memory | None:
    """Returns a device's equal share of the memory that this process may use; None: unknown."""
    total = view.facts.cpu.memory_limit_bytes or view.facts.cpu.memory_bytes
    return None if total is None else Memory(basis="passive", capacity_bytes=total // count)


def build_nics(view: View, devices: Sequence[Device]) -> tuple[Nic, ...]:
    """Returns the ports with RDMA, each with the positions of the devices beside it."""
    return tuple(
        Nic(
            **{name: value for name, value in vars(nic).items() if name != "near"},
            device_indices=tuple(index for index, device in enumerate(devices) if device.pci_bus_id in nic.near),
        )
        for nic in view.facts.nics
    )


def build_software(view: View) -> Software:
    """Returns versions: JAX's from the worker, the driver's from the probe."""
    versions, driver = view.jax.view if view.jax else {}, view.facts.driver
    return Software(
        agent=meshwright_agent.__version__,
        **{name: versions.get(name) for name in ("jax", "jaxlib", "libtpu")},
        driver=driver.version,
        cuda_driver=driver.cuda_version,
        **(view.by_jax if view.jax else view.passive),
    )
