"""How XLA's TPU compiler does an all-reduce, as the text of the compiled program says.

Rule: read what is written, guess nothing; a program without exactly one all-reduce is an error. Knows no mesh.
A TensorCore's all-reduce has a `collective_algorithm_config`. tpu7x hands it to its SparseCores: there the colors are
the `color_strategies` of the offload, each with a ring for every phase. (Seen with libtpu 0.0.42 and 0.0.50.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_OPERATION: Final = re.compile(r"(?<![\w%.-])all-reduce(?:-start)?\(")
_CONFIG: Final = "backend_config="


@dataclass(frozen=True)
class Collective:
    """What the compiler chose.

    Attributes:
        strategy: its name for it; the emitter's where it names no strategy.
        colors: parts of the data that run over links of their own at the same time; None where it says none.
        phases: dimensions that each part goes through, one after the other; None where it says none.
    """

    strategy: str
    colors: int | None = None
    phases: int | None = None


def parse_collective(text: str) -> Collective:
    """Returns how the one all-reduce of a compiled program is done.

    Raises:
        ValueError: there are none or several, or its configuration is of a kind that is not known here.
    """
    configs = list(_list_configs(text))
    if len(configs) != 1:
        raise ValueError(f"the compiled program has {len(configs)} all-reduces; compile one with a result that is used")
    strategy, colors, phases = read_algorithm(configs[0])
    if strategy is None:
        raise ValueError(f"an all-reduce without an algorithm; its configuration has {', '.join(sorted(configs[0]))}")
    return Collective(strategy, colors, phases)


def _list_configs(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    for line in text.splitlines():
        _, mark, rest = line.partition(_CONFIG)
        if mark and _OPERATION.search(line):
            yield decoder.raw_decode(rest)[0]


def read_algorithm(config: Mapping[str, Any]) -> tuple[str | None, int | None, int | None]:
    """Returns (strategy, colors, phases) of a collective's `backend_config`, each None where it is missing; of a
    TensorCore's algorithm without a strategy, its emitter."""
    if told := config.get("collective_algorithm_config"):
        debug, strategy = str(told.get("debug", "")), str(told.get("strategy") or told.get("emitter") or "")
        colors, phases = _choose_count(debug, r"\bcolors:(\d+)", min), _choose_count(debug, r"\bphases:(\d+)", max)
        return strategy or None, colors, phases
    if offload := config.get("collective_offload_config"):
        return _read_offload(offload)
    return None, None, None


def _choose_count(debug: str, pattern: str, choose: Callable[[Iterable[int]], int]) -> int | None:
    found = [int(number) for number in re.findall(pattern, debug)]
    return choose(found) if found else None


def _read_offload(offload: Mapping[str, Any]) -> tuple[str | None, int | None, int | None]:
    """Reads the algorithm of the SparseCores (tpu7x): a color has a ring for every phase."""
    told = next((config for config in offload.values() if isinstance(config, dict)), {})
    colors = told.get("ici_strategy_config", {}).get("color_strategies", [])
    phases = max((len(color.get("phase_rings", ())) for color in colors), default=None)
    return "SparseCoreND" if told.get("use_n_dimension_strategy") else "SparseCoreRing", len(colors) or None, phases
