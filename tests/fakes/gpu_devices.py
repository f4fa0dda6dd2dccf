"""GPUs, TPUs and other processes' devices as `jax.Device` shows them to who chooses among devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True)
class FakeClient:
    """The client that a device belongs to: that of the process which looks."""

    own_process: int

    def process_index(self) -> int:
        return self.own_process


@dataclass(frozen=True)
class FakeDevice:
    id: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    process_index: int = 0
    client: FakeClient = FakeClient(0)

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"


@dataclass(frozen=True)
class FakeGpu(FakeDevice):
    """An NVIDIA GPU; PJRT gives its compute capability as an attribute (jax/_src/pallas reads it)."""

    compute_capability: str = "9.0"


def build_host(**counts: int) -> list[Any]:
    """Returns devices of a host by platform, in the order given: build_host(cpu=1, gpu=2)."""
    return [
        FakeGpu(index) if platform == "gpu" else FakeDevice(index, platform, f"a {platform}")
        for platform, count in counts.items()
        for index in range(count)
    ]


def check_device(device: Any) -> None:
    """Holds a fake to a real device: all that it has, a real one has, of the same type."""
    real = jax.devices("cpu")[0]
    for name in ("id", "platform", "device_kind", "process_index"):
        assert type(getattr(device, name)) is type(getattr(real, name)), name
    assert type(device.client.process_index()) is type(real.client.process_index())
