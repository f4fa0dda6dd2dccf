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
        for position, run in enumerate(runs, 1):
            row = (run.id, run.state, position, run.model_dump_json())
            connection.execute("INSERT INTO runs (id, state, finished_position, body) VALUES (?, ?, ?, ?)", row)
        rows = ((event.run_id, event.seq, event.model_dump_json()) for event in events)
        connection.executemany("INSERT INTO events (run_id, seq, body) VALUES (?, ?, ?)", rows)
