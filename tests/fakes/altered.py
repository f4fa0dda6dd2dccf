"""An agent with one thing altered, to cause a fault that nothing outside of it can cause.

`python -m tests.fakes.altered serve …` is `meshwright-agent serve …`; variables say what is altered:
MW_CLOCK_OFFSET: a file with the seconds by which the wall clock is off, which may change at any time.
MW_PLAN_TIMEOUT_S: the seconds that a plan may take.

The only file of the net that patches the insides of the agent. Nothing else is replaced.
"""

from __future__ import annotations

import os
import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path


def set_clock(offset: Path) -> None:
    """Gives the agent the machine's wall clock plus what `offset` says."""
    from meshwright_agent.clock import SystemClock

    SystemClock.now = lambda _self: datetime.now(UTC) + timedelta(seconds=float(offset.read_text()))


def limit_plans(timeout_s: float) -> None:
    """Ends a plan after so many seconds."""
    from meshwright_agent.answers import plans

    plans.PLAN_TIMEOUT_S = timeout_s


def stand_in_for_a_card() -> None:
    """In the device worker: a CPU device of JAX is a GPU, with sizes for CPUs. Called by a `sitecustomize`."""
    if "meshwright_agent.children.device" in sys.orig_argv:
        from meshwright.wire import devices
        from meshwright_agent.bench import scope

        devices.parse_platform = lambda _name: "gpu"
        scope.DEFAULTS["quick", False] = scope.DEFAULTS["quick", True]


if __name__ == "__main__":
    if offset := os.environ.get("MW_CLOCK_OFFSET"):
        set_clock(Path(offset))
    if timeout_s := os.environ.get("MW_PLAN_TIMEOUT_S"):
        limit_plans(float(timeout_s))
    runpy.run_module("meshwright_agent", run_name="__main__", alter_sys=True)
