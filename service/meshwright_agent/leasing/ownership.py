"""Whose a lease is, and so who may renew or end it.

Rule: a lease belongs to the token, or client certificate, that took it, also after a restart of the agent. Another's
needs the scope `admin`. One that was taken without either belongs to nobody, and whoever may operate may end it; so may
who shows neither, since the scope of the unix socket, or of a host without tokens, was given to all who come that way.
Knows no route and no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meshwright.errors import ForbiddenError
from meshwright.wire.leases import Lease


@dataclass(frozen=True)
class Claimant:
    """Who wants to renew or end a lease.

    Attributes:
        owner: the name of the token or certificate that was shown; empty where none was.
        is_admin: they may do so with everybody's.
    """

    owner: str
    is_admin: bool

    def check(self, lease: Lease) -> None:
        """Returns if this lease is theirs to renew and end.

        Raises:
            ForbiddenError: naming the rule, and whose it is.
        """
        if self.is_admin or not self.owner or lease.owner in {"", self.owner}:
            return
        raise ForbiddenError(
            f"lease {lease.id} ({lease.purpose}) was taken by {lease.owner}, and {self.owner} asks; a lease is renewed "
            "and ended by who took it, or with the scope admin",
            hint=f"ask with the token or certificate of {lease.owner}, or with a token of scope admin; it ends by "
            "itself when nobody renews it (expires_in_s)",
        )


AGENT: Final = Claimant("", is_admin=True)
"""The agent itself."""
