"""All published runs: the tables read, and chosen from.

Rule: every row of the collection is a `Run`, or a `LeftOut` that says why. The tables stand in `data`, what a whole set
shares in `sets`. Knows no prediction.

    from tests.accuracy.runs import read_runs
    read_runs("vtrain-multi", "bloom")
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from tests.accuracy.maxtext import read_maxtext
from tests.accuracy.run import LeftOut, Run
from tests.accuracy.tables import read_tables

__all__ = ["Collection", "LeftOut", "Run", "read_collection", "read_runs", "select_timed"]


@dataclass(frozen=True)
class Collection:
    """All rows of all sets, in the order of the tables."""

    runs: tuple[Run, ...]
    left_out: tuple[LeftOut, ...]


@functools.cache
def read_collection() -> Collection:
    """Returns every row.

    Raises:
        ValueError: a table is not as it should be; names row and reason.
    """
    rows = (*read_maxtext(), *read_tables())
    return Collection(
        runs=tuple(row for row in rows if isinstance(row, Run)),
        left_out=tuple(row for row in rows if isinstance(row, LeftOut)),
    )


def read_runs(*sets: str) -> tuple[Run, ...]:
    """Returns the runs of these sets, or of all; rows that are left out are not among them.

    Raises:
        ValueError: no set has such a name.
    """
    runs = read_collection().runs
    known = dict.fromkeys(run.set_name for run in (*runs, *read_collection().left_out))
    if unknown := [name for name in sets if name not in known]:
        raise ValueError(f"no set is called {', '.join(unknown)}; these are: {', '.join(known)}")
    return tuple(run for run in runs if not sets or run.set_name in sets)


def select_timed(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Returns the runs whose seconds are told."""
    return tuple(run for run in runs if run.step_s is not None)
