"""The table of known models: their dimensions by the names that people type.

Rule: a model is found by an exact name or not at all. The table is `models.csv` beside this file, each row with its
source; where somebody published an exact count of parameters, it stands there too. A model that has what `ModelSpec`
cannot say stays in the table, with what that is. Knows no config.json, and not what can be compiled.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.topology.chips import read_cells
from meshwright.wire.model import ModelSpec


@dataclass(frozen=True)
class Preset:
    """One row of the table.

    Attributes:
        model: its dimensions; of a row that is `unsupported`, those that can be said.
        aliases: other names, in lower case.
        published_parameters: the exact count of trained parameters, as published with a checkpoint or as a public
            implementation counts its own tensors; None where nobody says.
        published_source: who says so.
        unsupported: what it has that `ModelSpec` cannot say; empty: nothing.
        source, notes: where the dimensions come from, and how they differ from others.
    """

    model: ModelSpec
    aliases: tuple[str, ...]
    published_parameters: int | None
    published_source: str
    unsupported: str
    source: str
    notes: str

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.model.name or ""


@functools.cache
def read_presets() -> tuple[Preset, ...]:
    """Returns the whole table, by name."""
    return tuple(map(_parse_row, read_cells("meshwright.planning", "models.csv")))


def find_preset(name: str) -> Preset | None:
    """Returns the model of this name or alias, in any case and with any owner before it; None where none is.

    "Qwen/Qwen3-8B" and "qwen3_8b" are the preset qwen3-8b.
    """
    return _by_name().get(_fold(name))


def suggest_presets(name: str, *, most: int = 3) -> tuple[str, ...]:
    """Returns names of the table that are near one that it does not have, the nearest first."""
    near = difflib.get_close_matches(_fold(name)[:128], _by_name(), n=3 * most, cutoff=0.6)
    return tuple(dict.fromkeys(_by_name()[word].name for word in near))[:most]


@functools.cache
def _by_name() -> Mapping[str, Preset]:
    return {name: preset for preset in read_presets() for name in (preset.name, *preset.aliases)}


def _fold(name: str) -> str:
    return "-".join(name.lower().rpartition("/")[2].replace("_", " ").split())


def _parse_row(row: Mapping[str, str]) -> Preset:
    """Returns a preset; an empty cell is the field's default."""
    given = {name: cell for name, cell in row.items() if name in ModelSpec.model_fields}
    return Preset(
        model=ModelSpec(**{name: cell if name in _WORDS else json.loads(cell) for name, cell in given.items()}),
        aliases=tuple(row["aliases"].split("|")) if "aliases" in row else (),
        published_parameters=int(row["published_parameters"]) if "published_parameters" in row else None,
        published_source=row.get("published_source", ""),
        unsupported=row.get("unsupported", ""),
        source=row["source"],
        notes=row.get("notes", ""),
    )


_WORDS: Final = frozenset({"name", "activation", "norm", "positions", "qk_norm_scale"})
"""Fields whose cells are text; others are numbers, true or false."""
