"""A real agent whose wall clock the test sets: `python -m tests.faults.jumping serve …`; MW_CLOCK_OFFSET names a file.

Rule: everything is the agent's own but the clock that it is given: the machine's, plus the seconds that the file says.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from meshwright_agent.api.app import build_app
from meshwright_agent.serving.server import serve
from meshwright_agent.settings import Settings


@dataclass(frozen=True)
class JumpingClock:
    """The machine's clocks; the wall clock is off by what `offset` says, which a person or NTP may do at any time."""

    offset: Path

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(self.offset.read_text()))

    def monotonic(self) -> float:
        return time.monotonic()


def main() -> int:
    """Serves as `meshwright-agent serve` does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    for name, kind in {"port": int, "uds": Path, "state-dir": Path, "cpu-devices": int}.items():
        parser.add_argument(f"--{name}", type=kind)
    given = vars(parser.parse_args())
    del given["command"]
    return serve(
        Settings(**given),
        build_app,
        on_listening=lambda addresses: print(f"listens on {addresses[0]}, ", flush=True),
        clock=JumpingClock(Path(os.environ["MW_CLOCK_OFFSET"])),
    )


if __name__ == "__main__":
    raise SystemExit(main())
