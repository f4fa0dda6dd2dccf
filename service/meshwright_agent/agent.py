"""The agent: builds and connects its parts. Routes call the methods of the agent and of its parts.

Rule: this process does not open devices and does not import jax. Blocking work runs in a child or in the store's
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from meshwright.environment import DeviceConfiguration, MemoryStrategy, build_environment
from meshwright.errors import InvalidRequestError, MeshwrightError
from meshwright.wire.devices import Environment
from meshwright.wire.health import Acknowledgement, Component
from meshwright.wire.mesh import PlanRequest, SearchRequest
from meshwright.wire.runs import Run
from meshwright_agent.answers.benches import Benches
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.plans import PlanAnswer, PlanMaker
from meshwright_agent.answers.preflights import Preflights
from meshwright_agent.clock import BootClock, Clock, SystemClock, read_boot_clock
from meshwright_agent.health.events import History
from meshwright_agent.health.monitor import StoreHealth
from meshwright_agent.health.registry import HealthRegistry, build_unknown_component
from meshwright_agent.host.base import AgentHost
from meshwright_agent.host.simulation import SimulatedHost
from meshwright_agent.host.snapshot import first_line
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.labels import keep_labels
from meshwright_agent.leases import LeaseRegistry, LeaseService
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store, StoreUnavailableError
from meshwright_agent.supervisor.specs import (
    build_device_spec,
    build_planner_spec,
    build_preflight_spec,
    build_probe_spec,
    has_accelerators,
)
from meshwright_agent.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 5.0
"""How long a shutdown waits for requests in progress."""


class Agent:
    """Owns the children and the queue of one host, and uses an open store. It is complete when constructed."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        clock: Clock | None = None,
        boot: BootClock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock or SystemClock()
        self.draining = False
        self.started_at = self.clock.now()
        self._environ = dict(os.environ if environ is None else environ)
        self.history = History(store, clock=self.clock)
        self.health = HealthRegistry(
            stale_after_s=settings.stale_after_s, on_change=self.history.record_change, memory=self.history.memory
        )
        self._stays = settings.cpu_devices is not None or not has_accelerators(settings)
        device = build_device_spec(settings, self._environ, stays=self._stays)
        planner = build_planner_spec(settings, self._environ)
        self.device = Supervisor(device, clock=self.clock)
        self.probe = Supervisor(build_probe_spec(settings, self._environ), clock=self.clock)
        self.planner = Supervisor(planner, clock=self.clock)
        self.large_planner = Supervisor(planner, clock=self.clock)
        preflight = build_preflight_spec(settings, self._environ, is_cpu=self._stays)
        self.preflight = Supervisor(preflight, clock=self.clock)
        self.device.neighbor, self.preflight.neighbor = self.preflight, self.device
        self.children = {"device": self.device, "probe": self.probe, "preflight": self.preflight}
        self.children |= {"planner": self.planner, "large_planner": self.large_planner}
        self.registry = LeaseRegistry(boot or read_boot_clock(settings.host_root))
        self.runs = RunQueue(store, clock=self.clock)
        self.host = self._build_host()
        self.benches = Benches(
            self.device, self.host, runs=self.runs, registry=self.registry, clock=self.clock, spawn=self._spawn
        )
        self.preflights = Preflights(
            self.preflight, self.device, self.host, runs=self.runs, registry=self.registry, clock=self.clock
        )
        self.leases = LeaseService(
            self.registry,
            store,
            devices=self.host.devices,
            here=self.host.here,
            find_runs=self.benches.find_in_the_way,
            free=self.host.preempt,
            spawn=self._spawn,
        )
        self.plans = PlanMaker(self.planner, self.large_planner, store, self.host, self.benches.measurements)
        self.compiles = Compiles(store, self.plans, self.runs, settings=settings, environ=self._environ)
        self.store_health = StoreHealth(store, registry=self.health, settings=settings, clock=self.clock)
        self._tasks: set[asyncio.Task[Any]] = set()

    def _build_host(self) -> AgentHost:
        settings, clock = self.settings, self.clock
        if settings.simulate is not None:
            return SimulatedHost(
                settings.simulate,
                self.device,
                leases=self.registry,
                health=self.health,
                interval_s=settings.probe_interval_s,
                clock=clock,
            )
        return HostWatch(
            probe=self.probe,
            device=self.device,
            preflight=self.preflight,
            runs=self.runs,
            leases=self.registry,
            health=self.health,
            history=self.history,
            settings=settings,
            clock=clock,
            spawn=self._spawn,
            stays=self._stays,
        )

    # ---- life cycle ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the stored state, then starts to observe the host without waiting for the first probe.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        await self.history.recall()
        self.host.recall()
        await self.runs.finish_interrupted()
        await self.benches.recall()
        await self.preflights.recall()
        await self.leases.recall()
        self._spawn(self.leases.run())
        self._spawn(self.host.run())
        if self.settings.label_file is not None:
            around = self.settings, self.clock, self.host, self.health, self.benches
            self._spawn(keep_labels(self.settings.label_file, *around))
        self._spawn(self.store_health.run())
        self._spawn(self.history.run(self.health.settle))
        self._spawn(self._forget_gone())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MeshwrightError):  # that is an answer
            log.error("%s failed", task.get_coro(), exc_info=error)

    async def drain(self) -> None:
        """Accepts no more work and cancels the work in progress. Reads are still answered."""
        if self.draining:
            return
        self.draining = True
        self.history.end_following()
        await asyncio.gather(self.plans.close(DRAIN_TIMEOUT_S / 4), self.runs.close("the agent is shutting down"))

    async def close(self) -> None:
        """Drains, then ends the children. The owner of the store closes the store."""
        await self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.compiles.close()
        await asyncio.gather(*(child.close() for child in self.children.values()))
        with contextlib.suppress(StoreUnavailableError):
            await self.history.flush()

    # ---- this host ---------------------------------------------------------------------------------------------

    def readiness(self) -> tuple[bool, str]:
        """Returns whether the devices are known, the worker works and the agent goes on, and a line with the reason."""
        known = self.host.snapshot
        if self.draining:
            return False, "draining: the agent is shutting down"
        if self.device.state == "failed":
            return False, f"worker failed: {self.device.last_error}"[:200]
        if known.knows_topology:
            return True, self.host.readiness
        if known.failure is not None:
            return False, f"worker does not start: {self.device.last_error or first_line(known.failure)}"[:200]
        waits_for = f"JAX has not listed the devices yet, worker {known.worker.state}"
        if known.facts is None:
            waits_for = "the driver has not answered the probe yet"
        return False, f"starting since {self.started_at:%H:%M:%S} UTC: {waits_for}"

    async def _forget_gone(self) -> None:
        """Forgets the states of removed components, after every present component has been checked once."""
        await asyncio.sleep(max(self.settings.stale_after_s, self.settings.start_timeout_s))
        self.health.forget_unlisted()

    def acknowledge(self, request: Acknowledgement, caller: str) -> Component:
        """Clears the faults of a component after an operator's acknowledgement; returns the component.

        Raises:
            NotFoundError: no component has this name.
        """
        name, now = request.component, self.clock.now()
        if name not in self.health.names():
            raise build_unknown_component(name, self.health.names())
        self.host.acknowledge(name)
        reason = f"{request.reason} (by {caller})" if caller else request.reason
        self.history.record_acknowledged(name, state=self.health.state(name, now), reason=reason, at=now)
        if name not in self.health.names():
            return Component(name=name, state="unknown", reason="is not expected here any more")
        return self.health.component(name, now)

    # ---- plans and the environment of jobs ---------------------------------------------------------------------

    async def plan(self, request: PlanRequest | SearchRequest) -> PlanAnswer | Run:
        """Returns plans, or the run that compiles them if the request needs a compile that is not stored.

        Raises:
            NotFoundError: the job's lease on this host has ended, or never was; the detail says why it ended.
            ProblemError: see `PlanMaker.answer` and `Compiles.settle_plans`.
        """
        if request.lease is not None and not request.targets and request.topology is None:
            await self.leases.get(request.lease)
        return await self.compiles.settle_plans(await self.plans.answer(request))

    def environment(self, strategy: str, fraction: float | None) -> Environment:
        """Returns the environment variables for a job on this host, also as `export` lines.

        The library would set the same variables in the job's own process (`meshwright.environment`).

        Args:
            strategy: a MemoryStrategy's value.
            fraction: the share of device memory, in (0, 1]; overrides the strategy's.

        Raises:
            InvalidRequestError: the strategy needs a fraction.
        """
        platform = self.host.topology().platform if self.host.snapshot.knows_topology else None
        try:
            config = DeviceConfiguration(memory_strategy=MemoryStrategy(strategy), memory_fraction=fraction)
            variables = build_environment(config, self._environ, platform=platform)
        except ValueError as error:
            hint = "custom needs a memory_fraction in (0, 1]: ?memory_strategy=custom&memory_fraction=0.8"
            raise InvalidRequestError.of("memory_fraction", str(error), hint) from error
        if self.settings.cpu_devices:
            variables |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(self.settings.cpu_devices)}
        return Environment(memory_fraction=config.resolve_memory_fraction(), variables=variables)
