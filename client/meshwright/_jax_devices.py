"""JAX's devices, for the library and the agent's worker: lists, checks and descriptions; warnings at the user's line.

A value that a platform does not report is None, never 0. Independent of plans.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import jax
import numpy as np
from jax.extend import backend as jax_backend
from jax.sharding import AxisType, Mesh, NamedSharding

from meshwright.wire.devices import parse_platform

Device: TypeAlias = Any
"""A `jax.Device`: jaxlib has no types for it, so that type checkers would call every signature with it unknown."""


def list_devices(backend: str | None = None) -> list[Device]:
    """Returns all devices of a backend ("cpu", "gpu", "cuda", "tpu", …), or of JAX's default backend for None.

    Raises:
        RuntimeError: the backend is not available, or JAX cannot start. The message names the available ones.
    """
    try:
        return list(jax.devices(backend))
    except (AssertionError, RuntimeError) as error:  # JAX has no message for JAX_PLATFORMS=cuda without a device file
        here, works = _describe_backends(error)
        raise RuntimeError(
            f"{f'backend {backend!r}' if backend else 'the default backend'} was asked for; {here}; JAX starts the "
            f"platforms of JAX_PLATFORMS, or all that are installed and have hardware; use {works}, or install the "
            f"jax extra of the one that you want"
        ) from error


def _describe_backends(error: Exception) -> tuple[str, str]:
    """Returns what is here, and what works instead."""
    try:
        found = {parse_platform(name): client.device_count() for name, client in jax_backend.backends().items()}
    except (AssertionError, RuntimeError):
        return f"JAX could not start ({str(error) or 'it found none of its platforms'})", "JAX_PLATFORMS=cpu"
    named = ", ".join(f"{name} ({count} device{'s' if count > 1 else ''})" for name, count in found.items())
    return f"here are {named}", " or ".join(map(repr, found))


def check_devices(devices: Sequence[Device] | np.ndarray[Any, Any], name: str = "devices") -> list[Device]:
    """Returns the devices of a sequence, or of an array of any shape such as `mesh.devices`.

    Raises:
        ValueError: no device, one twice, or devices of several platforms; `name` is the argument's name.
    """
    chosen = list(devices.flat if isinstance(devices, np.ndarray) else devices)
    if not chosen:
        raise ValueError(f"{name} is empty; at least one device is needed: give some of jax.devices(), or leave it out")
    if len(set(chosen)) < len(chosen):
        twice = next(device for device in chosen if chosen.count(device) > 1)
        raise ValueError(f"{name} holds {twice} more than once; each device can be used once: give each once")
    platforms = sorted({device.platform for device in chosen})
    if len(platforms) > 1:
        raise ValueError(
            f"{name} holds devices of {len(platforms)} platforms ({', '.join(platforms)}); they must be of one: give "
            f"those of one, such as jax.devices({platforms[0]!r})"
        )
    return chosen


def is_own(device: Device) -> bool:
    """Returns whether a device belongs to this process."""
    return bool(device.process_index == device.client.process_index())


def describe_device(device: Device) -> dict[str, Any]:
    """Returns the reported facts of a `jax.Device`, as JSON values; `memory_stats` in bytes."""
    coords = getattr(device, "coords", None)
    return {
        "id": device.id,
        "platform": parse_platform(device.platform),
        "device_kind": device.device_kind,
        "process_index": device.process_index,
        "local_hardware_id": getattr(device, "local_hardware_id", None),
        "coords": None if coords is None else list(coords),
        "core_on_chip": getattr(device, "core_on_chip", None),
        "slice_index": getattr(device, "slice_index", None),
        "memory_stats": _read_memory_stats(device),
    }


def _read_memory_stats(device: Device) -> dict[str, int] | None:
    """Returns the allocator's figures in bytes (counts for `num_…`); None where the platform does not have them."""
    try:
        stats = device.memory_stats()
    except RuntimeError:  # JaxRuntimeError: UNIMPLEMENTED, or the device is another process's
        return None
    return {name: int(value) for name, value in stats.items()} if stats else None


def has_backend_started() -> bool:
    """Returns whether a JAX backend runs in this process."""
    from jax._src import xla_bridge  # jax has no public name for this question, which must not start a backend

    return xla_bridge.backends_are_initialized()


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the nearest line outside this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "meshwright":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


# ---- arrays on meshes ----

NO_MESH: Final = Mesh(np.empty((), dtype=object), ())
"""Without axes: in force, it takes the place of an outer `jax.set_mesh`."""


def free_axes(place: Any, kind: AxisType) -> Any:
    """Returns a sharding with Auto axes for those of a kind; anything else as it is."""
    if not isinstance(place, NamedSharding) or kind not in place.mesh.axis_types:
        return place
    types = tuple(AxisType.Auto if each is kind else each for each in place.mesh.axis_types)
    mesh = Mesh(place.mesh.devices, place.mesh.axis_names, axis_types=types)
    return NamedSharding(mesh, place.spec, memory_kind=place.memory_kind)


@contextmanager
def open_array(array: jax.Array) -> Iterator[jax.Array]:
    """Yields an array of this process, to be sliced in the block.

    JAX does not slice over Explicit axes, and places a slice on the mesh of an outer `jax.set_mesh`.
    """
    with jax.set_mesh(NO_MESH):
        yield jax.device_put(array, free_axes(array.sharding, AxisType.Explicit))
