"""Hosts that do not exist, as `GET /devices` would show them: virtual CPUs, H100 with NVLink, a v5e slice.

Names, links and capacities are those of the real machine; identities are made up. Independent of the agent.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, Final

from meshwright.wire.base import Basis
from meshwright.wire.devices import (
    Cpu,
    Device,
    Devices,
    Granule,
    GranuleKind,
    Host,
    Link,
    Memory,
    NumaNode,
    Platform,
    Software,
    Worker,
)

MAX_COUNT: Final = 256
GIB: Final = 2**30
MIB: Final = 2**20


@dataclass(frozen=True)
class Model:
    """One kind of fake host."""

    platform: Platform
    kind: str
    granule: GranuleKind
    memory_bytes: int | None
    identify: Callable[[int, int, str], dict[str, Any]]
    joined: Callable[[int, int, int], str | None]
    link_count: int | None
    link_bytes_per_s: float | None


def _identify_cpu(index: int, count: int, mark: str) -> dict[str, Any]:
    return {"virtual": count > 1, "process_index": 0}


def _identify_gpu(index: int, count: int, mark: str) -> dict[str, Any]:
    numa = index * 2 // count if count > 1 else 0
    return {
        "uuid": f"GPU-{mark}-0000-4000-8000-{index:012x}",
        "pci_bus_id": f"00000000:{0x1A + index:02X}:00.0" if index < 200 else None,
        "numa_node": numa,
        "compute_capability": "9.0",
        "compute_mode": "default",
    }


def _identify_tpu(index: int, count: int, mark: str) -> dict[str, Any]:
    return {"coords": _place(index, count), "core_on_chip": 0, "slice_index": 0, "process_index": 0}


def _place(index: int, count: int) -> tuple[int, int, int]:
    width = 2 if count % 2 == 0 and count > 2 else 1
    return index % width, index // width, 0


def _are_neighbors(a: int, b: int, count: int) -> bool:
    return sum(abs(x - y) for x, y in zip(_place(a, count), _place(b, count), strict=True)) == 1


MODELS: Final[dict[str, Model]] = {
    "cpu": Model("cpu", "cpu", "host", None, _identify_cpu, lambda a, b, count: "HOST", None, None),
    # 18 links of NVLink 4, 900 GB/s both ways. Source: NVIDIA H100 datasheet; memory as `topology/chips.csv` has it.
    "h100": Model(
        "gpu", "NVIDIA H100 80GB HBM3", "host", 81_559 * MIB, _identify_gpu, lambda a, b, count: "NV18", 18, 450e9
    ),
    # 16 GiB of HBM; ICI of 45 GB/s one way a link. Source: scaling book, "TPU networking".
    "v5e": Model(
        "tpu",
        "TPU v5 lite",
        "slice",
        16 * GIB,
        _identify_tpu,
        lambda a, b, count: "ICI" if _are_neighbors(a, b, count) else None,
        None,
        45e9,
    ),
}


def build_devices(name: str = "cpu:8", *, host: str = "fake-host", at: datetime | None = None) -> Devices:
    """Returns a host in the form of the agent's answer: "cpu:8", "h100:8", "v5e:8".

    Args:
        name: kind and number of devices; `MODELS` lists the kinds.
        host: the host's name; hosts of different names have different identities.
        at: the time of all observations, UTC; None: now.

    Raises:
        ValueError: the kind does not exist, or the number is outside 1 to 256.
    """
    match = re.fullmatch(r"([a-z0-9]+):([0-9]{1,3})", name)
    model = MODELS.get(match[1]) if match else None
    if match is None or model is None or not 1 <= int(match[2]) <= MAX_COUNT:
        kinds = ", ".join(f"{kind}:8" for kind in MODELS)
        raise ValueError(f"fake host {name!r}: it is a kind and a number of 1 to {MAX_COUNT}, such as {kinds}")
    return _build_host(model, int(match[2]), host, at or datetime.now(UTC))


def _build_host(model: Model, count: int, host: str, at: datetime) -> Devices:
    basis: Basis = "live" if model.platform != "gpu" else "passive"
    seen: dict[str, Any] = {"basis": basis, "observed_at": at, "age_s": 0.0}
    passive: dict[str, Any] = {**seen, "basis": "passive"}
    granule = Granule(ordinal=0, kind=model.granule, name=host, device_count=count)
    mark = _mark_host(host)
    return Devices(
        host=Host(name=host, boot_id=f"{mark}-0000-4000-8000-000000000000", **passive),
        cpu=Cpu(model="fake processor", architecture="x86_64", sockets=1, cores=8, threads=8, **passive),
        numa_nodes=(NumaNode(node=0, cpus="0-7", memory_bytes=64 * GIB, **passive),),
        software=Software(agent="0.0.0", python="3.13.0", jax="0.10.0", jaxlib="0.10.0", **passive),
        platform=model.platform,
        worker=Worker(state="ready", generation=1, pid=4242, since=at),
        granules=(granule,),
        devices=tuple(_build_device(model, index, count, host, mark, seen) for index in range(count)),
        links=tuple(_build_links(model, count, seen)),
    )


def _mark_host(host: str) -> str:
    """Returns eight hexadecimal digits that identities on this host begin with: hosts of other names are others."""
    return f"fa{zlib.crc32(host.encode()) & 0xFFFFFF:06x}"


def _build_device(model: Model, index: int, count: int, host: str, mark: str, seen: dict[str, Any]) -> Device:
    memory = Memory(capacity_bytes=model.memory_bytes, used_bytes=0, **seen) if model.memory_bytes else None
    return Device(
        host=host,
        local_index=index,
        position=index,
        platform=model.platform,
        kind=model.kind,
        memory=memory,
        processes=(),
        **model.identify(index, count, mark),
        **seen,
    )


def _build_links(model: Model, count: int, seen: dict[str, Any]) -> list[Link]:
    return [
        Link(a=a, b=b, kind=kind, count=model.link_count, bandwidth_bytes_per_s=model.link_bytes_per_s, **seen)
        for a, b in combinations(range(count), 2)
        if (kind := model.joined(a, b, count))
    ]
