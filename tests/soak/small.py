"""A real agent that keeps few rows, so that their bound is met early and growth beyond it shows."""

from __future__ import annotations

from meshwright_agent.cli import main
from meshwright_agent.store import HEALTH, LEASE, LIMITS, RUN, Limit

LIMITS.update(
    {
        ("documents", RUN): Limit(100, 1 << 28),
        ("documents", LEASE): Limit(100, 1 << 24),
        ("events", HEALTH): Limit(30, 1 << 24),
    }
)

if __name__ == "__main__":
    main()
