"""Reads JAX's devices for the library and the agent's worker: the list of devices, and the reported facts of each.

Rule: a value that a platform does not report is None, never 0. Independent of meshes and plans.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
from jax.extend import backend as jax_backend

from meshwright.wire.devices import parse_platform

Device: TypeAlias = Any
"""A `jax.Device`: jaxlib has no types for it, so that type checkers would call every signature with it unknown."""


def list_devices(backend: str | None = None) -> list[jax.Device]:
    """Returns all devices of a backend ("cpu", "gpu", "cuda", "tpu", …), or of JAX's default backend for None.

    Raises:
        RuntimeError: the backend is not available, or JAX cannot start. The message names the available ones.
        TypeError: `backend` is not text.
    """
    if not isinstance(backend, str | None):
        raise TypeError(f"backend is {backend!r}, a {type(backend).__name__}; it is a word, such as 'cpu', or None")
    try:
        return list(jax.devices(backend))
    except (AssertionError, RuntimeError) as error:  # JAX has no message for JAX_PLATFORMS=cuda without a device file
        raise RuntimeError(
            f"{f'backend {backend!r}' if backend else 'the default backend'} was asked for; "
            f"{_describe_backends(error)}; "
            f"JAX starts the platforms of JAX_PLATFORMS, or all that are installed and have hardware; use one that is "
            f"here, such as JAX_PLATFORMS=cpu, or install the jax extra of the one that you want"
        ) from error


def _describe_backends(error: Exception) -> str:
    try:
        found = {parse_platform(name): client.device_count() for name, client in jax_backend.backends().items()}
    except (AssertionError, RuntimeError):
        return f"JAX could not start ({str(error) or 'it found none of the platforms that it was to start'})"
    named = ", ".join(f"{name} ({count} device{'s' if count > 1 else ''})" for name, count in found.items())
    return f"here are {named}"


def describe_device(device: Any) -> dict[str, Any]:
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
        "memory_stats": read_memory_stats(device),
    }


def is_own(device: Any) -> bool:
    """Returns whether a device belongs to this process."""
    return bool(device.process_index == device.client.process_index())


def read_memory_stats(device: Any) -> dict[str, int] | None:
    """Returns the allocator's figures in bytes (counts for `num_…`); None where the platform does not have them."""
    try:
        stats = device.memory_stats()
    except RuntimeError:  # JaxRuntimeError: UNIMPLEMENTED, or the device is another process's
        return None
    return {name: int(value) for name, value in stats.items()} if stats else None
