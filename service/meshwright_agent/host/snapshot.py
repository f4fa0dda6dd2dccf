"""The snapshot of a host: what the probe read and what JAX listed, each with its time; immutable, replaced as a whole.

`View` dates it: each fact has the evidence of its source, and its age at a given time. Pure; knows no platform.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, get_args

from meshwright.errors import NotReadyError, ProblemError, WorkerFailedError
from meshwright.wire.base import Basis, Notice
from meshwright.wire.devices import Device, Devices, JaxView, Link, Platform, Worker
from meshwright_agent.facts.model import CpuFacts, HostFacts, MachineFacts

LOG_LINES: Final = 60
"""Of a worker that cannot start: a crash dump is some 40 lines long, and its cause stands before it."""
_JAX_FIELDS: Final = frozenset(JaxView.model_fields) - {"basis", "observed_at", "age_s", "generation"}


@dataclass(frozen=True)
class JaxReport:
    """What the device worker's `describe` answered.

    Attributes:
        view: its result: "platform", versions, "process_index", and "devices" in `jax.devices()`'s order.
        generation: of the worker that answered.
    """

    view: Mapping[str, Any]
    observed_at: datetime
    generation: int = 1

    @property
    def platform(self) -> str:
        """What JAX runs on."""
        return str(self.view["platform"])

    @property
    def devices(self) -> tuple[Mapping[str, Any], ...]:
        """The devices of this host, in JAX's order; a job of several hosts would see others as well."""
        own = self.view.get("process_index", 0)
        return tuple(device for device in self.view["devices"] if device.get("process_index", 0) == own)


@dataclass(frozen=True, eq=False)
class HostSnapshot:
    """What is known of a host at one moment. Equal only to itself, so that it can be the key of what is made of it.

    Attributes:
        worker: the device worker's state.
        log: the last lines that it wrote.
        facts, facts_at: what the probe read, and when it was asked; None: it has not answered yet.
        jax: what JAX listed last; None: it has not been asked in this life of the agent.
        failure: why JAX did not answer when it was last asked; None: it did, or was not asked.
        released: the worker was let go on purpose.
        cpu_devices: the agent runs on that many CPU devices, whatever else is here.
        declared: the target that stands for this host (--simulate); nothing else is known then.
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

    @property
    def knows_topology(self) -> bool:
        """True once JAX or a driver has reported which devices are here."""
        facts = self.facts
        return bool(self.declared or self.jax or (facts and (facts.gpus or facts.tpus)))

    @property
    def jax_basis(self) -> Basis:
        """The basis of what JAX listed: "live" while the worker that answered is up, else "cached"."""
        is_up = self.jax is not None and self.worker.state in {"ready", "busy"}
        return "live" if is_up and self.jax and self.worker.generation == self.jax.generation else "cached"

    @property
    def waits_for(self) -> str:
        """What must answer before the devices are known, in a few words."""
        if self.facts is None:
            return "the driver has not answered the probe yet"
        return f"JAX has not listed the devices yet, worker {self.worker.state}"

    def devices(self, now: datetime) -> Devices:
        """Returns the host's topology as known at `now`."""
        from meshwright_agent.host.topology import build_devices  # which is built on this module

        return self.declared or build_devices(self, now)

    @cached_property
    def mismatch(self) -> str:
        """How JAX is not on this host's devices: it runs on the CPU of a host with accelerators; else empty."""
        if self.jax is None:
            return ""
        devices = self.devices(self.jax.observed_at)
        if self.jax.platform == devices.platform:
            return ""
        there = f"this host has {len(devices.devices)} {devices.platform} devices"
        return f"{there}, but its JAX runs on {self.jax.platform}"

    def require_facts(self) -> None:
        """Raises as `require_topology` does unless `/devices` can be answered."""
        if self.facts is None:
            self.require_topology()

    def require_topology(self) -> None:
        """Checks that plans can be answered.

        Raises:
            WorkerFailedError: the worker cannot start; with the last lines of its log.
            NotReadyError: neither the probe nor JAX has listed devices yet.
        """
        if self.knows_topology:
            return
        if self.failure is not None or self.worker.state in {"failed", "backoff"}:
            cause = self.worker.last_error or (self.failure and first_line(self.failure))
            log = self.log or (self.failure.log if self.failure else ())
            hint = "run `meshwright-agent doctor` on the host; GET /health tells the state"
            detail = f"no device is known: JAX does not start: {cause}"
            raise WorkerFailedError(detail, hint=hint, log=log[-LOG_LINES:])
        detail, hint = "the agent is still looking at its devices", "wait until GET /readyz answers 200"
        raise NotReadyError(detail, hint=hint, retry_after_s=1.0)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its class."""
    return (str(error) or type(error).__name__).splitlines()[0]


class View:
    """A snapshot at a time: its facts, with the fields of `Evidence` that each source gives.

    Attributes:
        facts: empty before the probe has answered.
        jax: None where JAX has not answered, or runs on a platform that the wire does not have.
        passive: the evidence of what the probe read; by_jax: of what JAX listed, or else is only declared.
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
        """Returns the fields of `Evidence` for something observed at a time."""
        return {"basis": basis, "observed_at": at, "age_s": max(0.0, (self._now - at).total_seconds())}

    def list_jax(self, platform: Platform) -> tuple[Mapping[str, Any], ...]:
        """Returns JAX's devices of this host, if it runs on this platform."""
        return self.jax.devices if self.jax and self.jax.platform == platform else ()

    def build_device(self, platform: Platform, index: int, jax: Mapping[str, Any] | None, **fields: Any) -> Device:
        """Returns a device with what JAX says of it, if it does, and these fields."""
        process_index = jax.get("process_index") if jax else None
        known = {"host": self.host, "local_index": index, "position": index, "platform": platform}
        return Device(**known, process_index=process_index, jax=self._build_jax_view(jax), **fields)

    def _build_jax_view(self, device: Mapping[str, Any] | None) -> JaxView | None:
        """Returns one of JAX's devices with its evidence; None of None."""
        if device is None or self.jax is None:
            return None
        fields = {name: value for name, value in device.items() if name in _JAX_FIELDS and value is not None}
        return JaxView(**fields, generation=self.jax.generation, **self.by_jax)


@dataclass(frozen=True)
class PlatformDevices:
    """The devices of one platform; links name places in `devices`."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    warnings: tuple[Notice, ...] = ()


def read_limit(device: Mapping[str, Any] | None) -> int | None:
    """Returns what JAX's allocator may take, in bytes; None where it does not say."""
    return ((device or {}).get("memory_stats") or {}).get("bytes_limit")
