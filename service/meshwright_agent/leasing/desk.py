"""The desk of leases: what routes ask. Reserves, renews and ends; makes benches give way, and lets devices go.

Rule: a lease is told only when it is written down and the agent's own worker is off its devices. A store that is down
costs new leases, not those that hold, and never the end of one. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from meshwright.errors import DeviceBusyError, IdempotencyConflictError, LeaseNotFoundError, StoreUnavailableError
from meshwright.wire.devices import Device, Devices
from meshwright.wire.leases import Lease, LeaseRequest
from meshwright_agent.clock import Clock
from meshwright_agent.leasing.book import LeaseBook
from meshwright_agent.leasing.choice import View, build_leased, choose_devices
from meshwright_agent.leasing.ownership import AGENT, Claimant
from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.leases import ROUTE, TABLE, StoredLease

SWEEP_S: Final = 1.0
"""How often the end of leases is looked for, so that it is written down and seen on /devices."""

UNREADABLE: Final = "the store could not read it when the agent was started"

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
Yield = Callable[[Sequence[str], str], Awaitable[tuple[str, ...]]]
"""(ids of runs, reason) → those that gave way; the devices of the host are free of the agent when it returns."""


class LeaseDesk:
    """Leases of one host.

    Args:
        book: the leases that hold.
        store: the store, once it is open.
        devices: the host as it is known; raises UnavailableError while it is not.
        view: the same as plans see it, for a request that counts devices.
        find_runs: the benches, waiting or under way, that would open one of these devices.
        make_way: ends these runs, and the worker where it has the devices.
        clock: dates leases.
        spawn: starts work that the agent ends when it closes.
    """

    def __init__(
        self,
        book: LeaseBook,
        *,
        store: Callable[[], Store],
        devices: Callable[[], Devices],
        view: View,
        find_runs: Callable[[Sequence[Device]], tuple[str, ...]],
        make_way: Yield,
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        self.book = book
        self._store = store
        self._devices = devices
        self._view = view
        self._find_runs = find_runs
        self._make_way = make_way
        self._clock = clock
        self._spawn = spawn
        self._lock = asyncio.Lock()
        self.preempted: Counter[tuple[str, ...]] = Counter({("lease",): 0, ("run",): 0})
        self._unwritten: dict[str, str] = {}
        self._untold: set[str] = set()
        self._again: dict[str, StoredLease] = {}

    async def start(self) -> None:
        """Takes up the leases of the agent before; then looks for ends for ever, in the background.

        One that cannot be read holds nothing: nobody knows its devices.
        """
        self.book.recall(await self._store().list_held_leases())
        for lease_id in self._store().unreadable.get(TABLE, ()):
            log.error("lease %s cannot be read: its devices are not reserved any more", lease_id)
            self._unwritten[lease_id] = UNREADABLE
        await self._sweep()
        self._spawn(self._run())

    # ---- verbs ---------------------------------------------------------------------------------------------------

    async def create(self, request: LeaseRequest, *, owner: str = "", key: str | None = None) -> tuple[Lease, bool]:
        """Returns a new lease and True, or the one that this key made and False. A caller who leaves stops nothing.

        Raises:
            InvalidRequestError: a device is not there.
            DeviceLeasedError: a lease that does not give way covers one, or too many for the count that was asked for.
            DeviceBusyError: a bench is in the way of a preemptible lease, or the agent's worker does not let go.
            IdempotencyConflictError: the key was used for another request, or its lease has ended.
            StoreUnavailableError: it cannot be written down, so it is not given.
        """
        return await asyncio.shield(self._spawn(self._create_in_turn(request, owner, key)))

    async def _create_in_turn(self, request: LeaseRequest, owner: str, key: str | None) -> tuple[Lease, bool]:
        async with self._lock:
            said = request.model_dump(mode="json") | {"owner": owner}
            use = None if key is None else KeyUse.of(key, ROUTE, said)
            earlier = None if use is None else await self._recall(use)
            if earlier is not None:
                return self.book.show(earlier), False
            return self.book.show(await self._create(request, owner, use)), True

    async def _recall(self, use: KeyUse) -> StoredLease | None:
        known = await self._store().recall_lease_key(use.key)
        if known is None or known[1].lease.id in self._untold:
            return None
        earlier, stored = known
        lease_id = stored.lease.id
        if earlier != use:
            detail = f"the key {use.key!r} was used for another request, {lease_id}; one key names one request"
            raise IdempotencyConflictError(detail, hint="send a new Idempotency-Key with a new request")
        held = self.book.find(lease_id)
        if held is None:
            why = stored.ended or self._unwritten.get(lease_id) or "it was not renewed in time"
            detail = f"the key {use.key!r} made {lease_id}, which has ended: {why}; a key reserves once"
            raise IdempotencyConflictError(detail, hint="send a new Idempotency-Key to reserve again")
        return held

    async def _create(self, request: LeaseRequest, owner: str, use: KeyUse | None) -> StoredLease:
        there = self._devices().devices
        devices = choose_devices(request, there, self._view)
        given_way = self.book.judge(devices, preemptible=request.preemptible, there=there)
        runs = self._find_runs(devices)
        if runs and request.preemptible:
            raise _refuse_for_runs(runs, devices)
        held = self._build(request, owner, devices, given_way, runs)
        ended = {each.lease.id: f"pre-empted by {held.lease.id} ({request.purpose})" for each in given_way}
        self.book.end(*ended)  # from here on benches are refused, and before it nothing waits
        self.book.put(held)
        try:
            await self._write((held,), key=use, ended=ended)
        except StoreUnavailableError:
            # The disk may write it after all, later than we waited: then what is undone here is written again.
            self._untold.add(held.lease.id)
            self._undo(held, given_way)
            raise
        return await self._clear(held, given_way, runs)

    def _build(
        self,
        request: LeaseRequest,
        owner: str,
        devices: Sequence[Device],
        given_way: Sequence[StoredLease],
        runs: tuple[str, ...],
    ) -> StoredLease:
        now = self._clock.now()
        lease = Lease(
            id=f"lease-{secrets.token_hex(8)}",
            devices=tuple(map(build_leased, devices)),
            purpose=request.purpose,
            preemptible=request.preemptible,
            owner=owner,
            created_at=now,
            expires_at=now,
            expires_in_s=0.0,
            preempted_leases=tuple(each.lease.id for each in given_way),
            cancelled_runs=runs,
        )
        return self.book.date(lease, request.ttl_s)

    async def _clear(self, held: StoredLease, given_way: Sequence[StoredLease], runs: tuple[str, ...]) -> StoredLease:
        """Frees the devices of the agent's own work.

        Raises:
            DeviceBusyError: its worker does not let go; the lease has ended then, and those that gave way hold again.
        """
        reason = f"pre-empted by lease {held.lease.id} ({held.lease.purpose})"
        try:
            gone = await self._make_way(runs, reason)
        except DeviceBusyError as error:
            await self._give_back(held, given_way, f"not given: {error.detail}")
            raise
        told = held.lease.model_copy(update={"cancelled_runs": gone})
        kept = StoredLease(told, held.boot_id, held.until_s)
        self.book.put(kept)
        self.preempted["run",] += len(gone)
        self.preempted["lease",] += len(kept.lease.preempted_leases)
        return kept

    async def _give_back(self, held: StoredLease, given_way: Sequence[StoredLease], reason: str) -> None:
        """Ends a lease that could not be given; what gave way to it holds on, for as long as it had."""
        self._undo(held, given_way)
        self._unwritten[held.lease.id] = reason
        await self._write_ends()

    def _undo(self, held: StoredLease, given_way: Sequence[StoredLease]) -> None:
        self.book.end(held.lease.id)
        self._restore(*given_way)

    def _restore(self, *leases: StoredLease) -> None:
        """Lets leases hold as they did, here and, with the next write, in the store, whatever it has of them."""
        self.book.put(*leases)
        self._again |= {each.lease.id: each for each in leases}

    async def renew(self, lease_id: str, ttl_s: float, *, by: Claimant = AGENT) -> Lease:
        """Returns the lease, which now ends `ttl_s` from now.

        Raises:
            LeaseNotFoundError: there is none, or it has ended.
            ForbiddenError: it is somebody else's.
            StoreUnavailableError: that cannot be written down; it ends when it would have ended.
        """
        async with self._lock:
            held = self.book.find(lease_id)
            if held is None:
                raise await self._build_unknown(lease_id)
            by.check(held.lease)
            renewed = self.book.date(held.lease, ttl_s)
            # Whichever is longer holds while the disk is waited for: no bench begins in between.
            self.book.put(max(held, renewed, key=lambda each: each.until_s))
            try:
                await self._write((renewed,))
            except StoreUnavailableError:
                self._restore(held)  # it may be written after all
                raise
            self.book.put(renewed)
            return self.book.show(renewed)

    async def end(self, lease_id: str, *, by: Claimant = AGENT) -> Lease:
        """Ends a lease and returns it as it was; also while the store is down, which is told later.

        Raises:
            LeaseNotFoundError: there is none, or it has ended.
            ForbiddenError: it is somebody else's.
        """
        async with self._lock:
            held = self.book.find(lease_id)
            if held is None:
                raise await self._build_unknown(lease_id)
            by.check(held.lease)
            await self._end(lease_id, "ended by request (DELETE)")
            return self.book.show(held)

    async def get(self, lease_id: str) -> Lease:
        """Returns a lease that holds; LeaseNotFoundError, with the reason, if it does not."""
        held = self.book.find(lease_id)
        if held is None:
            raise await self._build_unknown(lease_id)
        return self.book.show(held)

    def list(self) -> tuple[Lease, ...]:
        """Returns the leases that hold, oldest first."""
        return tuple(map(self.book.show, self.book.active()))

    # ---- ends ----------------------------------------------------------------------------------------------------

    async def _end(self, lease_id: str, reason: str) -> None:
        self.book.end(lease_id)
        self._unwritten[lease_id] = reason
        await self._write_ends()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            async with self._lock:
                await self._sweep()

    async def _sweep(self) -> None:
        """Writes down which leases have ended."""
        self._unwritten |= self.book.take_ended()
        if self._unwritten or self._untold or self._again:
            await self._write_ends()

    async def _write_ends(self) -> None:
        try:
            await self._write(())
        except StoreUnavailableError as error:
            count = len(self._unwritten) + len(self._again)
            log.warning("what became of %d lease(s) is not written down yet: %s", count, error.detail)

    async def _write(
        self, held: Sequence[StoredLease], *, key: KeyUse | None = None, ended: dict[str, str] | None = None
    ) -> None:
        """Writes leases, and whatever could not be written before."""
        unwritten, untold = dict(self._unwritten), frozenset(self._untold)
        written = {each.lease.id for each in held}
        again = [each for name, each in self._again.items() if name not in written and self.book.find(name) is not None]
        ends = {**unwritten, **(ended or {})}
        await self._store().save_leases((*held, *again), key=key, ended=ends, forgotten=untold)
        self._again = {}
        for lease_id in unwritten:
            self._unwritten.pop(lease_id, None)
        self._untold -= untold

    async def _build_unknown(self, lease_id: str) -> LeaseNotFoundError:
        detail = f"there is no lease {lease_id[:80]!r} here"
        why = self._unwritten.get(lease_id)
        try:
            stored = await self._store().find_lease(lease_id)
        except StoreUnavailableError:
            stored = None
        if why or (stored is not None and stored.lease.id not in self._untold):
            why = why or (stored.ended if stored else None) or "it was not renewed in time"
            detail = f"lease {lease_id[:80]!r} has ended: {why}"
        return LeaseNotFoundError(detail, hint="GET /leases lists those that hold; POST /leases makes a new one")


def _refuse_for_runs(runs: Sequence[str], devices: Sequence[Device]) -> DeviceBusyError:
    named = ", ".join(str(device.local_index) for device in devices)
    return DeviceBusyError(
        f"a preemptible lease was asked for device {named}, which {', '.join(runs)} (bench) would open; a preemptible "
        "lease does not pre-empt",
        hint=f"wait for {runs[-1]}, cancel it (DELETE /runs/{runs[-1]}), or ask with preemptible: false",
    )
