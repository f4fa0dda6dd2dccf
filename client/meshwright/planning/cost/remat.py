"""What a backward pass computes again of a layer, where some of its outputs are kept or offloaded.

Rule: shares of a model's own matmuls, by their parameters; no device, no time. Names of outputs are MaxText's, with its
`mlpwi` and `mlpwo` in words.

JAX drops what no gradient needs, so the last matmul of a layer that adds its result to the stream is never repeated,
and keeping it gains nothing: of a step of 64B on 256 v5e with full remat, XLA's TPU compiler counts 2.005e15 FLOP a
device, which is 6·parameters·tokens, the forward pass again without that matmul, and attention in full. PyTorch's
checkpoint runs the layer's code again, all of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from meshwright.planning.cost.work import Block, Matmul, Work

Output = Literal["qkv", "context", "attention_out", "mlp_in", "mlp_out"]
"""Queries, keys and values; attention's result; its projection; the feed-forward's first matmuls, and its last."""

UNNEEDED: Final[frozenset[Output]] = frozenset({"mlp_out"})
"""Of a layer under JAX's remat. A stream that is normalized after the feed-forward needs it; no family here does so."""


@dataclass(frozen=True)
class Repeated:
    """Parts of a model's matmuls, and of its attention, that the backward pass computes again: 0 to 1."""

    matmuls: float
    attention: float


def find_repeated(work: Work, kept: Collection[Output] = (), *, drops_unneeded: bool = True) -> Repeated:
    """Returns what full remat repeats.

    Args:
        work: of the model.
        kept: outputs that the backward pass finds in memory, on the device or offloaded to the host.
        drops_unneeded: whether what no gradient needs is left out, as in JAX; not so in PyTorch.
    """
    spared = {*kept, *(UNNEEDED if drops_unneeded else ())}
    whole = sum(block.count * sum(_weigh(block).values()) for block in work.blocks)
    again = sum(
        block.count * weight for block in work.blocks for name, weight in _weigh(block).items() if name not in spared
    )
    return Repeated(again / whole, 0.0 if "context" in spared else 1.0)


def _weigh(block: Block) -> dict[Output, int]:
    """Returns the parameters that a token goes through, by the output that they make."""
    ends = next(place for place, matmul in enumerate(block.matmuls) if matmul.cut == "inputs")
    feed = [(matmul, 1) for matmul in block.matmuls[ends + 1 :]]
    feed += [(matmul, block.experts.chosen) for matmul in block.experts.matmuls] if block.experts else []
    return {
        "qkv": _count(block.matmuls[:ends]),
        "attention_out": block.matmuls[ends].parameters,
        "mlp_in": sum(times * matmul.parameters for matmul, times in feed if matmul.cut == "outputs"),
        "mlp_out": sum(times * matmul.parameters for matmul, times in feed if matmul.cut == "inputs"),
    }


def _count(matmuls: tuple[Matmul, ...]) -> int:
    return sum(matmul.parameters for matmul in matmuls)
