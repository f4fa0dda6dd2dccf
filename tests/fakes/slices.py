"""The named TPU slices as libtpu is asked for them: tests/recorded/tpu-slices."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path(__file__).parents[1] / "recorded" / "tpu-slices" / "slices.csv"


@dataclass(frozen=True)
class NamedSlice:
    """One row: the name, what libtpu calls the topology, and what it says of it."""

    name: str
    topology_name: str
    chip_config: str
    host: tuple[int, ...]
    device_count: int
    wrap: tuple[bool, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.topology_name.partition(":")[2].split("x")))


def read_named_slices() -> tuple[NamedSlice, ...]:
    with _TABLE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return tuple(
        NamedSlice(
            row["name"],
            row["topology_name"],
            row["chip_config"],
            tuple(map(int, row["host"].split("x"))),
            int(row["devices"]),
            tuple(letter == "y" for letter in row["wrap"]),
        )
        for row in rows
    )
