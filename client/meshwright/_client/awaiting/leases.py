"""Leases: made, renewed, ended; and held for a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from meshwright._calls import holding
from meshwright._calls import leases as calls
from meshwright._calls.holding import DEFAULT_TTL_S, HOLD_TTL_S, Held
from meshwright._calls.leases import LeasedLike
from meshwright._client.awaiting.driving import AsyncDriver
from meshwright.errors import MeshwrightError
from meshwright.wire.leases import Lease, Leases


class AsyncLeaseCalls(AsyncDriver):
    """Who has which devices."""

    async def lease(
        self,
        devices: LeasedLike = "all",
        *,
        purpose: str,
        ttl_s: float = DEFAULT_TTL_S,
        preemptible: bool = False,
        lease_id: str | None = None,
    ) -> Lease:
        """Reserves devices of the host until the time is over, or the lease is ended; `hold` does that by itself.

        Args:
            devices: local indices or uuids; "all": every device of the host; {"count": 4}: so many that are well and
                free; a plan: those that it uses.
            purpose: what for, as others shall read it: "slurm job 4711".
            ttl_s: seconds until the lease ends by itself.
            preemptible: a lease that is not preemptible may take the devices over.
            lease_id: the id of the lease, such as "slurm-4711". Where a lease of yours with this id holds these devices
                already, it is renewed. None: an id is made, and each call makes a lease of its own.

        Raises:
            DeviceLeasedError: another lease has one of the devices, for how long; or the lease with this id has other
                devices.
            ForbiddenError: the lease with this id belongs to another owner.
            InvalidRequestError: no such device, a plan on a target or on several hosts, or an argument that is out of
                range.
        """
        return await self._ask(
            calls.put_lease(lease_id, devices, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible)
        )

    async def leases(self) -> Leases:
        """Returns the leases that there are, oldest first."""
        return await self._ask(calls.leases())

    async def get_lease(self, lease: Lease | str) -> Lease:
        """Returns a lease, or one with this id, as it stands now.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        return await self._ask(calls.get_lease(lease))

    async def renew_lease(self, lease: Lease | str, ttl_s: float) -> Lease:
        """Makes a lease end `ttl_s` seconds from now, earlier or later than before; returns it.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        return await self._drive(holding.renew(lease, self._link, ttl_s))

    async def end_lease(self, lease: Lease | str) -> Lease:
        """Ends a lease, and returns it as it was.

        Raises:
            NotFoundError: it has ended, or never was.
        """
        return await self._drive(holding.end(lease, self._link))

    @contextlib.asynccontextmanager
    async def hold(
        self,
        devices: LeasedLike = "all",
        *,
        purpose: str,
        ttl_s: float = HOLD_TTL_S,
        preemptible: bool = False,
        wait_s: float = 0.0,
        on_lost: Callable[[MeshwrightError], object] | None = None,
    ) -> AsyncIterator[Held]:
        """Leases devices for a block, keeps the lease renewed while it runs, and ends it afterwards.

        A lease that is lost meanwhile (taken over, ended, or not renewed in time) does not end the block.
        The client asks the agent every 2 s, and once more at the end of the block. Read `held.lost`, call
        `held.check()` where the block may end, or give `on_lost`; without any of these, the end of the block emits a
        UserWarning.

        Args:
            devices: local indices or uuids; "all": every device of the host; {"count": 4}: so many that are well and
                free; a plan: those that it uses.
            purpose: what for, as others shall read it.
            ttl_s: seconds after which the lease ends when this process is gone; renewed at a third of it.
            preemptible: a lease that is not preemptible may take the devices over.
            wait_s: seconds to wait for devices that somebody else has leased.
            on_lost: called with why, as soon as it is known: from a thread of the client, or by the event loop.

        Raises:
            DeviceLeasedError: somebody else has one of the devices, and has not ended after `wait_s`.
            InvalidRequestError: no such device, a plan on a target or on several hosts, or an argument that is out of
                range.
        """
        call = calls.put_lease(None, devices, purpose=purpose, ttl_s=ttl_s, preemptible=preemptible)
        held = Held(await self._drive(holding.take(call, self._link, wait_s)), on_lost)
        keeper = asyncio.create_task(self._keep(held, ttl_s), name=f"meshwright-{held.lease.id}")
        try:
            yield held
        finally:
            held.finish()
            keeper.cancel()
            await asyncio.wait([keeper])
            left = await self._drive(holding.give_back(held, self._link))
            self._warn(held.unsaid, left)

    async def _keep(self, held: Held, ttl_s: float) -> None:
        """Runs in a task of its own, until it is cancelled."""
        try:
            await self._drive(holding.keep(held, self._link, ttl_s), asyncio.sleep)
        except Exception as error:  # whatever it is, nobody renews the lease any more
            if not held.lose(MeshwrightError(f"the lease is not renewed any more: {type(error).__name__}: {error}")):
                raise  # what was wrong was `on_lost`
