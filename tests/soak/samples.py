"""What is watched while the load goes on: memory, descriptors, threads, children and rows of the agent, from outside.

Rule: nothing is asked of the agent itself, so that looking costs it nothing. Knows /proc and the database's file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.agents import RunningAgent
from tests.process.living import list_children, read_rss_bytes


@dataclass(frozen=True)
class Sample:
    """One look, `at_s` seconds after the start.

    Attributes:
        orphans: events of runs that are no longer kept.
        most_events: of one run that is kept.
        rows: documents of each kind, and events but those of runs, which `orphans`, `most_events` and the number of
            runs bound: how many those are depends on the machine's pace.
    """

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    children: int
    zombies: int
    store_bytes: int
    orphans: int
    most_events: int
    rows: Mapping[str, int]


def take_sample(agent: RunningAgent, began_s: float) -> Sample:
    """Returns how the agent is now."""
    database = agent.state_dir / "meshwright.sqlite3"
    orphans, most_events = count_events(database)
    status = Path(f"/proc/{agent.pid}/status").read_text()
    return Sample(
        at_s=time.monotonic() - began_s,
        rss_bytes=read_rss_bytes(agent.pid),
        descriptors=len(list(Path(f"/proc/{agent.pid}/fd").iterdir())),
        threads=next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads")),
        children=len(list_children(agent.pid)),
        zombies=count_zombies(agent.pid),
        store_bytes=sum(path.stat().st_size for path in agent.state_dir.iterdir() if path.is_file()),
        orphans=orphans,
        most_events=most_events,
        rows=count_rows(database),
    )


def count_zombies(pid: int) -> int:
    """Returns how many children have ended and were not waited for."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            found += state == "Z" and int(parent) == pid
    return found


def count_events(path: Path) -> tuple[int, int]:
    """Returns how many events belong to no run, and the most that one run has."""
    with _reading(path) as connection:
        (orphans,) = connection.execute(
            "SELECT COUNT(*) FROM events WHERE stream LIKE 'run/%' "
            "AND stream NOT IN (SELECT 'run/' || key FROM documents WHERE kind = 'run')"
        ).fetchone()
        (most,) = connection.execute(
            "SELECT COALESCE(MAX(number), 0) FROM "
            "(SELECT COUNT(*) AS number FROM events WHERE stream LIKE 'run/%' GROUP BY stream)"
        ).fetchone()
    return orphans, most


def count_rows(path: Path) -> dict[str, int]:
    """Returns how many documents there are of each kind, and how many events of all streams but those of runs."""
    with _reading(path) as connection:
        kinds = connection.execute("SELECT kind, COUNT(*) FROM documents GROUP BY kind ORDER BY kind").fetchall()
        streams = "SELECT stream, COUNT(*) FROM events WHERE stream NOT LIKE 'run/%' GROUP BY stream"
        return dict(kinds) | {f"{name} events": count for name, count in connection.execute(streams)}


def _reading(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30))
