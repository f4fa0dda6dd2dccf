"""The agent: the one place where its parts are made and joined. Routes call its verbs, and its parts', by name.

Rule: this process touches no device and imports no jax; whatever may block runs in a child or in the store's thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from meshwright.errors import StoreUnavailableError
from meshwright.wire.devices import Release
from meshwright.wire.environment import Environment
from meshwright.wire.health import Acknowledgement, Component, Health
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.runs import Run
from meshwright_agent.access.audit import Openings
from meshwright_agent.access.doorkeeper import Doorkeeper
from meshwright_agent.answers.batch_sizes import BatchSizes
from meshwright_agent.answers.benches import Benches
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.evidence import Evidence
from meshwright_agent.answers.plans import PlanMaker
from meshwright_agent.answers.replies import PlanAnswer
from meshwright_agent.clock import BootClock, Clock, SystemClock, read_boot_clock
from meshwright_agent.health.board import HealthBoard, build_unknown_component
from meshwright_agent.health.history import History
from meshwright_agent.health.own import OwnHealth
from meshwright_agent.host.picture import HostPicture
from meshwright_agent.host.release import make_way, release_devices
from meshwright_agent.host.simulation import SimulatedHost
from meshwright_agent.host.watch import HostWatch
from meshwright_agent.job_environment import describe_job_environment
from meshwright_agent.labels import LabelFile, Sighting
from meshwright_agent.leasing.book import LeaseBook
from meshwright_agent.leasing.desk import LeaseDesk
from meshwright_agent.runs.queue import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from meshwright_agent.telemetry.durations import RELEASE_BOUNDS_S, Durations
from meshwright_agent.worker.children import (
    build_compiler_spec,
    build_device_spec,
    build_planner_spec,
    build_probe_spec,
    has_accelerators,
)
from meshwright_agent.worker.supervisor import Supervisor

log = logging.getLogger(__name__)

DRAIN_TIMEOUT_S: Final = 5.0
"""How long a shutdown waits for answers under way."""


class Agent:
    """Owns the children, the store and the queue of one host."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        boot: BootClock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.draining = False
        self.started_at = self.clock.now()
        self._environ = dict(os.environ if environ is None else environ)
        self.doorkeeper = Doorkeeper(settings, self.clock)
        self.history = History(clock=self.clock, keep=settings.keep_events, on_tick=self._settle_health)
        self.board = HealthBoard(
            stale_after_s=settings.stale_after_s, on_change=self.history.note_change, memory=self.history.memory
        )
        self._stays = stays = settings.cpu_devices is not None or not has_accelerators(settings)
        self._openings = Openings()
        self.device = Supervisor(
            build_device_spec(settings, self._environ, stays=stays),
            clock=self.clock,
            on_change=self._on_worker_change,
        )
        self.probe = Supervisor(build_probe_spec(settings, self._environ), clock=self.clock)
        self.planner = Supervisor(build_planner_spec(settings, self._environ), clock=self.clock)
        self.book = LeaseBook(
            self.clock, boot or read_boot_clock(settings.proc_root), on_change=lambda: self.picture.note_lease()
        )
        self.own_health = OwnHealth(
            store=lambda: self.store,
            board=self.board,
            settings=settings,
            clock=self.clock,
            on_writable=self._save_unsaved,
        )
        self.host: HostWatch | SimulatedHost = self._build_host(stays)
        self.picture = HostPicture(
            self.host,
            book=self.book,
            board=self.board,
            measured=lambda: self.benches.measurements.tell(self.clock.now()),
            clock=self.clock,
        )
        self.benches = self._build_benches()
        self.leases = self._build_leases()
        self.plans = PlanMaker(
            self.planner,
            store=lambda: self.store,
            here=self.picture.here,
            tell_here=self.picture.tell_here,
        )
        self.compiler = Supervisor(build_compiler_spec(settings, self._environ), clock=self.clock)
        self.compiles = Compiles(self.compiler, settings=settings, store=lambda: self.store)
        self._evidence = Evidence(self.compiles, self.plans, lambda: self.runs)
        self.batch_sizes = BatchSizes(self.plans, self._evidence, self.picture.topology)
        self._store: Store | None = None
        self._runs: RunQueue | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.releases = Durations(RELEASE_BOUNDS_S)
        self.count_connections: Callable[[], int] | None = None

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
            is_reserved=lambda: bool(self.book.active()),
            history=self.history,
            on_look=lambda: self.benches.note_look(),
        )

    def _build_benches(self) -> Benches:
        return Benches(
            self.device,
            self.host,
            devices=self.picture.devices,
            runs=lambda: self.runs,
            book=self.book,
            settings=self.settings,
            clock=self.clock,
            spawn=self._spawn,
        )

    def _build_leases(self) -> LeaseDesk:
        return LeaseDesk(
            self.book,
            store=lambda: self.store,
            devices=self.picture.devices,
            view=self.picture.view,
            find_runs=self.benches.find_in_the_way,
            make_way=self._make_way,
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
        """Opens the store, then starts looking at the host; returns before the first look has ended. May be repeated.

        Raises:
            StoreUnavailableError: the state directory cannot be used, or another agent uses it.
        """
        if self._store is not None:
            return
        self._store = await Store.open(
            self.settings.state_dir / ("meshwright.sqlite3" if self.settings.simulate is None else "simulated.sqlite3"),
            clock=self.clock,
            keep_runs=self.settings.keep_runs,
        )
        await self.history.open(self._store)
        if isinstance(self.host, HostWatch):
            self.host.recall()
        await self._store.finish_interrupted("the agent stopped while this run was under way")
        self._runs = RunQueue(self._store, self.benches.execute, clock=self.clock)
        await self._runs.start()
        await self.benches.recall(self._store)
        await self.leases.start()
        self.doorkeeper.start()
        self._spawn(self.doorkeeper.tell(self.board.report))
        self._spawn(self.host.run())
        if self.settings.label_file is not None:
            self._spawn(LabelFile(self.settings.label_file, self.settings, self.clock, self._see_labels).run())
        self._spawn(self.own_health.run())
        self._spawn(self.history.run())
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
        ending: list[Coroutine[Any, Any, Any]] = [self.plans.close(DRAIN_TIMEOUT_S / 4)]
        if self._runs:
            ending.append(self._runs.close("the agent is shutting down"))
        await asyncio.gather(*ending)

    async def close(self) -> None:
        """Drains, then ends the children and closes the store."""
        await self.drain()
        self.doorkeeper.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        children = (self.device, self.probe, self.planner, self.compiler)
        await asyncio.gather(*(child.close() for child in children))
        if self._store:
            await self.history.flush()
            await self._store.close()

    async def _save_unsaved(self) -> None:
        await self.runs.save_unsaved()

    def _on_worker_change(self) -> None:
        self._openings.note(self.device.view())
        self.watch.note_worker()
        self.picture.note_change()

    @property
    def store(self) -> Store:
        """The store.

        Raises:
            StoreUnavailableError: the agent has not started, or has stopped.
        """
        if self._store is None:
            raise StoreUnavailableError("the store is not open", hint="wait until GET /readyz answers 200")
        return self._store

    @property
    def runs(self) -> RunQueue:
        """The queue of runs.

        Raises:
            StoreUnavailableError: the agent has not started.
        """
        if self._runs is None:
            raise StoreUnavailableError("the queue of runs is not open", hint="wait until GET /readyz answers 200")
        return self._runs

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
            return False, f"starting: devices not seen yet, worker {self.device.state}"
        return True, self.host.readiness

    def health(self) -> Health:
        """Returns every component's state."""
        return self.board.view(self.clock.now())

    def _settle_health(self, now: datetime) -> None:
        self.board.settle(now)

    async def _forget_gone(self) -> None:
        """Forgets the states of components that are not here any more, when each that is has had its first look."""
        await asyncio.sleep(max(self.settings.stale_after_s, self.settings.start_timeout_s))
        self.board.forget_unlisted()

    def acknowledge(self, request: Acknowledgement, caller: str) -> Component:
        """Clears what stands against a component by an operator's word; returns how it stands then.

        Raises:
            ComponentNotFoundError: no component has this name.
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
        self.releases.observe((outcome if answer.released else "abandoned",), answer.took_s)
        return answer

    # ---- plans, and what jobs need to know ---------------------------------------------------------------------

    async def plan(self, request: PlanRequest | bytes, key: str | None = None) -> PlanAnswer | Run:
        """Returns plans; where the compiler is to be asked and has not said it before, the run that asks it.

        Args:
            request: the request, or its JSON.
            key: the caller's Idempotency-Key.

        Raises:
            ProblemError: see `PlanMaker.answer_body` and `Evidence.settle_plans`.
        """
        answering = self.plans.answer_body(request) if isinstance(request, bytes) else self.plans.answer(request)
        return await self._evidence.settle_plans(await answering, key)

    def environment(self, strategy: str, fraction: float | None) -> Environment:
        """Returns the variables that a job here should start with; InvalidRequestError as of the function."""
        return describe_job_environment(
            strategy,
            fraction,
            base=self._environ,
            platform=self.picture.topology().platform if self.host.knows_topology else None,
            cpu_devices=self.settings.cpu_devices,
        )
