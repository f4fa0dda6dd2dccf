"""build_devices(): one picture of a host from what the probe and the device worker saw.

Rule: pure; each part keeps the evidence of its source; missing facts and contradictions are warnings,
never an error. The host's devices are one granule.
"""

from __future__ import annotations

import platform as python_platform
from collections.abc import Callable
from datetime import datetime
from typing import Final, get_args

from meshwright.wire.base import Notice
from meshwright.wire.devices import Devices, Granule, Platform, Worker
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.view.cpu import build_cpus
from meshwright_agent.view.gpu import build_gpus, find_domain
from meshwright_agent.view.host import build_cpu, build_host, build_numa_nodes, build_software
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
