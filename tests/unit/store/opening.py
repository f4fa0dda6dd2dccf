"""Opens a store for one test and closes it whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from meshwright_agent.store import Store, StoreUnavailableError
from tests.fakes.stored import ManualClock


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[Store]:
    async with Store.open(path, **({"clock": ManualClock()} | options)) as store:
        yield store


@contextlib.contextmanager
def editing(path: Path) -> Iterator[sqlite3.Connection]:
    """Gives a connection of another program to the file."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


@contextlib.contextmanager
def full_disk(path: Path, table: str) -> Iterator[None]:
    """Lets no row of a table be written, for the length of a block."""
    refuse = "CREATE TRIGGER full_{0} BEFORE {0} ON {1} BEGIN SELECT RAISE(ABORT, 'no space'); END"
    with editing(path) as other:
        for verb in ("INSERT", "UPDATE"):
            other.execute(refuse.format(verb, table))
        yield
        for verb in ("INSERT", "UPDATE"):
            other.execute(f"DROP TRIGGER full_{verb}")


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Keeps every other connection from writing into the file, as a sick disk would."""
    with editing(path) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


async def recover(store: Store) -> None:
    """Waits until the store works again."""
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                await store.check()
                return


def build_closed_store(folder: Path = Path("/nonexistent")) -> Store:
    """Returns a store that is not open: whatever asks it is refused."""
    return Store(folder / "meshwright.sqlite3", clock=ManualClock())
