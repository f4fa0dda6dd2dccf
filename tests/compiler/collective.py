"""How XLA's TPU compiler does an all-reduce, as the text of the compiled program says.

Rule: read what is written, guess nothing; a program without exactly one all-reduce is an error. Knows no mesh.
A TensorCore's all-reduce has a `collective_algorithm_config`. tpu7x hands it to its SparseCores: there the colors are
the `color_strategies` of the offload, each with a ring for every phase. (Seen with libtpu 0.0.42 and 0.0.50.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from meshwright.compiling.hlo.program import read_algorithm

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
