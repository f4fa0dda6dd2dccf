"""A caller, once known: what they may do and how often; and whose request is being answered."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from meshwright.errors import ForbiddenError, RateLimitedError
from meshwright_agent.access.rates import Rates
from meshwright_agent.access.scopes import Scope, covers

CALLER_NAME: Final[ContextVar[str]] = ContextVar("meshwright_caller", default="the agent")
"""The name of the caller whose request is being answered; set at the gate."""


@dataclass(frozen=True)
class Caller:
    """Whoever sent a request: `token:NAME`, `cert:NAME`, `addr:ADDRESS` or `uid:NUMBER`."""

    name: str
    scope: Scope
    rates: Rates
    how_to_rise: str = "ask the agent's operator for a token of a larger scope"

    def check(self, needed: Scope, route: str) -> None:
        """Returns if this caller may do what needs a scope.

        Raises:
            ForbiddenError: naming both scopes, and what would help.
        """
        if not covers(self.scope, needed):
            detail = f"{route} needs the scope {needed}; {self.name} has {self.scope}"
            raise ForbiddenError(detail, hint=self.how_to_rise)

    def spend(self, route: str) -> None:
        """Counts one expensive request.

        Raises:
            RateLimitedError: there were too many in the last minute.
        """
        wait_s = self.rates.spend(self.name)
        if wait_s > 0:
            raise RateLimitedError(
                f"{self.name} asked for {route} and the like more than {self.rates.per_minute} times a minute",
                hint="wait for Retry-After, or raise MESHWRIGHT_RATE_LIMIT_PER_MINUTE on the agent",
                retry_after_s=wait_s,
            )
