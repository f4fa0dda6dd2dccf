"""The snapshot of a host: the probe's facts and JAX's devices, each with its time; immutable, replaced as a whole.

`View` dates it: each fact has the evidence of its source, and its age at a given time. Pure, and independent of the
platform.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, get_args

from meshwright.errors import ProblemError, UnavailableError
from meshwright.wire.base import Basis, Notice
from meshwright.wire.devices import Device, Devices, Link, MeasuredNetwork, Platform, Worker
from meshwright_agent.facts.model import CpuFacts, HostFacts, MachineFacts

LOG_LINES: Final = 60
"""Log lines of a worker that cannot start: a crash dump has about 40 lines, with its cause before it."""


@dataclass(frozen=True)
class JaxReport:
    """The answer of the device worker's `describe`.

    Attributes:
        view: the result: "platform", versions, "process_index", and "devices" in `jax.devices()`'s order.
    """

    view: Mapping[str, Any]
    observed_at: datetime
    generation: int = 1

    @property
    def platform(self) -> str:
        """JAX's platform."""
        return str(self.view["platform"])

    @property
    def devices(self) -> tuple[Mapping[str, Any], ...]:
        """The devices of this host, in JAX's order, without devices of other hosts in the job."""
        own = self.view.get("process_index", 0)
        return tuple(device for device in self.view["devices"] if device.get("process_index", 0) == own)


@dataclass(frozen=True, eq=False)
class HostSnapshot:
    """The facts known of a host at one time. Equal only to itself, so that it can be a cache key.

    Attributes:
        log: the last lines that it wrote.
        facts, facts_at: the probe's facts, and the time of its call; None: it has not answered yet.
        jax: JAX's last list of devices; None: JAX was not called since the agent started.
        failure: why the last call to JAX failed; None after a success or without a call.
        released: the worker was released on purpose.
        cpu_devices: number of CPU devices that the agent uses, regardless of other devices.
        declared: the target that replaces this host (--simulate); then no other facts are known.
        network: between hosts, as the last preflight measured it.
    """

    worker: Worker
    log: tuple[str, ...] = ()
    facts: HostFacts | None = None
    facts_at: datetime | None = None
    jax: JaxReport | None = None
    failure: ProblemError | None = None
    released: bool = False
    cpu_devices: int | None = None
    declared: Devices | None = None
    network: MeasuredNetwork | None = None

    @property
    def knows_topology(self) -> bool:
        """True once JAX or a driver has reported the devices of this host."""
        facts = self.facts
        return bool(self.declared or self.jax or (facts and (facts.gpus or facts.tpus)))

    @property
    def jax_basis(self) -> Basis:
        """The basis of what JAX listed: "live" while the worker that answered is up, else "cached"."""
        is_up = self.jax is not None and self.worker.state in {"ready", "busy"}
        return "live" if is_up and self.jax and self.worker.generation == self.jax.generation else "cached"

    def devices(self, now: datetime) -> Devices:
        """Returns the host's topology as known at `now`."""
        from meshwright_agent.host.topology import build_devices  # it imports this module

        return self.declared or build_devices(self, now)

    @cached_property
    def mismatch(self) -> str:
        """The mismatch of JAX and this host: JAX runs on the CPU of a host with accelerators; else empty."""
        if self.jax is None:
            return ""
        devices = self.devices(self.jax.observed_at)
        there = f"this host has {len(devices.devices)} {devices.platform} devices"
        if self.jax.platform == devices.platform:
            if self.jax.platform != "cpu" or self.cpu_devices or self.facts is None:
                return ""
            if any(problem.kind == "driver_down" for problem in self.facts.problems):
                there = "this host has NVIDIA cards, whose driver does not answer"
            elif self.facts.kfd is None:
                return ""
            else:
                there = "this host has AMD's driver (/dev/kfd)"
        return f"{there}, but its JAX runs on {self.jax.platform}"

    def require_topology(self) -> None:
        """Raises unless plans can be answered.

        Raises:
            UnavailableError: the worker cannot start. The error has the last lines of its log.
            UnavailableError: neither the probe nor JAX has listed devices yet.
        """
        if self.knows_topology:
            return
        if self.failure is not None or self.worker.state in {"failed", "backoff"}:
            cause = self.worker.last_error or (self.failure and first_line(self.failure))
            log = self.log or (self.failure.log if self.failure else ())
            hint = "run `meshwright-agent doctor` on the host; GET /health tells the state"
            detail = f"no device is known: JAX does not start: {cause}"
            raise UnavailableError(detail, hint=hint, log=log[-LOG_LINES:], code="worker_failed")
        detail, hint = "the agent is still looking at its devices", "wait until GET /readyz answers 200"
        raise UnavailableError(detail, hint=hint, retry_after_s=1.0)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its class."""
    return (str(error) or type(error).__name__).splitlines()[0]


class View:
    """A snapshot at a time: its facts, with the fields of `Evidence` that each source gives.

    Attributes:
        facts: empty before the probe has answered.
        jax: None if JAX has not answered, or runs on a platform that the API does not have.
        passive: evidence of the probe's facts; by_jax: evidence of JAX's facts, or of declared facts.
    """

    def __init__(self, snapshot: HostSnapshot, now: datetime) -> None:
        self.snapshot = snapshot
        self.facts = snapshot.facts or HostFacts(MachineFacts(platform.node()), CpuFacts())
        self.host = self.facts.machine.name or "localhost"
        jax = snapshot.jax
        self.jax = jax if jax is not None and jax.platform in get_args(Platform) else None
        self._now = now
        self.declared = self.stamp("declared", now)
        self.passive = self.stamp("passive", snapshot.facts_at or now)
        self.by_jax = self.stamp(snapshot.jax_basis, self.jax.observed_at) if self.jax else self.declared

    def stamp(self, basis: Basis, at: datetime) -> dict[str, Any]:
        """Returns the fields of `Evidence` for an observation at a time."""
        return {"basis": basis, "observed_at": at, "age_s": max(0.0, (self._now - at).total_seconds())}

    def list_jax(self, platform: Platform) -> tuple[Mapping[str, Any], ...]:
        """Returns JAX's devices of this host, if it runs on this platform."""
        return self.jax.devices if self.jax and self.jax.platform == platform else ()

    def build_device(self, platform: Platform, index: int, jax: Mapping[str, Any] | None, **fields: Any) -> Device:
        """Returns a device with these fields and with JAX's facts, if JAX lists it."""
        process_index = jax.get("process_index") if jax else None
        known = {"host": self.host, "local_index": index, "position": index, "platform": platform}
        return Device(**known, process_index=process_index, jax_id=jax["id"] if jax else None, **fields)


@dataclass(frozen=True)
class PlatformDevices:
    """The devices of one platform. Links contain indices into `devices`."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    warnings: tuple[Notice, ...] = ()


def read_limit(device: Mapping[str, Any] | None) -> int | None:
    """Returns the limit of JAX's allocator in bytes; None if not reported."""
    return ((device or {}).get("memory_stats") or {}).get("bytes_limit")
