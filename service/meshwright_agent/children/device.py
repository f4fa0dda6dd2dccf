"""The device worker: owns JAX on this host's devices. `python -m meshwright_agent.children.device`, a child.

Rule: the worker imports JAX and opens the devices before hello, and holds them until the process ends. The agent
decides the environment (platform, memory, virtual devices).
"""

from __future__ import annotations

from typing import Any, Final

from meshwright.compiling.worker import lower_priority, read_version
from meshwright.wire.devices import parse_platform
from meshwright_agent.children.child import CallContext, serve

NICENESS: Final = 5
"""Gives the agent and jobs priority over a bench on few cores."""


def prepare() -> None:
    """Lowers its own priority, imports JAX and opens the devices."""
    lower_priority(NICENESS)
    import jax

    jax.local_devices()


def describe(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns JAX's devices, in the order of `jax.devices()`."""
    import jax

    return {
        "platform": parse_platform(jax.default_backend()),
        "jax": jax.__version__,
        "jaxlib": read_version("jaxlib"),
        "libtpu": read_version("libtpu"),
        "process_index": jax.process_index(),
        "devices": [read_device(device) for device in jax.devices()],
    }


def read_device(device: Any) -> dict[str, Any]:
    """Returns the facts of one `jax.Device`. A field that the platform lacks is None."""
    from meshwright._jax_devices import describe_device

    described = describe_device(device)
    return {"kind": described.pop("device_kind"), **described}


def bench(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Runs the bench suite on a BenchRequest as JSON; returns a BenchResult as JSON."""
    from meshwright.wire.bench import BenchRequest
    from meshwright_agent.children.bench.suite import run_suite

    request = BenchRequest.model_validate(arguments)
    return run_suite(request, progress=context.progress, check=context.check).model_dump(mode="json")


if __name__ == "__main__":
    serve("device", prepare, {"describe": describe, "bench": bench})
