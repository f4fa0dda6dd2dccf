"""What a framework holds in a step besides its state: which tensors of a layer, and how much more.

Rule: which tensors the backward pass needs is counted (`kept.csv`: elements a token, by framework and remat); what
nobody counts is a few constants (`memory.csv`), fitted or from a source, keyed by framework and platform. Sizes here
are of one layer and one token on one device; `memory` multiplies them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meshwright.planning.cost.layout import Layout, Numbers
from meshwright.planning.cost.step_time import Execution
from meshwright.planning.cost.work import Block, Work
from meshwright.topology.chips import read_cells

EXPERT_COUNTS: Final = ("place", "place_inner", "place_outputs", "returned")
"""Counts that a mixture of experts has: tokens at their places in experts, and on their way back."""


@dataclass(frozen=True)
class Keeping:
    """What a framework holds besides its state. Constants of `memory.csv`, counts of `kept.csv`.

    Attributes:
        layer: what the layer whose backward pass runs holds, in multiples of its activations.
        gathered: layers whose weights are whole at a time, where fsdp cuts them.
        logits_bytes: held for one logit, until its gradient is there.
        piece_tokens: positions of a sequence whose logits exist at a time; 0: all.
        score_bytes: held for one score of the layer whose backward pass runs, where attention is not fused.
        accumulated: gradients that are held a second time where passes are added up.
        weight_gradient_bytes: held for one element of the largest matmul's weight.
        activation: bytes that the allocator takes for one byte of kept activations.
        reserve_bytes: taken whatever runs: the runtime's context, buffers of communication libraries.
        kept: remat → count → elements a token, see `list_counts`; "layer": of the layer whose backward pass runs.
    """

    layer: float = 1.0
    gathered: float = 2.0
    logits_bytes: float = 4.0
    piece_tokens: float = 0.0
    score_bytes: float = 0.0
    accumulated: float = 0.0
    weight_gradient_bytes: float = 0.0
    activation: float = 1.0
    reserve_bytes: float = 0.0
    kept: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@functools.cache
def read_keepings() -> Mapping[tuple[str, str], Keeping]:
    """Returns what frameworks hold, by framework and platform."""
    kept: dict[str, dict[str, dict[str, float]]] = {}
    for row in read_cells("meshwright.planning.cost", "kept.csv"):
        kept.setdefault(row["practice"], {}).setdefault(row["remat"], {})[row["count"]] = float(row["elements"])
    values: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_cells("meshwright.planning.cost", "memory.csv"):
        known = values.setdefault((row["practice"], row["platform"]), {"kept": kept[row["practice"]]})
        known[row["name"]] = float(row["value"])
    return {key: Keeping(**found) for key, found in values.items()}


def list_counts(
    block: Block, work: Work, layout: Layout, execution: Execution, capacity_factor: Numbers
) -> dict[str, Any]:
    """Returns the elements a token, on one device, of each kind of tensor of a layer.

    Source: Korthikanti et al., arXiv:2205.05198, section 4 (what the tensor axis cuts, and the sequence with it).
    """
    tp, attention = layout.tp, block.attention
    return {
        "residual": work.hidden / (tp if execution.sequence_parallel else 1),
        "gathered": work.hidden,
        "query": attention.heads * attention.query_size / tp,
        "context": attention.heads * attention.value_size / tp,
        "fused_context": attention.heads * attention.value_size / tp if execution.fused_attention else 0.0,
        "pairs": attention.pair_elements / tp,
        "all_pairs": attention.pair_elements / tp * layout.cp,
        "sums": attention.heads / tp,
        "scores": 0.0 if execution.fused_attention else attention.heads * work.sequence_length / tp,
        "narrow": sum(matmul.outputs for matmul in block.matmuls if matmul.cut == "tokens"),
        "outputs": sum(matmul.outputs for matmul in block.matmuls if matmul.cut == "outputs") / tp,
        "inputs": sum(matmul.inputs for matmul in block.matmuls if matmul.cut == "inputs") / tp,
        "inner": (block.inner - _count_expert_inner(block)) / tp,
        **_list_expert_counts(block, work, layout, capacity_factor),
    }


def _list_expert_counts(block: Block, work: Work, layout: Layout, capacity_factor: Any) -> dict[str, Any]:
    if block.experts is None:
        return dict.fromkeys(EXPERT_COUNTS, 0.0)
    places = block.experts.chosen * capacity_factor
    return {
        "place": places * work.hidden,
        "place_inner": capacity_factor * _count_expert_inner(block) / layout.tp,
        "place_outputs": places * block.experts.matmuls[0].outputs / layout.tp,
        "returned": block.experts.chosen * work.hidden,
    }


def _count_expert_inner(block: Block) -> int:
    """Returns the elements that a token has inside its routed experts."""
    return block.experts.chosen * block.experts.matmuls[-1].inputs if block.experts else 0
