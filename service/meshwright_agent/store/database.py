"""The store: what must survive a restart of the agent, behind async verbs.

Rule: every verb is one job (`jobs`): what belongs together is written together or not at all, and whatever the disk
does, the caller gets an answer or a StoreUnavailableError in time. Knows rows and wire models; nothing of threads,
queues, workers or routes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from meshwright.wire.bench import BenchRecord, LatestBench
from meshwright.wire.health import HealthEvent
from meshwright.wire.runs import FINAL_STATES, Run, RunEvent, RunKind, RunState
from meshwright_agent.clock import Clock
from meshwright_agent.packing import unpack
from meshwright_agent.store import events as event_rows
from meshwright_agent.store import health_events, idempotency, leases, plans, records, verifications
from meshwright_agent.store import runs as run_rows
from meshwright_agent.store.health_events import StoredHealth
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.jobs import Jobs
from meshwright_agent.store.leases import StoredLease
from meshwright_agent.store.plans import PlanCache
from meshwright_agent.store.unreadable import UnreadableRows
from meshwright_agent.telemetry.durations import Durations

TIMEOUT_S: Final = 10.0
OPEN_TIMEOUT_S: Final = 100.0
"""What reads the whole file at the start, which may have 3 GB. Less than TimeoutStartSec of systemd's unit."""
KEEP_RUNS: Final = 1000
KEEP_PLANS: Final = 10_000
KEEP_RECORDS: Final = 10_000
KEEP_VERIFICATIONS: Final = 10_000
"""Some KB each: collectives by axis, not by device."""


class Store:
    """One open database. Make it with `Store.open`.

    Attributes:
        path: the file.
    """

    def __init__(
        self,
        jobs: Jobs,
        *,
        clock: Clock,
        keep_runs: int,
    ) -> None:
        self.path = jobs.path
        self._jobs = jobs
        self._clock = clock
        self._keep_runs = keep_runs
        self._plan_cache = PlanCache(KEEP_PLANS)
        self._unreadable = UnreadableRows()

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        keep_runs: int = KEEP_RUNS,
        timeout_s: float = TIMEOUT_S,
    ) -> Store:
        """Returns the store in `path`, made or brought to the newest schema; a damaged file is set aside.

        Args:
            path: the file; its directory is made (mode 0700) if it is not there.
            clock: dates what is set aside, and ages records.
            keep_runs: finished runs that are kept.
            timeout_s: how long each verb may wait for the disk.

        Raises:
            StoreUnavailableError: another agent owns the file, a newer one wrote it, or it cannot be written.
        """
        jobs = Jobs(path, clock=clock, timeout_s=timeout_s)
        store = cls(jobs, clock=clock, keep_runs=keep_runs)
        await jobs.open(timeout_s=OPEN_TIMEOUT_S)
        return store

    @property
    def set_aside(self) -> Path | None:
        """Where a damaged file was moved when the store was opened; None if it was sound."""
        return self._jobs.set_aside

    @property
    def failure_count(self) -> int:
        """Verbs that failed, or were not done in time."""
        return self._jobs.failure_count

    @property
    def writes(self) -> Durations:
        """How long transactions took in the thread, `written` or `failed`; also those that nobody waits for now."""
        return self._jobs.writes

    @property
    def size_bytes(self) -> int | None:
        """Of the file and its log on the disk, at the last `check`; None before the first."""
        return self._jobs.size_bytes

    @property
    def unreadable(self) -> Mapping[str, tuple[str, ...]]:
        """The rows that were passed over since the store was opened, by table: they cannot be read."""
        return self._unreadable.names

    def note_forgotten(self, table: str, reason: str, *, name: str = "1") -> None:
        """Counts a document that whoever it is for cannot read and begins anew: a table's one, or the one named."""
        self._unreadable.note(table, name, reason)

    async def close(self) -> None:
        """Ends what waits, closes the file and lets another agent have it. May be called again."""
        await self._jobs.close()

    async def check(self, *, writes: bool = True) -> None:
        """Proves that the store works: writes something new and reads it back, in the file that `path` names.

        Args:
            writes: False: only reads what was written last. A write costs a flash disk some 12 KiB.

        Raises:
            StoreUnavailableError: it does not.
        """
        await self._jobs.check(writes=writes)

    # ---- runs ------------------------------------------------------------------------------------------

    async def save_run(self, run: Run, *, events: Sequence[RunEvent] = (), key: KeyUse | None = None) -> None:
        """Writes a run's newest state with its new events, the records among them, and its idempotency key.

        Raises:
            StoreUnavailableError: nothing of it was written, or the disk has not answered in time.
            ValidationError: an event's record is no BenchRecord.
        """
        found = [BenchRecord.model_validate(event.record) for event in events if event.record is not None]

        def job(connection: sqlite3.Connection) -> None:
            run_rows.save_run(connection, run)
            event_rows.append_events(connection, events)
            for record in found:
                records.save_record(connection, run.id, record)
            if key is not None:
                idempotency.remember_key(connection, key, run.id)
            if run.state in FINAL_STATES:
                run_rows.prune_runs(connection, self._keep_runs)
                records.prune_records(connection, KEEP_RECORDS)

        await self._jobs.write(job)

    async def get_run(self, run_id: str) -> Run | None:
        """Returns a run, None if there is none."""
        return await self._jobs.read(lambda connection: run_rows.get_run(connection, run_id, self._unreadable))

    async def list_runs(self, *, limit: int, state: RunState | None = None) -> tuple[Run, ...]:
        """Returns at most `limit` runs, newest first, of one state if given; without their results."""
        unreadable = self._unreadable
        return await self._jobs.read_many(lambda connection: run_rows.list_runs(connection, limit, state, unreadable))

    async def list_succeeded(self, kind: RunKind, *, limit: int) -> tuple[Run, ...]:
        """Returns at most `limit` runs of a kind that succeeded, newest first; at the start, since it may read all."""
        return await self._jobs.read(
            lambda connection: run_rows.list_succeeded(connection, kind, limit, self._unreadable),
            timeout_s=OPEN_TIMEOUT_S,
        )

    async def events_after(self, run_id: str, seq: int, *, limit: int = 256) -> tuple[RunEvent, ...]:
        """Returns the first `limit` events of a run whose number is above `seq`, in order."""
        unreadable = self._unreadable
        return await self._jobs.read(
            lambda connection: event_rows.events_after(connection, run_id, seq, limit, unreadable)
        )

    async def finish_interrupted(self, reason: str) -> tuple[str, ...]:
        """Cancels every stored run that waits or runs, and returns their ids: after a restart none does."""
        now = self._clock.now()

        def job(connection: sqlite3.Connection) -> tuple[str, ...]:
            unfinished = run_rows.list_unfinished(connection, self._unreadable)
            for run in unfinished:
                seq = event_rows.last_seq(connection, run.id) + 1
                event = RunEvent(seq=seq, at=now, type="state", run_id=run.id, state="cancelled")
                run_rows.save_run(connection, run_rows.build_cancelled(run, reason, now))
                event_rows.append_events(connection, [event])
            run_rows.finish_unnumbered(connection)
            run_rows.prune_runs(connection, self._keep_runs)
            return tuple(run.id for run in unfinished)

        return await self._jobs.write(job)

    async def finish_run(self, run: Run) -> None:
        """Writes the end of a run that is stored as waiting or running, with its event; of any other, nothing."""
        now = self._clock.now()

        def job(connection: sqlite3.Connection) -> None:
            if run_rows.is_final(connection, run.id) is not False:
                return
            seq = event_rows.last_seq(connection, run.id) + 1
            event = RunEvent(seq=seq, at=now, type="state", run_id=run.id, state=run.state)
            run_rows.save_run(connection, run)
            event_rows.append_events(connection, [event])

        await self._jobs.write(job)

    async def recall_key(self, key: str) -> tuple[KeyUse, str] | None:
        """Returns what an idempotency key was used for and the run that it made, None for a new key."""
        return await self._jobs.read(lambda connection: idempotency.recall_key(connection, key, self._unreadable))

    # ---- benches and plans -----------------------------------------------------------------------------

    async def latest_bench(self) -> LatestBench:
        """Returns the newest record of each case, axis, axis size, dtype, size and set of devices."""
        now = self._clock.now()
        return await self._jobs.read_many(lambda connection: records.read_latest(connection, now, self._unreadable))

    async def put_plan(self, fingerprint: str, body: str) -> None:
        """Keeps a plan, as JSON text with its devices, packed or not; costs nothing when the same was put lately."""
        if self._plan_cache.holds(fingerprint, body):
            return

        def job(connection: sqlite3.Connection) -> int:
            return plans.put_plan(connection, fingerprint, unpack(body), KEEP_PLANS, keep_chars=plans.KEPT_CHARS)

        if await self._jobs.write(job):
            self._plan_cache.clear()
        self._plan_cache.put(fingerprint, body)

    async def get_plan(self, fingerprint: str) -> str | None:
        """Returns the plan with this fingerprint as JSON text, None if there is none (any more)."""
        cached = self._plan_cache.get(fingerprint)
        if cached is not None:
            return cached
        return await self._jobs.read(lambda connection: plans.get_plan(connection, fingerprint, self._unreadable))

    async def put_verification(self, key: str, body: str) -> None:
        """Keeps what a compiler said, as JSON text, under the key of what was compiled."""
        await self._jobs.write(
            lambda connection: verifications.put_verification(connection, key, body, KEEP_VERIFICATIONS)
        )

    async def get_verification(self, key: str) -> str | None:
        """Returns what a compiler said of what this key names as JSON text, None if nothing is kept."""
        unreadable = self._unreadable
        return await self._jobs.read(lambda connection: verifications.get_verification(connection, key, unreadable))

    # ---- leases ----------------------------------------------------------------------------------------

    async def save_leases(
        self,
        held: Sequence[StoredLease] = (),
        *,
        key: KeyUse | None = None,
        ended: Mapping[str, str] | None = None,
        forgotten: Collection[str] = (),
    ) -> None:
        """Writes what has become of leases, all of it or nothing.

        Args:
            held: leases that are new or were renewed.
            key: what the first of them was made with.
            ended: id → why it ended.
            forgotten: ids that were never told to anybody.
        """

        def job(connection: sqlite3.Connection) -> None:
            leases.forget_leases(connection, forgotten)
            leases.end_leases(connection, ended or {})
            for one in held:
                leases.save_lease(connection, one)
            if key is not None:
                leases.remember_lease_key(connection, held[0].lease.id, key)

        await self._jobs.write(job)

    async def list_held_leases(self) -> tuple[StoredLease, ...]:
        """Returns the leases that have not ended, oldest first."""
        return await self._jobs.read(lambda connection: leases.list_held(connection, self._unreadable))

    async def find_lease(self, lease_id: str) -> StoredLease | None:
        """Returns a lease that holds or has ended lately, None if there is none."""
        return await self._jobs.read(lambda connection: leases.find_lease(connection, lease_id, self._unreadable))

    async def recall_lease_key(self, key: str) -> tuple[KeyUse, StoredLease] | None:
        """Returns what an idempotency key was used for and the lease that it made, None for a new key."""
        return await self._jobs.read(lambda connection: leases.recall_lease_key(connection, key, self._unreadable))

    # ---- health ----------------------------------------------------------------------------------------

    async def save_health(self, events: Sequence[HealthEvent], *, memory: str | None, keep: int) -> None:
        """Writes events and, if given, what must be remembered; deletes events beyond `keep`."""

        def job(connection: sqlite3.Connection) -> None:
            health_events.append_health_events(connection, events)
            if memory is not None:
                health_events.put_health_memory(connection, memory)
            health_events.prune_health_events(connection, keep=keep)

        await self._jobs.write(job)

    async def read_health(self) -> StoredHealth:
        """Returns what is remembered of the host's health."""
        return await self._jobs.read(lambda connection: health_events.read_health(connection, self._unreadable))

    async def list_health_events(
        self, *, after: int | None, limit: int, component: str | None = None, since: datetime | None = None
    ) -> tuple[HealthEvent, ...]:
        """Returns the first `limit` events numbered above `after`, or the newest for None; oldest first."""
        return await self._jobs.read(
            lambda connection: health_events.list_health_events(
                connection, self._unreadable, after=after, limit=limit, component=component, since=since
            )
        )

    async def measure_free_bytes(self) -> int:
        """Returns what the agent may still write on the disk that holds the file."""

        def job(_connection: sqlite3.Connection) -> int:
            disk = os.statvfs(self.path.parent)
            return disk.f_bavail * disk.f_frsize

        return await self._jobs.read(job)
