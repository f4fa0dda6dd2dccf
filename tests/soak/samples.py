"""What is watched while the load goes on: memory, descriptors, threads, children and rows of the agent, from outside.

Rule: nothing is asked of the agent itself, so that looking costs it nothing. Knows /proc and the database's file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.agents import RunningAgent
from tests.process.living import list_children, read_rss_bytes

TABLES: Final = ("runs", "events", "records", "plans", "idempotency_keys", "verifications")


@dataclass(frozen=True)
class Sample:
    """One look, `at_s` seconds after the start."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    children: int
    zombies: int
    rows: int
    store_bytes: int


def take_sample(agent: RunningAgent, began_s: float) -> Sample:
    """Returns how the agent is now."""
    status = Path(f"/proc/{agent.pid}/status").read_text()
    return Sample(
        at_s=time.monotonic() - began_s,
        rss_bytes=read_rss_bytes(agent.pid),
        descriptors=len(list(Path(f"/proc/{agent.pid}/fd").iterdir())),
        threads=next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads")),
        children=len(list_children(agent.pid)),
        zombies=count_zombies(agent.pid),
        rows=count_rows(agent.state_dir / "meshwright.sqlite3"),
        store_bytes=sum(path.stat().st_size for path in agent.state_dir.iterdir() if path.is_file()),
    )


def count_zombies(pid: int) -> int:
    """Returns how many children have ended and were not waited for."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            found += state == "Z" and int(parent) == pid
    return found


def count_rows(path: Path) -> int:
    """Returns how many rows the tables have together."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        return sum(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in TABLES)
    finally:
        connection.close()
