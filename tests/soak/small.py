"""A real agent that keeps few rows, so that growth beyond their bound shows, and whose worker is killed often."""

from __future__ import annotations

import functools

from meshwright_agent.cli import main
from meshwright_agent.store import HEALTH, LEASE, LIMITS, RUN, Limit
from meshwright_agent.supervisor import specs
from meshwright_agent.supervisor.process import ChildSpec

LIMITS["documents", RUN] = Limit(100, 1 << 28)
LIMITS["documents", LEASE] = Limit(100, 1 << 24)
LIMITS["events", HEALTH] = Limit(30, 1 << 24)

specs.ChildSpec = functools.partial(ChildSpec, crash_budget=1_000_000)  # the kills are ours

if __name__ == "__main__":
    main()
