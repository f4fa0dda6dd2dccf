"""Records as a run writes them, with the figures that a test asks for."""

from __future__ import annotations

from datetime import UTC, datetime

from meshwright_agent.children.bench.measure import Outcome, Subject

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class NoSubject(Subject):
    def sample(self) -> float:
        return 1.0

    def verify(self) -> Outcome:
        return Outcome(0)
