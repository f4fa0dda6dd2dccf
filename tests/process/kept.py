"""What an agent has kept from before it starts: rows that sqlite3 puts into the file of its state directory.

The only file of the net that knows the tables; the agent makes them itself, in a first life.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from meshwright.wire.runs import Run, RunEvent
from tests.agents import start_agent


def keep_runs(state_dir: Path, runs: Iterable[Run], events: Iterable[RunEvent] = (), **environment: str) -> None:
    """Starts an agent once and, when it has gone, writes runs that have ended, and events of them."""
    with start_agent(cpu_devices=None, ready=False, state_dir=state_dir, **environment) as agent:
        assert agent.stop() == 0
    (file,) = state_dir.glob("*.sqlite3")
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        put = "INSERT INTO documents (kind, key, state, size, body) VALUES ('run', ?, ?, ?, ?)"
        bodies = ((run, run.model_dump_json()) for run in runs)
        connection.executemany(put, ((run.id, run.state, len(body), body) for run, body in bodies))
        put = "INSERT INTO events (stream, seq, at, size, body) VALUES (?, ?, ?, ?, ?)"
        told = ((event, event.model_dump_json()) for event in events)
        rows = ((f"run/{event.run_id}", event.seq, event.at.timestamp(), len(body), body) for event, body in told)
        connection.executemany(put, rows)
