"""Hosts as `GET /devices` shows them, for the limits: only what they look at."""

from __future__ import annotations

from typing import Any

from meshwright.wire.devices import Cpu, Device, Devices, Granule, Host, Memory, Platform, Software, Worker
from tests.fakes.topologies import EVIDENCE

GIB = 2**30
KINDS = {"cpu": "cpu", "gpu": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5 lite"}


def build_host(
    count: int = 8,
    platform: Platform = "cpu",
    *,
    host_bytes: int | None = 16 * GIB,
    device_bytes: int | None = 80 * GIB,
    changes: dict[int, dict[str, Any]] | None = None,
) -> Devices:
    memory = Memory(capacity_bytes=device_bytes, **EVIDENCE) if platform != "cpu" else None
    devices = tuple(
        Device(
            **{
                "host": "a", "local_index": index, "position": index, "platform": platform, "kind": KINDS[platform],
                "memory": memory, "processes": (), **EVIDENCE, **(changes or {}).get(index, {}),
            }
        )
        for index in range(count)
    )  # fmt: skip
    return Devices(
        host=Host(name="a", **EVIDENCE),
        cpu=Cpu(memory_bytes=host_bytes, available_bytes=host_bytes, **EVIDENCE),
        numa_nodes=(),
        software=Software(agent="0", python="3", **EVIDENCE),
        platform=platform,
        worker=Worker(state="stopped", generation=0, since=EVIDENCE["observed_at"]),
        granules=(Granule(ordinal=0, kind="host", name="a", device_count=count),),
        devices=devices,
        links=(),
    )
