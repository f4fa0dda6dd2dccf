"""Holds a lease: takes it, renews it while it is needed, ends it, and detects its loss. No I/O, no thread.

Rule: a lease is held until the agent reports its end, or until it expires without a successful renewal. A restart of
the agent, or a short connection loss, does not end a lease. The client checks the lease every `CHECK_S`, so that a
holder stops soon after another lease takes the devices over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshwright._calls import leases
from meshwright._calls.building import Call
from meshwright._calls.flows import CANCEL_TIMEOUT_S, Deadline, Flow, Link, Pause, Send, exchange
from meshwright._calls.messages import Request
from meshwright.errors import DeviceLeasedError, MeshwrightError, NotFoundError
from meshwright.wire.leases import Lease

DEFAULT_TTL_S: Final = 3600.0
HOLD_TTL_S: Final = 600.0
"""The lease of a crashed holder ends within this time."""
RENEWALS: Final = 3
"""A lease is renewed so often within its time."""
RENEW_TIMEOUT_S: Final = 10.0
"""How long one renewal may take."""
AGAIN_S: Final = 2.0
"""Between two tries to get or renew a lease."""
CHECK_S: Final = 2.0
"""Between two questions whether the lease still holds, and how long one of them may take."""


class Held:
    """A lease that is being held; `Client.hold` gives it, and keeps it renewed.

    Attributes:
        lease: the lease as of its last renewal.
    """

    def __init__(self, lease: Lease, on_lost: Callable[[MeshwrightError], object] | None = None) -> None:
        self.lease = lease
        self._lost: MeshwrightError | None = None
        self._on_lost = on_lost
        self._is_told = False
        self._is_over = False

    @property
    def lost(self) -> MeshwrightError | None:
        """Why the lease is lost: NotFoundError where it ended, otherwise the error of the last renewal."""
        self._is_told = self._is_told or self._lost is not None
        return self._lost

    def check(self) -> None:
        """Does nothing while the lease is held.

        Raises:
            NotFoundError: it was taken over, ended, or not renewed in time.
            MeshwrightError: no renewal came through before its end; says why.
        """
        if self.lost is not None:
            raise self.lost

    def lose(self, why: MeshwrightError, *, at_end: bool = False) -> bool:
        """Records that the lease is lost and calls `on_lost`; returns whether that is news.

        Args:
            why: the reason.
            at_end: the loss was found when the lease was given back; it counts although the block has ended.
        """
        if self._lost is not None or (self._is_over and not at_end):
            return False
        self._lost = why
        if self._on_lost is not None:
            self._is_told = True
            self._on_lost(why)
        return True

    def finish(self) -> None:
        """Records that the block has ended, so that a later loss does not count."""
        self._is_over = True

    @property
    def unsaid(self) -> str:
        """The unreported reason of a lost lease; "" if there is none."""
        if self._lost is None or self._is_told:
            return ""
        return (
            f"the lease {self.lease.id} ({self.lease.purpose}) was lost before its block ended, so others may have "
            f"used the devices meanwhile: {self._lost}"
        )


def take(call: Call[Lease], link: Link, wait_s: float) -> Flow[Lease]:
    """Returns the lease; waits up to `wait_s` for devices that another lease has.

    Raises:
        DeviceLeasedError: another lease still has them.
        MeshwrightError: as `exchange`.
    """
    deadline = link.build_deadline(wait_s)
    while True:
        try:
            lease = yield from exchange(call, link)
        except DeviceLeasedError as error:
            left_s = deadline.left_s() or 0.0
            if not left_s:
                raise
            yield Pause(min(error.retry_after_s or AGAIN_S, AGAIN_S, left_s))
        except (MeshwrightError, GeneratorExit):
            raise
        except BaseException:  # the caller was interrupted: end the lease that the agent may have made meanwhile
            yield Send(Request("DELETE", call.request.path, {"Accept": "application/json"}), CANCEL_TIMEOUT_S)
            raise
        else:
            return lease


def find(lease: Lease | str, link: Link, deadline: Deadline | None = None) -> Flow[Lease]:
    """Returns the current state of a lease.

    Raises:
        NotFoundError: the lease has ended, or never existed.
    """
    lease = yield from exchange(leases.get_lease(lease), link, deadline)
    return lease


def renew(lease: Lease | str, link: Link, ttl_s: float, deadline: Deadline | None = None) -> Flow[Lease]:
    """Makes a lease end `ttl_s` from now; reads the lease first, since an ended lease must not be created again.

    Raises:
        NotFoundError: the lease has ended, or never existed.
    """
    held = yield from find(lease, link, deadline)
    renewed = yield from exchange(leases.renew_lease(held, ttl_s), link, deadline)
    return renewed


def end(lease: Lease | str, link: Link) -> Flow[Lease]:
    """Ends a lease and returns it as it was.

    Raises:
        NotFoundError: it has ended, or never was.
    """
    held = lease if isinstance(lease, Lease) else (yield from find(lease, link))
    ended = yield from exchange(leases.end_lease(held), link)
    return ended


def keep(held: Held, link: Link, ttl_s: float) -> Flow[None]:
    """Renews the lease at a third of its time, until it is lost or the driver ends the flow.

    A failed renewal is tried again until the last granted time is over.
    """
    end: Deadline | None = link.build_deadline(held.lease.expires_in_s)
    while end is not None:
        renewal = link.build_deadline(min(ttl_s, end.left_s() or 0.0) / RENEWALS)
        yield from _check_until(renewal, held, link)
        end = None if held._lost else (yield from _renew(held, link, ttl_s, end))


def _check_until(renewal: Deadline, held: Held, link: Link) -> Flow[None]:
    """Asks every `CHECK_S` whether the lease holds, until it is lost or has to be renewed."""
    while (left_s := renewal.left_s() or 0.0) > CHECK_S:
        yield Pause(CHECK_S)
        try:
            yield from exchange(leases.get_lease(held.lease), link, link.build_deadline(CHECK_S))
        except NotFoundError as error:
            held.lose(error)
            return
        except MeshwrightError:
            continue  # an agent that cannot be reached for a while costs no lease
    yield Pause(left_s)


def _renew(held: Held, link: Link, ttl_s: float, end: Deadline) -> Flow[Deadline | None]:
    """Returns the end of the lease after this renewal; None where the lease is lost."""
    while True:
        asked_at = link.build_deadline(0.0).at or 0.0
        try:
            within = link.build_deadline(min(RENEW_TIMEOUT_S, end.left_s() or 0.0))
            held.lease = yield from renew(held.lease, link, ttl_s, within)
        except (NotFoundError, DeviceLeasedError) as error:
            held.lose(error)
            return None
        except MeshwrightError as error:
            left_s = end.left_s() or 0.0
            if not left_s:
                held.lose(error)
                return None
            yield Pause(min(AGAIN_S, left_s))
        else:
            return Deadline(asked_at + held.lease.expires_in_s, link.clock)


def give_back(held: Held, link: Link) -> Flow[str]:
    """Ends the lease; returns "", or why it remains until it expires.

    A lease that has ended meanwhile is lost. The lease is read first, since a repeated request to end it gets a 404
    too.
    """
    if isinstance(held._lost, NotFoundError):
        return ""
    within = link.build_deadline(CANCEL_TIMEOUT_S)
    try:
        yield from exchange(leases.get_lease(held.lease), link, within)
    except NotFoundError as error:
        held.lose(error, at_end=True)
        return ""
    except MeshwrightError:
        pass  # the lease has ended anyway
    try:
        yield from exchange(leases.end_lease(held.lease), link, within)
    except NotFoundError:
        return ""
    except MeshwrightError as error:
        return f"the lease {held.lease.id} could not be ended, and ends by itself at {held.lease.expires_at}: {error}"
    return ""
