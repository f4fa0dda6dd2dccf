"""What a backward pass computes again: all but what is kept, and what nobody needs."""

from __future__ import annotations

import pytest

from meshwright.planning.cost.work import build_work, find_repeated
from meshwright.planning.models import read_model


def test_the_compiler_counts_as_many_flops_as_are_repeated() -> None:
    """Of 64B on 256 v5e: 2.005e15 a device, attention in full (tests/compiler/steps/estimates.jsonl)."""
    scale = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 64, "num_attention_heads": 64}
    work = build_work(read_model({**scale, "head_dim": 128, "vocab_size": 32000}), 2048)
    tokens, block = 2 * 2048, work.blocks[0]
    layers = block.count * sum(matmul.parameters for matmul in block.matmuls)
    scores = block.count * 4 * 2048 * 64 * 128
    once = 2 * layers + scores
    again = 2 * layers * find_repeated(work) + scores
    flops = tokens * (3 * once + again + 6 * work.head.parameters)
    assert flops == pytest.approx(2.0053e15, rel=0.01)
