"""Running jobs, as their processes would describe their devices."""

from __future__ import annotations

from meshwright.topology.identity import JobDevice
from meshwright.topology.model import Topology


def cpu_job(count: int, *, each: int = 4, host: str = "boot-1") -> list[JobDevice]:
    return [JobDevice(i // each, i // each * 2048 + i % each, host, "cpu") for i in range(count)]


def gpu_job(topology: Topology, indices: list[int]) -> list[JobDevice]:
    """One process a GPU, every id 0 in its own view: only the uuid tells them apart."""
    return [JobDevice(rank, rank, "boot-1", "gpu", uuid=topology.devices[i].uuid) for rank, i in enumerate(indices)]


def tpu_job(topology: Topology, indices: list[int]) -> list[JobDevice]:
    devices = [topology.devices[i] for i in indices]
    return [
        JobDevice(0, 100 + n, "x", "tpu", coords=d.coords, core_on_chip=d.core_on_chip, slice_index=0)
        for n, d in enumerate(devices)
    ]
