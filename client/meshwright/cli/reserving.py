"""A plan whose devices are reserved in the same step: `meshwright plan --lease`; or that stands in a lease of before.

Rule: only a plan that the exit code would call good is reserved, and a lease that could not be told is ended again. Who
was quicker between plan and lease has the devices: the agent refuses, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import typer

from meshwright._calls import leases as calls
from meshwright._calls.leases import name_device
from meshwright.cli.leases import LEASE_VARIABLE, ending_untold
from meshwright.cli.quantities import parse_duration
from meshwright.errors import ConflictError
from meshwright.wire.leases import Lease
from meshwright.wire.mesh import Plan

if TYPE_CHECKING:
    from meshwright._client import Client

DEFAULT_TTL: Final = "1h"
_LEASE_ID: Final = re.compile(r"lease-[0-9a-f]{8,}")


@dataclass(frozen=True)
class Reservation:
    """What a plan's devices shall be reserved for.

    Attributes:
        purpose: as others shall read it.
        ttl_s: seconds until the lease ends by itself.
        key: names the reservation; None: each is one of its own.
    """

    purpose: str
    ttl_s: float
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class AskedLease:
    """What the options say of leases, as they were given; each field is an option (`option_groups`)."""

    is_option_group: ClassVar[bool] = True

    lease: Annotated[
        str | None,
        typer.Option("--lease", metavar="PURPOSE", help='Reserve the plan\'s devices, for this: "slurm job 4711".'),
    ] = None
    ttl: Annotated[
        str | None,
        typer.Option("--ttl", metavar=DEFAULT_TTL, help="With --lease: it ends by itself after this time: 10min, 1h."),
    ] = None
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="With --lease: asked again with this key, the lease is the same."),
    ] = None
    in_lease: Annotated[
        str | None,
        typer.Option(
            "--in-lease",
            metavar="ID",
            help="Plan on the devices of this lease, the caller's own; without: MESHWRIGHT_LEASE.",
        ),
    ] = None

    def parse(self, *, elsewhere: str | None) -> Reservation | None:
        """Returns what shall be reserved; None: nothing.

        Args:
            elsewhere: the option that plans without this host's agent; None: there is none.

        Raises:
            typer.BadParameter: an option stands beside one that excludes it, or without the one that it is about.
            InvalidRequestError: no agent would take the purpose, the time or the key.
        """
        given = {"--lease": self.lease, "--in-lease": self.in_lease}
        for option, said in given.items():
            if said is not None and elsewhere is not None:
                raise typer.BadParameter(
                    f"a lease is of the agent's own host, and {elsewhere} plans on other hardware; leave one out",
                    param_hint=option,
                )
        for option, said in {"--ttl": self.ttl, "--key": self.key}.items():
            if said is not None and self.lease is None:
                raise typer.BadParameter("it is of a lease, and none is asked for; give --lease too", param_hint=option)
        if self.lease is None:
            return None
        if self.in_lease is not None:
            raise typer.BadParameter(
                f"the devices of {self.in_lease} are reserved already; leave one out", param_hint="--lease"
            )
        if _LEASE_ID.fullmatch(self.lease):
            raise typer.BadParameter(
                f"{self.lease!r} is the id of a lease; --lease takes what a new one is for, such as 'slurm job 4711', "
                "and --in-lease plans on the devices of one that there is",
                param_hint="--lease",
            )
        ttl_s = parse_duration(DEFAULT_TTL if self.ttl is None else self.ttl, "--ttl")
        calls.lease(
            "all", purpose=self.lease, ttl_s=ttl_s, preemptible=False, key=self.key
        )  # refused before a plan is made
        return Reservation(self.lease, ttl_s, self.key)

    def find_own(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """Returns the lease that the caller has: named, or of the command that this one runs under; None: none."""
        if self.lease is not None:
            return None
        return self.in_lease or environment.get(LEASE_VARIABLE) or None


def find_again(client: Client, wanted: Reservation) -> Lease | None:
    """Returns the lease that this key made before; None: it made none.

    An agent lists no keys, but it answers a request that it knows with the lease that it made. What has the purpose may
    be it; where it is not, its devices are somebody's, and the agent refuses.

    Raises:
        MeshwrightError: no answer.
    """
    if wanted.key is None:
        return None
    for known in client.leases().leases:
        if known.purpose == wanted.purpose and not known.preemptible:
            names = [name_device(device) for device in sorted(known.devices, key=lambda each: each.local_index)]
            with contextlib.suppress(ConflictError):
                return client.lease(names, purpose=wanted.purpose, ttl_s=wanted.ttl_s, key=wanted.key)
    return None


@contextlib.contextmanager
def reserving(client: Client, plan: Plan, wanted: Reservation, earlier: Lease | None) -> Iterator[Lease]:
    """Reserves a plan's devices; ends the lease again where the block, which tells it, fails.

    Args:
        client: asks the agent that planned.
        plan: whose devices.
        wanted: for what, and how long.
        earlier: the lease that the key made before: it is the one, and it stays.

    Raises:
        DeviceLeasedError: somebody else has one of the devices by now.
        MeshwrightError: as `Client.lease`.
    """
    if earlier is not None:
        yield earlier
        return
    lease = client.lease(plan, purpose=wanted.purpose, ttl_s=wanted.ttl_s, key=wanted.key)
    with ending_untold(client, lease):
        yield lease
