"""The device worker: owns JAX on this host's devices. `python -m meshwright_agent.worker.device`, a child.

Rule: JAX is imported, and the devices are taken, before hello; from then on they are held until the process
ends. What the environment says (platform, memory, virtual devices) was decided by the agent. The only module
of this room that knows jax.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable
from typing import Any, Final

from meshwright.compiling.limits import give_way
from meshwright.wire.devices import parse_platform
from meshwright_agent.worker.child import CallContext, serve
from meshwright_agent.worker.cores import leave_a_core, tell_cores

KIND: Final = "device"

NICENESS: Final = 5
"""So that where cores are few, the agent answers, and jobs run, before a bench goes on."""
PULSE_S: Final = 10.0
"""Well below the age at which the agent calls a health check stale."""


def read_hello() -> dict[str, Any]:
    """Returns versions, platform and device count; imports JAX and takes the devices."""
    give_way(NICENESS)
    import jax

    devices = jax.local_devices()
    return {
        "jax": jax.__version__,
        "jaxlib": read_version("jaxlib"),
        "platform": parse_platform(devices[0].platform),
        "device_count": len(devices),
    }


def read_version(distribution: str) -> str | None:
    """Returns the installed version of a distribution; None when it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe(_arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Returns the devices as JAX shows them, in the order of `jax.devices()`, with `JaxView`'s fields."""
    import jax

    return {
        "platform": parse_platform(jax.default_backend()),
        "jax": jax.__version__,
        "jaxlib": read_version("jaxlib"),
        "libtpu": read_version("libtpu"),
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
    from meshwright_agent.bench.suite import run_suite

    request = BenchRequest.model_validate(arguments)
    pulse = Pulse(context.progress, context.check)
    with leave_a_core() as left:
        result = run_suite(request, progress=pulse.progress, check=pulse.check)
    notices = tell_cores(left, parse_platform(result.platform))
    return result.model_copy(update={"warnings": result.warnings + notices}).model_dump(mode="json")


class Pulse:
    """Repeats the last progress every `PULSE_S` of a long case, between two samples: the worker's sign of life."""

    def __init__(
        self,
        progress: Callable[[dict[str, Any]], None],
        check: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._check = check
        self._clock = clock
        self._last: dict[str, Any] = {}
        self._told_s = clock()

    def progress(self, value: dict[str, Any]) -> None:
        """Tells something new."""
        self._progress(value)
        self._told_s = self._clock()
        if "record" not in value:
            self._last = value

    def check(self) -> None:
        """Ends the bench if it was cancelled; tells again what is under way if it was silent for long."""
        self._check()
        if self._last and self._clock() - self._told_s >= PULSE_S:
            self.progress(self._last)


if __name__ == "__main__":
    serve(KIND, read_hello, {"describe": describe, "bench": bench})
