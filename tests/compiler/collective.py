"""How XLA's TPU compiler does an all-reduce, as the text of the compiled program says.

Rule: read what is written, guess nothing; a program without exactly one all-reduce is an error. Knows no mesh.
A TensorCore's all-reduce has a `collective_algorithm_config`. tpu7x hands it to its SparseCores: there the colours are
the `color_strategies` of the offload, each with a ring for every phase. (Seen with libtpu 0.0.42 and 0.0.50.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_OPERATION: Final = re.compile(r"(?<![\w%.-])all-reduce(?:-start)?\(")
_CONFIG: Final = "backend_config="


@dataclass(frozen=True)
class Collective:
    """What the compiler chose.

    Attributes:
        strategy: its name for it; the emitter's where it names no strategy.
        colours: parts of the data that run over links of their own at the same time; None where it says none.
        phases: dimensions that each part goes through, one after the other; None where it says none.
    """

    strategy: str
    colours: int | None = None
    phases: int | None = None


def parse_collective(text: str) -> Collective:
    """Returns how the one all-reduce of a compiled program is done.

    Raises:
        ValueError: there are none or several, or its configuration is of a kind that is not known here.
    """
    configs = list(_list_configs(text))
    if len(configs) != 1:
        raise ValueError(f"the compiled program has {len(configs)} all-reduces; compile one with a result that is used")
    config = configs[0]
    offload = config.get("collective_offload_config", {}).get("all_reduce_offload_config")
    if offload is not None:
        return _build_offloaded(offload)
    told = config.get("collective_algorithm_config")
    if told is None:
        raise ValueError(f"an all-reduce without an algorithm; its configuration has {', '.join(sorted(config))}")
    return _build_told(told)


def _list_configs(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    for line in text.splitlines():
        _, mark, rest = line.partition(_CONFIG)
        if mark and _OPERATION.search(line):
            yield decoder.raw_decode(rest)[0]


def _build_told(told: dict[str, Any]) -> Collective:
    counts = dict(re.findall(r"\b(colors|phases):(\d+)", told.get("debug", "")))
    return Collective(
        strategy=told.get("strategy") or told["emitter"],
        colours=int(counts["colors"]) if "colors" in counts else None,
        phases=int(counts["phases"]) if "phases" in counts else None,
    )


def _build_offloaded(offload: dict[str, Any]) -> Collective:
    colours = offload.get("ici_strategy_config", {}).get("color_strategies", [])
    return Collective(
        strategy="SparseCoreND" if offload.get("use_n_dimension_strategy") else "SparseCoreRing",
        colours=len(colours) or None,
        phases=max((len(colour["phase_rings"]) for colour in colours), default=None),
    )
