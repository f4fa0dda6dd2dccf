"""What attention would take as a fused kernel, as trainers run it on TPUs.

Rule: our step computes attention in blocks by XLA alone, so that it compiles anywhere; XLA runs these blocks several
times slower than a kernel that keeps them in vector memory, and tells no cycles of such kernels. So in estimates the
blocks' cycles give way to this price. Knows no program.
"""

from __future__ import annotations

from typing import Final

from meshwright.wire.model import ModelSpec, TrainingSpec

EFFICIENCY_RATIO: Final = 0.5
"""Of peak FLOP/s that fused attention reaches. Source: the check in compiler_probe of this project's material: six
published MaxText steps, "analytic flash attention at 50 % of peak"; FlashAttention-2 (arXiv:2307.08691) reports 50 to
73 % on A100."""

_PASSES: Final = {"none": 3.5, "minimal": 4.5, "full": 4.5}
"""Forward passes' worth of FLOPs: forward 1, backward 2.5 (five matmuls for two), and forward again under remat.
Source: Dao, FlashAttention-2, section 4.1."""


def count_attention_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """Returns the FLOPs of causal attention in one step of all devices, the backward pass and remat with it.

    Worked example: one layer of one head of 128, one sequence of 2048, remat none: 3.5 · 2 · 2048² · 128 FLOPs. Scores
    and values are 2 matmuls of 2·S²·h, of which causality leaves half.
    """
    pairs = training.global_batch * training.sequence_length**2
    width = model.num_attention_heads * model.head_size
    return _PASSES[training.remat] * 2.0 * pairs * width * model.num_hidden_layers


def price_attention(model: ModelSpec, training: TrainingSpec, *, device_count: int, flops_per_s: float) -> float:
    """Returns the seconds that fused attention takes of a step, spread evenly over devices of this peak."""
    return count_attention_flops(model, training) / device_count / (flops_per_s * EFFICIENCY_RATIO)
