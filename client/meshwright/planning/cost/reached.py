"""What collectives really reach on a chip's wires: their part of the published rate, and what starts them.

Rule: the table is `reached.csv` beside this file; every row has its source or its fit, and a chip without a row gets
the one of its platform. An empty cell leaves the wire's own figure.

Of 1,024 all-reduces a group, 1 MiB to 1 GiB, over 2 to 8 A100 and V100 (github.com/VIA-Research/vTrain, its NCCL
tables), the rows of both chips were fitted on the even MiB. On the odd ones the median error is 0.36 % (A100) and
0.10 % (V100), and nine of ten are within 2.0 and 0.5 %; below 64 MiB 2.9 and 0.6 %, nine of ten within 8.2 and 3.6 %.
The worst are messages of a few MiB, 37 and 34 %: NCCL changes its protocol there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.planning.cost.collectives import Figure, Wire, give_figure, read_figure
from meshwright.planning.cost.layout import Numbers
from meshwright.topology.chips import read_table

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
Place = Literal["inside", "across"]
"""Inside a node or slice, or across the network between them."""


@dataclass(frozen=True)
class Reached:
    """One row: what one collective over a group of `size` devices reached.

    Attributes:
        family: a chip's hardware type ("a100"), or a platform ("gpu", "tpu") for all others.
        reached_ratio: part of the chip's published rate, one way, of all links that it uses.
        start_s, hop_s, ramp_s_per_root_byte: as in `Wire`; None: nobody says.
        source: where it comes from.
    """

    family: str
    place: Place
    operation: Operation
    size: int
    reached_ratio: float
    source: str
    start_s: float | None = None
    hop_s: float | None = None
    ramp_s_per_root_byte: float | None = None


def calibrate(wire: Wire, family: str, platform: str, operation: Operation, place: Place = "inside") -> Wire:
    """Returns the wire with what the table says for each of its group sizes; the published rates stay in it.

    The row of the largest group that is no larger counts, else that of the smallest.

    Args:
        wire: with published rates.
        family: of the chip, a value of `HardwareType`, such as "a100".
        platform: "gpu" or "tpu": whose row counts where the family has none.
        operation: which collective; one without a row has that of the all-reduce.
        place: inside a node or slice, or across.

    Raises:
        ValueError: neither family nor platform has a row.
    """
    rows = find_reached(family, platform, operation, place)
    sizes = np.asarray([row.size for row in rows])
    chosen = np.maximum(np.searchsorted(sizes, np.asarray(wire.size), side="right") - 1, 0)

    def pick(known: Sequence[float | None], own: Numbers) -> Figure:
        values = np.asarray([np.nan if value is None else value for value in known])[chosen]
        return give_figure(np.where(np.isnan(values), read_figure(own), values))

    return replace(
        wire,
        reached_ratio=pick([row.reached_ratio for row in rows], wire.reached_ratio),
        start_s=pick([row.start_s for row in rows], wire.start_s),
        hop_s=pick([row.hop_s for row in rows], wire.hop_s),
        ramp_s_per_root_byte=pick([row.ramp_s_per_root_byte for row in rows], wire.ramp_s_per_root_byte),
    )


def find_reached(family: str, platform: str, operation: Operation, place: Place = "inside") -> tuple[Reached, ...]:
    """Returns the rows that count for a chip's collective, the smallest group first.

    Raises:
        ValueError: neither family nor platform has a row.
    """
    for name in (family, platform):
        for wanted in (operation, "all_reduce"):
            if found := _by_key().get((name, place, wanted)):
                return found
    raise ValueError(f"reached.csv has no row for {family!r} or {platform!r} {place}; platforms are 'gpu' and 'tpu'")


@functools.cache
def read_reached() -> tuple[Reached, ...]:
    """Returns the whole table, in its order."""
    return read_table("meshwright.planning.cost", "reached.csv", Reached)


@functools.cache
def _by_key() -> Mapping[tuple[str, str, str], tuple[Reached, ...]]:
    found: dict[tuple[str, str, str], list[Reached]] = {}
    for row in read_reached():
        found.setdefault((row.family, row.place, row.operation), []).append(row)
    return {key: tuple(sorted(rows, key=lambda row: row.size)) for key, rows in found.items()}
