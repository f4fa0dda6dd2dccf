"""The device worker: owns JAX on this host's devices. `python -m meshwright_agent.children.device`, a child.

Rule: JAX is imported, and the devices are taken, before hello; from then on they are held until the process
ends. What the environment says (platform, memory, virtual devices) was decided by the agent. The only module
of this room that knows jax.
"""

from __future__ import annotations

from typing import Any, Final

from meshwright.compiling.compilers import read_versions
from meshwright.compiling.worker import lower_priority
from meshwright.wire.devices import parse_platform
from meshwright_agent.children.child import CallContext, serve

KIND: Final = "device"

NICENESS: Final = 5
"""So that where cores are few, the agent answers, and jobs run, before a bench goes on."""


def prepare() -> None:
    """Lets others go first, imports JAX and takes the devices."""
    lower_priority(NICENESS)
    import jax

    jax.local_devices()


def describe(_arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Returns the devices as JAX shows them, in the order of `jax.devices()`, with `JaxView`'s fields."""
    import jax

    versions = read_versions("tpu")
    return {
        "platform": parse_platform(jax.default_backend()),
        "jax": jax.__version__,
        "jaxlib": versions.get("jaxlib"),
        "libtpu": versions.get("libtpu"),
        "process_index": jax.process_index(),
        "process_count": jax.process_count(),
        "devices": [
            {"position": position, "generation": context.generation, **read_device(device)}
            for position, device in enumerate(jax.devices())
        ],
    }


def read_device(device: Any) -> dict[str, Any]:
    """Returns one `jax.Device` with `JaxView`'s fields; what this platform's devices do not have is None."""
    from meshwright._jax_devices import describe_device

    described = describe_device(device)
    return {"kind": described.pop("device_kind"), **described}


def bench(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Runs the bench suite: a BenchRequest as JSON in, a BenchResult as JSON out."""
    from meshwright.wire.bench import BenchRequest
    from meshwright_agent.children.bench.suite import run_suite

    request = BenchRequest.model_validate(arguments)
    return run_suite(request, progress=context.progress, check=context.check).model_dump(mode="json")


if __name__ == "__main__":
    serve(KIND, prepare, {"describe": describe, "bench": bench})
