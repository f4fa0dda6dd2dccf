"""What fused attention costs, against the papers' counts."""

from __future__ import annotations

from meshwright.compiling.report import count_attention_flops
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.unit.planning.models import PLAIN

MODEL = ModelSpec(**{**PLAIN, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 128})
TRAINING = TrainingSpec(global_batch_size=1, seq_len=2048, remat="none")


def test_flops_are_those_of_the_worked_example() -> None:
    # Scores and values: 2 matmuls of 2·S²·h, half of it masked; the backward pass has 5 matmuls for these 2.
    forward = 2 * 2 * 2048**2 * 128 / 2
    assert count_attention_flops(MODEL, TRAINING) == forward * (1 + 5 / 2)
