"""GPUs and MIG instances: NVML's facts joined with JAX's view by uuid, where the match is certain.

Rule: the driver lists the devices; JAX reports which of them it sees. Uncertain matches (see
`meshwright.topology.identity`) are not joined. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from meshwright.topology.identity import HostGpu, parse_visible
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, DeviceProcess, Link, Memory
from meshwright_agent.facts.model import GpuFacts, HostFacts, ProblemKind
from meshwright_agent.host.snapshot import PlatformDevices, View, read_limit

JaxDevice = Mapping[str, Any]
_NVIDIA_IS_SILENT: Final[frozenset[ProblemKind]] = frozenset({"no_library", "unreadable", "driver_down"})
"""Problems that mean that GPUs listed only by JAX may be NVIDIA's."""


def build_gpus(view: View) -> PlatformDevices:
    """Returns the GPUs that the driver lists, in its order; without such GPUs, those that JAX lists."""
    facts, seen = view.facts, view.list_jax("gpu")
    if not facts.gpus:
        return PlatformDevices(tuple(_build_unlisted(view, index, device) for index, device in enumerate(seen)))
    found = match_devices(facts, seen)
    devices = tuple(_build_gpu(view, index, found.get(gpu.key)) for index, gpu in enumerate(facts.gpus))
    places = {gpu.key: index for index, gpu in enumerate(facts.gpus)}
    links = tuple(
        Link(**vars(link) | {"a": places[link.a], "b": places[link.b]}, basis="passive")
        for link in facts.links
        if {link.a, link.b} <= set(places)
    )
    return PlatformDevices(
        devices, links, (*_warn(view, seen, found), *_warn_of_domains(facts), *_warn_of_refused(facts))
    )


def match_devices(facts: HostFacts, seen: Sequence[JaxDevice]) -> dict[str, JaxDevice]:
    """Returns GPU key → JAX's device: by CUDA's ordinals, else by a kind that both sides have once."""
    cards = [gpu for gpu in facts.gpus if gpu.mig is None and gpu.uuid and gpu.pci_bus_id]
    listed = [HostGpu(gpu.pci_bus_id or "", gpu.uuid or "", gpu.kind or "") for gpu in cards]
    visible = parse_visible(facts.environment, sorted(listed, key=lambda gpu: gpu.pci_bus_id))
    if visible is None or len(visible) < len(seen):
        return _match_by_kind(facts.gpus, seen)
    keys = {(gpu.uuid or "").lower(): gpu.key for gpu in facts.gpus if gpu.uuid}
    found = {}
    for position, device in enumerate(seen):
        ordinal = device.get("local_hardware_id")
        place = ordinal if isinstance(ordinal, int) and ordinal >= 0 else position
        key = keys.get(visible[place].uuid.lower()) if place < len(visible) else None
        if key is not None:
            found[key] = device
    return found


def _match_by_kind(gpus: Sequence[GpuFacts], seen: Sequence[JaxDevice]) -> dict[str, JaxDevice]:
    here = [gpu.kind for gpu in gpus]
    there = [device["kind"] for device in seen]
    by_kind = {device["kind"]: device for device in seen if there.count(device["kind"]) == 1}
    return {gpu.key: by_kind[gpu.kind] for gpu in gpus if gpu.kind in by_kind and here.count(gpu.kind) == 1}


def _list_domains(facts: HostFacts) -> list[str | None]:
    return [gpu.fabric.domain if gpu.fabric else None for gpu in facts.gpus]


def find_domain(view: View) -> str | None:
    """Returns the NVLink domain of all of this host's GPUs; None unless all are in the same domain."""
    domains = set(_list_domains(view.facts))
    return domains.pop() if len(domains) == 1 else None


def _build_gpu(view: View, index: int, seen: JaxDevice | None) -> Device:
    gpu = view.facts.gpus[index]
    limit = read_limit(seen)
    return view.build_device(
        "gpu",
        index,
        seen,
        kind=gpu.kind or (str(seen["kind"]) if seen else "NVIDIA GPU"),
        uuid=gpu.uuid,
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        compute_capability=gpu.compute_capability,
        compute_mode=gpu.compute_mode,
        mig=gpu.mig,
        memory=Memory(basis="passive", capacity_bytes=gpu.memory_bytes, used_bytes=gpu.used_bytes, limit_bytes=limit),
        processes=gpu.processes,
        attributes=build_attributes(gpu, view.facts),
        **view.passive,
    )


def build_attributes(gpu: GpuFacts, facts: HostFacts) -> dict[str, str | int | bool]:
    """Returns the attributes under the names of NVIDIA's DRA driver.

    Source: NVIDIA's k8s-dra-driver-gpu, gpu-kubelet-plugin/deviceinfo.go; Kubernetes' package deviceattribute.
    """
    mig = gpu.mig
    values = {
        "type": "gpu" if mig is None else "mig",
        "uuid": gpu.uuid,
        "index" if mig is None else "parentIndex": gpu.index,
        "minor" if mig is None else "parentMinor": gpu.minor,
        "productName": (gpu.kind or "").partition(" MIG ")[0] or None,
        "architecture": gpu.architecture,
        "cudaComputeCapability": gpu.compute_capability,
        "driverVersion": facts.driver.version,
        "cudaDriverVersion": facts.driver.cuda_version,
        "parentUUID": mig.parent_uuid if mig else None,
        "profile": mig.profile if mig else None,
        "resource.kubernetes.io/pciBusID": gpu.pci_bus_id,
        "resource.kubernetes.io/pcieRoot": gpu.pcie_root,
    }
    return {name: value for name, value in values.items() if value is not None}


def _build_unlisted(view: View, index: int, seen: JaxDevice) -> Device:
    """Returns a GPU that only JAX lists: another vendor's, or any GPU if NVML cannot be read."""
    stats = seen.get("memory_stats") or {}
    memory = Memory(basis=view.by_jax["basis"], used_bytes=stats.get("bytes_in_use"), limit_bytes=read_limit(seen))
    return view.build_device(
        "gpu",
        index,
        seen,
        kind=str(seen["kind"]),
        memory=memory if stats else None,
        processes=_find_holders(view.facts),
        **view.by_jax,
    )


def _find_holders(facts: HostFacts) -> tuple[DeviceProcess, ...] | None:
    """Returns the holders of each GPU that only JAX lists. For AMD these have the driver's file open; None: unknown."""
    if facts.kfd is None or any(problem.kind in _NVIDIA_IS_SILENT for problem in facts.problems):
        return None
    return facts.kfd.holders


def _warn(view: View, seen: Sequence[JaxDevice], found: Mapping[str, JaxDevice]) -> tuple[Notice, ...]:
    if view.jax is None:
        return ()
    gpus = view.facts.gpus
    hidden = [str(index) for index, gpu in enumerate(gpus) if gpu.key not in found]
    if not seen:
        code, platform = "jax_sees_no_gpu", view.jax.platform
        message = f"the driver lists {len(gpus)} GPU(s); the agent's JAX runs on {platform} and sees none of them"
        hint = "run `meshwright-agent doctor` on the host: JAX has no CUDA plugin, or JAX_PLATFORMS hides them"
    elif len(found) < len(seen):
        code = "jax_device_unmatched"
        message = f"{len(seen) - len(found)} of JAX's GPUs cannot be told apart from here: their jax view is null"
        hint = "set CUDA_DEVICE_ORDER=PCI_BUS_ID for the agent, or name GPUs by uuid in CUDA_VISIBLE_DEVICES"
    elif hidden:
        code = "devices_hidden"
        message = f"listed by the driver, not shown to the agent's JAX: device {', '.join(hidden)}"
        hint = "CUDA_VISIBLE_DEVICES or the container's device list leaves them out; that may be meant"
    else:
        return ()
    return (Notice(code=code, message=message, hint=hint),)


def _warn_of_domains(facts: HostFacts) -> tuple[Notice, ...]:
    """Returns a notice if the GPUs are not all in one NVLink domain. MIG instances are not in a domain."""
    domains = _list_domains(facts)
    if not any(domains) or len(set(domains)) == 1:
        return ()
    outside = ", ".join(str(index) for index, domain in enumerate(domains) if domain != domains[0])
    named = ", ".join(sorted({domain or "none" for domain in domains}))
    message = f"the GPUs are in NVLink domains {named}; device {outside} not in device 0's"
    hint = "the host counts as in none; look at the fabric of these GPUs, or leave them out of plans"
    return (Notice(code="nvlink_domains_differ", message=message, hint=hint),)


def _warn_of_refused(facts: HostFacts) -> tuple[Notice, ...]:
    """Returns a notice if device indices skip an earlier card that the driver does not list."""
    last = max((gpu.pci_bus_id or "" for gpu in facts.gpus), default="")
    away = (*(card.pci_bus_id for card in facts.refused), *facts.unread)
    before = [address or "one" for address in away if address is None or address < last]
    if not before:
        return ()
    message = f"GPU {', '.join(before)} cannot be used and is not listed: the devices behind it count without it"
    hint = "name devices by uuid, not by local index, until the card is back; GET /health tells why it is not"
    return (Notice(code="devices_renumbered", message=message, hint=hint),)
