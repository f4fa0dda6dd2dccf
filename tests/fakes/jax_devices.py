"""Devices of jobs that cannot run here, as `jax.Device` shows them; and a check that such a job could be real."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from meshwright.topology.model import Topology


@dataclass(frozen=True)
class FakeDevice:
    """What the order of a mesh depends on. CPU devices of a single process have no `slice_index`, as in JAX."""

    id: int
    process_index: int
    platform: str
    device_kind: str


@dataclass(frozen=True)
class FakeSliced(FakeDevice):
    """A GPU, whose fast domain (host, or NVLink fabric) JAX numbers as a slice; or a CPU device of a job, always 0."""

    slice_index: int


@dataclass(frozen=True)
class FakeTpu(FakeDevice):
    """One core of a TPU chip. JAX has no `slice_index` on a single slice."""

    coords: tuple[int, int, int]
    core_on_chip: int


def build_stand_ins(topology: Topology) -> list[SimpleNamespace]:
    """The devices of a target of TPUs."""
    return [
        SimpleNamespace(
            id=number, platform=device.platform, device_kind=device.kind, coords=device.coords,
            core_on_chip=device.core_on_chip, process_index=device.process_index, slice_index=device.slice_index or 0,
        )
        for number, device in enumerate(topology.devices)
    ]  # fmt: skip


def build_tpus(columns: int, rows: int, *, kind: str = "TPU v6 lite") -> list[Any]:
    """A slice of one host, as JAX lists it: x fastest."""
    places = [(x, y, 0) for y in range(rows) for x in range(columns)]
    return check_job([FakeTpu(i, 0, "tpu", kind, place, 0) for i, place in enumerate(places)])


def build_cpus(processes: int, each: int) -> list[Any]:
    """Ids of process p begin at p · 2048 (jaxlib, xla/pjrt/cpu)."""
    names = [(2048 * p + i, p, "cpu", "cpu") for p in range(processes) for i in range(each)]
    return check_job([FakeDevice(*name) if processes == 1 else FakeSliced(*name, slice_index=0) for name in names])


def build_gpus(processes: int, each: int, *, processes_per_slice: int = 1) -> list[Any]:
    names = [(p * each + i, p, "gpu", "NVIDIA H100 80GB HBM3") for p in range(processes) for i in range(each)]
    return check_job([FakeSliced(*name, slice_index=name[1] // processes_per_slice) for name in names])


def check_job(devices: list[Any]) -> list[Any]:
    """What every real job keeps to: ids are unique; a process is of one slice; processes count from 0."""
    assert len({device.id for device in devices}) == len(devices)
    assert {device.process_index for device in devices} == set(range(len({d.process_index for d in devices})))
    chips = [device.coords for device in devices if isinstance(device, FakeTpu)]
    assert len(set(chips)) == len(chips)
    slices = {(device.process_index, getattr(device, "slice_index", None)) for device in devices}
    assert max(Counter(process for process, _ in slices).values()) == 1
    return devices
