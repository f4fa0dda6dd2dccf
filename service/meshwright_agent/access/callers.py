"""A caller, once known, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import ForbiddenError
from meshwright_agent.access.scopes import Scope, covers


@dataclass(frozen=True)
class Caller:
    """Whoever sent a request: `token:NAME`, `cert:NAME`, `addr:ADDRESS` or `uid:NUMBER`."""

    name: str
    scope: Scope
    how_to_rise: str = "ask the agent's operator for a token of a larger scope"

    def check(self, needed: Scope, route: str) -> None:
        """Returns if this caller may do what needs a scope.

        Raises:
            ForbiddenError: naming both scopes, and what would help.
        """
        if not covers(self.scope, needed):
            detail = f"{route} needs the scope {needed}; {self.name} has {self.scope}"
            raise ForbiddenError(detail, hint=self.how_to_rise)
