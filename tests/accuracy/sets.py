"""The sets of published runs: which table each has, what holds for all its rows, who published it.

Rule: what all rows of a set share stands once in `data/sets.json`, with its source; what differs stands in the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Practice = Literal["maxtext", "llm-foundry", "megatron-lm-2021", "megatron-core", "torchtitan", "meshwright"]
"""How a framework runs a step: what it overlaps, fuses and keeps. Several sets share one."""


@dataclass(frozen=True)
class RunSet:
    """One set.

    Attributes:
        name: what the page calls it, and the name of its table in `data` ("maxtext" has its rows elsewhere).
        practice: of all its rows.
        chip: of all its rows, as `find_chip` knows it; empty: a column.
        fold: columns whose values are left out together, so that no relative of a row is left to fit on.
        group: columns within which rows are ranked; empty: as `fold`.
        defaults: column → cell where the table has no such column.
        memory_kind: what its peaks are: of `Run.memory_kind`.
        seconds: how the seconds of a step come from what was published.
        network_bytes_per_s: a device's share of its host's NICs, one way; None: the chip table's.
        notes: what holds for all rows, and whence; facts that the rows' own source does not give.
        source: where the rows were published; a row's `page` and `line` are added.
    """

    name: str
    practice: Practice
    source: str
    seconds: str
    chip: str = ""
    fold: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    memory_kind: str = ""
    network_bytes_per_s: float | None = None
    notes: str = ""


SETS: Final = tuple(
    RunSet(**{**row, "fold": tuple(row["fold"]), "group": tuple(row.get("group", ()))})
    for row in json.loads(Path(__file__).with_name("data").joinpath("sets.json").read_text())
)
"""The sets that have tables; the others' rows are steps of `tests.compiler.steps`."""

MAXTEXT: Final = RunSet(
    "maxtext",
    "maxtext",
    "https://github.com/AI-Hypercomputer/maxtext and https://github.com/AI-Hypercomputer/tpu-recipes, by row",
    "published; else FLOPs of MaxText's count ÷ FLOP/s, or tokens ÷ tokens/s (docs/step-estimates.md)",
    fold=("chip", "model"),
    notes="the dense bf16 runs on TPUs; the rows of tests/compiler/steps/published.csv",
)
