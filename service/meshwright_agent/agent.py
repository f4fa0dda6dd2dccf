"""The agent: the one place where its parts are made and joined. Routes call its verbs, and its parts', by name.

Rule: this process touches no device and imports no jax; whatever may block runs in a child or in the store's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final

from meshwright.errors import StoreUnavailableError
from meshwright.wire.devices import Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Acknowledgement, Component, Health
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.runs import Run
from meshwright_agent.answers.benches import Benches, HostMeasurements
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.plans import PlanAnswer, PlanMaker
from meshwright_agent.clock import BootClock, Clock, SystemClock, read_boot_clock
from meshwright_agent.health.events import History
from meshwright_agent.health.monitor import StoreHealth
from meshwright_agent.health.registry import HealthRegistry, build_unknown_component
from meshwright_agent.host.picture import HostPicture
from meshwright_agent.host.release import make_way, release_devices
from meshwright_agent.host.simulation import SimulatedHost
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.job_environment import describe_job_environment
from meshwright_agent.labels import LabelFile, Sighting
from meshwright_agent.leases import LeaseRegistry, LeaseService
from meshwright_agent.metrics import RELEASE_DURATION
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store
from meshwright_agent.supervisor.specs import (
    build_device_spec,
    build_planner_spec,
    build_probe_spec,
    has_accelerators,
)
from meshwright_agent.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 5.0
"""How long a shutdown waits for answers under way."""


class Agent:
    """Owns the children and the queue of one host, and works on an open store; complete when constructed."""

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
        self.board = HealthRegistry(
            stale_after_s=settings.stale_after_s, on_change=self.history.note_change, memory=self.history.memory
        )
        self._stays = stays = settings.cpu_devices is not None or not has_accelerators(settings)
        self.device = Supervisor(
            build_device_spec(settings, self._environ, stays=stays), clock=self.clock, on_change=self._on_worker_change
        )
        self.probe = Supervisor(build_probe_spec(settings, self._environ), clock=self.clock)
        planner = build_planner_spec(settings, self._environ)
        self.planner = Supervisor(planner, clock=self.clock)
        self.large_planner = Supervisor(planner, clock=self.clock)
        self.registry = LeaseRegistry(self.clock, boot or read_boot_clock(settings.host_root))
        self.runs = RunQueue(store, clock=self.clock)
        self.own_health = StoreHealth(store, registry=self.board, settings=settings, clock=self.clock)
        self.host: HostWatch | SimulatedHost = self._build_host(stays)
        self.measurements = HostMeasurements()
        self.picture = HostPicture(
            self.host, registry=self.registry, board=self.board, measured=self.measurements.tell, clock=self.clock
        )
        self.benches = self._build_benches()
        self.leases = self._build_leases()
        planners = (self.planner, self.large_planner)
        self.plans = PlanMaker(*planners, store, here=self.picture.here, tell_here=self.picture.tell_here)
        self.compiles = Compiles(store, self.plans, self.runs, settings=settings, environ=self._environ)
        self.children = {"device": self.device, "probe": self.probe}
        self.children |= {"planner": self.planner, "large_planner": self.large_planner}
        self._has_started = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def _build_host(self, stays: bool) -> HostWatch | SimulatedHost:
        if self.settings.simulate is not None:
            return SimulatedHost(
                self.settings.simulate,
                board=self.board,
                interval_s=self.settings.probe_interval_s,
                clock=self.clock,
                view=self.device.view,
            )
        return HostWatch(
            probe=self.probe,
            device=self.device,
            board=self.board,
            settings=self.settings,
            clock=self.clock,
            stays=stays,
            is_reserved=lambda: bool(self.registry.active()),
            history=self.history,
        )

    def _build_benches(self) -> Benches:
        return Benches(
            self.device,
            self.host,
            devices=self.picture.devices,
            runs=self.runs,
            registry=self.registry,
            measurements=self.measurements,
            settings=self.settings,
            clock=self.clock,
            spawn=self._spawn,
        )

    def _build_leases(self) -> LeaseService:
        return LeaseService(
            self.registry,
            self.store,
            devices=self.picture.devices,
            view=self.picture.view,
            find_runs=self.benches.find_in_the_way,
            free=self._make_way,
            clock=self.clock,
            spawn=self._spawn,
        )

    async def _make_way(self, ids: Sequence[str], reason: str) -> tuple[str, ...]:
        """Ends these benches for a lease, and the worker where it has accelerators; simulated ones nobody has."""
        if self.is_simulated:
            return ()
        try:
            return await make_way(
                device=self.device, runs=self.runs, ids=ids, reason=reason, has_devices=not self._stays
            )
        finally:
            self.watch.note_worker()

    @property
    def watch(self) -> HostWatch:
        """The watch over this host's hardware; there is none in an agent that simulates."""
        assert isinstance(self.host, HostWatch), "require_hardware comes first"
        return self.host

    # ---- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads what is stored, then starts to observe the host; does not wait for the first look. May be repeated.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        if self._has_started:
            return
        self._has_started = True
        await self.history.recall()
        if isinstance(self.host, HostWatch):
            self.host.recall()
        await self.runs.finish_interrupted()
        await self.benches.recall()
        await self.leases.recall()
        self._spawn(self.leases.run())
        self._spawn(self.host.run())
        if self.settings.label_file is not None:
            self._spawn(LabelFile(self.settings.label_file, self.settings, self.clock, self._see_labels).run())
        self._spawn(self.own_health.run())
        self._spawn(self.history.run(self.board.settle))
        self._spawn(self._forget_gone())

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Takes no more work, and ends what is under way as cancelled; reads go on being answered."""
        if self.draining:
            return
        self.draining = True
        self.history.end_following()
        self.picture.note_change()
        await asyncio.gather(self.plans.close(DRAIN_TIMEOUT_S / 4), self.runs.close("the agent is shutting down"))

    async def close(self) -> None:
        """Drains, then ends the children; the store is closed by its owner."""
        await self.drain()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.compiles.close()
        await asyncio.gather(*(child.close() for child in self.children.values()))
        with contextlib.suppress(StoreUnavailableError):
            await self.history.flush()

    def _on_worker_change(self) -> None:
        self.watch.note_worker()
        self.picture.note_change()

    # ---- what is here ------------------------------------------------------------------------------------------

    @property
    def is_simulated(self) -> bool:
        """True when a target stands in the place of this host (--simulate)."""
        return isinstance(self.host, SimulatedHost)

    def readiness(self) -> tuple[bool, str]:
        """Returns whether plans can be answered, and why not in one short line."""
        if self.draining:
            return False, "draining: the agent is shutting down"
        if self.device.state == "failed":
            return False, f"worker failed: {self.device.last_error}"[:200]
        if not self.host.knows_topology and self.host.failure:
            return False, f"worker does not start: {self.host.failure}"[:200]
        if not self.host.knows_topology:
            return False, f"starting since {self.started_at:%H:%M:%S} UTC: {self.host.waits_for}"
        return True, self.host.readiness

    def health(self) -> Health:
        """Returns every component's state."""
        return self.board.view(self.clock.now())

    async def _forget_gone(self) -> None:
        """Forgets the states of components that are not here any more, when each that is has had its first look."""
        await asyncio.sleep(max(self.settings.stale_after_s, self.settings.start_timeout_s))
        self.board.forget_unlisted()

    def acknowledge(self, request: Acknowledgement, caller: str) -> Component:
        """Clears what stands against a component by an operator's word; returns how it stands then.

        Raises:
            NotFoundError: no component has this name.
        """
        name, now = request.component, self.clock.now()
        if name not in self.board.names():
            raise build_unknown_component(name, self.board.names())
        if isinstance(self.host, HostWatch):
            self.host.acknowledge(name)
        else:
            self.board.clear_faults(name, now)
        reason = f"{request.reason} (by {caller})" if caller else request.reason
        self.history.note_acknowledged(name, state=self.board.state(name, now), reason=reason, at=now)
        if name not in self.board.names():
            return Component(name=name, state="unknown", reason="is not expected here any more")
        return self.board.component(name, now)

    def _see_labels(self) -> Sighting | None:
        if not self.host.knows_topology:
            return None
        return Sighting(self.picture.devices(), self.health(), self.benches.newest_records())

    async def release(self) -> Release:
        """Gives the devices back: ends the worker and what it does, then says who still holds one. Bounded.

        Of simulated devices nothing is held, so that a scheduler under test goes on.
        """
        if self.is_simulated:
            return Release(released=True, took_s=0.0, killed=False, worker=self.device.view())
        self.watch.note_release()
        answer = await release_devices(
            device=self.device,
            probe=self.probe,
            runs=self.runs,
            settings=self.settings,
            clock=self.clock,
            spawn=self._spawn,
        )
        self.watch.note_release()
        outcome = "killed" if answer.killed else "released"
        RELEASE_DURATION.labels(outcome if answer.released else "abandoned").observe(answer.took_s)
        return answer

    # ---- plans, and what jobs need to know ---------------------------------------------------------------------

    async def plan(self, request: PlanRequest) -> PlanAnswer | Run:
        """Returns plans; where the compiler is to be asked and has not said it before, the run that asks it.

        Raises:
            ProblemError: see `PlanMaker.answer` and `Compiles.settle_plans`.
        """
        return await self.compiles.settle_plans(await self.plans.answer(request))

    def environment(self, strategy: str, fraction: float | None) -> Environment:
        """Returns the variables that a job here should start with; InvalidRequestError as of the function."""
        return describe_job_environment(
            strategy,
            fraction,
            base=self._environ,
            platform=self.picture.topology().platform if self.host.knows_topology else None,
            cpu_devices=self.settings.cpu_devices,
        )
