"""The stage: this process's JAX devices by local index, and how work on them is timed.

Rule: a local index means here what it means in `GET /devices`; where that cannot be told for certain, JAX's order is
taken and said. A time ends when the result is there (`jax.block_until_ready`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import jax
import numpy as np

from meshwright.mesh import create_mesh
from meshwright.topology.visible import VisibleGpu, read_visible_gpus
from meshwright.wire.base import Notice
from meshwright.wire.devices import Platform, parse_platform
from meshwright_agent.bench.patterns import Array
from meshwright_agent.bench.scope import Scope
from meshwright_agent.clock import Clock


@dataclass(frozen=True)
class Stage:
    """Where it is measured.

    Attributes:
        devices: local index → `jax.Device`.
        dtype: of the arrays.
    """

    devices: Mapping[int, jax.Device]
    platform: Platform
    dtype: str
    clock: Clock

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return int(self.numpy_dtype.itemsize)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy's dtype of that name, bfloat16 included."""
        dtype: np.dtype[Any] = jax.numpy.dtype(self.dtype)
        return dtype

    def time_s(self, work: Callable[[], object]) -> float:
        """Returns the seconds until the result of `work` is there; the result is dropped."""
        began_s = self.clock.monotonic()
        jax.block_until_ready(work())
        return self.clock.monotonic() - began_s


def count_shared(array: jax.Array, host: Array) -> int:
    """Returns how many parts of an array lie in a NumPy array's memory: on CPU only, elsewhere memory is apart."""
    low, high = host.ctypes.data, host.ctypes.data + host.nbytes
    parts = [shard.data for shard in array.addressable_shards if shard.device.platform == "cpu"]
    return sum(low <= part.unsafe_buffer_pointer() < high for part in parts)


def read_devices(environ: Mapping[str, str] = os.environ) -> tuple[dict[int, jax.Device], tuple[Notice, ...]]:
    """Returns this process's devices by local index, and what is uncertain about that."""
    devices = jax.local_devices()
    visible = read_visible_gpus(environ) if parse_platform(devices[0].platform) == "gpu" else None
    return order_devices(devices, visible)


def order_devices(
    devices: Sequence[Any], visible: Sequence[VisibleGpu] | None
) -> tuple[dict[int, Any], tuple[Notice, ...]]:
    """Returns devices by local index: GPUs in PCI order, TPUs by coordinates (z, y, x, core), CPUs as JAX has them."""
    match parse_platform(devices[0].platform):
        case "gpu":
            return _order_gpus(devices, visible)
        case "tpu":
            return dict(enumerate(sorted(devices, key=_tpu_key))), ()
        case _:
            return dict(enumerate(devices)), ()


def follow_plan(scope: Scope, devices: Mapping[int, Any]) -> Scope:
    """Returns the scope with its devices in the order that a trainer's `create_mesh` gives the same mesh."""
    chosen = [devices[index] for index in scope.devices]
    mesh = create_mesh(scope.mesh.sizes, scope.mesh.names, devices=chosen)
    indices = {device: index for index, device in devices.items()}
    return replace(scope, devices=tuple(indices[device] for device in mesh.devices.flat))


def _tpu_key(device: Any) -> tuple[Any, ...]:
    return (*reversed(tuple(getattr(device, "coords", None) or ())), getattr(device, "core_on_chip", None) or 0)


def _order_gpus(
    devices: Sequence[Any], visible: Sequence[VisibleGpu] | None
) -> tuple[dict[int, Any], tuple[Notice, ...]]:
    places = [_find_place(device, visible or ()) for device in devices]
    if None in places or len(set(places)) < len(places):
        return dict(enumerate(devices)), (_ASSUMED,)
    return dict(sorted(zip(cast(list[int], places), devices, strict=True), key=lambda pair: pair[0])), ()


def _find_place(device: Any, visible: Sequence[VisibleGpu]) -> int | None:
    ordinal = getattr(device, "local_hardware_id", None)
    return visible[ordinal].host_position if ordinal is not None and 0 <= ordinal < len(visible) else None


_ASSUMED: Final = Notice(
    code="device_order_assumed",
    message="which GPU each local index is cannot be told from here: JAX's order was taken",
    hint="set CUDA_DEVICE_ORDER=PCI_BUS_ID for the agent, or name GPUs by uuid in CUDA_VISIBLE_DEVICES",
)
