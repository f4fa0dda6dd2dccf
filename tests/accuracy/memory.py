"""Peak memory of published runs and of our own compiled step, by the planner's cost model with its tables' constants.

Rule: what a framework does with its state is known and stands here with its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from meshwright.planning.cost.layout import REMAT_NONE
from meshwright.planning.cost.memory import Circumstances, MemoryParts, State, build_state, price_stages, read_keepings
from meshwright.planning.cost.step_time import Execution
from meshwright.planning.cost.work import build_work
from tests.accuracy.peaks import Peak
from tests.accuracy.run import Run

_STATES: Final[Mapping[str, State]] = {
    "megatron-core": State(2, 4, 12, is_spread=False),
    "torchtitan": State(4, 4, 8),
    "megatron-lm-2021": State(2, 4, 12, is_spread=False),
    "deepspeed-float16": State(2, 2, 16, is_spread=False),
    "deepspeed-bfloat16": State(2, 6, 12, is_spread=False),
}
"""Bytes a parameter.

Source: Korthikanti et al. (18 in all) and Megatron-LM's docs/source/api-guide/dist_optimizer (2 and 4 whole, 12 cut);
PyTorch's FSDP2 (float32 weights, gradients and moments, all cut); DeepSpeed's runtime/zero/stage_1_and_2.py (float16:
a float32 copy of the part's gradients) and runtime/bf16_optimizer.py (all gradients in float32 too)."""


def price_peak(peak: Peak) -> float:
    """Returns the predicted bytes of the fullest device of a compiled case."""
    model, training = peak.case.model, peak.case.training
    work, state = build_work(model, training.sequence_length), build_state(training)
    execution = Execution(fused_attention=training.attention == "flash")
    # Our own step leaves learned positions whole.
    positions = (model.max_position_embeddings or 0) * model.hidden_size if model.positions == "learned" else 0
    more = Circumstances(training.capacity_factor, whole_parameters=positions)
    return find_fullest(price_stages(work, peak.layout, state, read_keepings()["xla", peak.platform], execution, more))


def price_run_memory(run: Run) -> float:
    """Returns the predicted bytes of the fullest device of a published run."""
    work = build_work(run.model, run.sequence_length)
    layout = replace(run.layout, remat=REMAT_NONE) if run.recompute == "selective" else run.layout
    execution = Execution(
        sequence_parallel=run.sequence_parallel,
        fused_attention=run.practice != "megatron-lm-2021" or run.recompute == "selective",
        weights_kept=run.practice == "torchtitan" and run.layout.pp != 1,
    )
    keeping, more = read_keepings()[run.practice, "gpu"], Circumstances(1.0, edge_layers=run.edge_layers)
    return find_fullest(price_stages(work, layout, find_state(run), keeping, execution, more))


def find_fullest(stages: Sequence[MemoryParts]) -> float:
    """Returns the bytes of the fullest stage."""
    return max(float(stage.total_bytes) for stage in stages)


def find_state(run: Run) -> State:
    """Returns what a run's framework keeps; DeepSpeed's, of BLOOM, by its type."""
    name = f"deepspeed-{run.compute_dtype}" if run.set_name == "bloom" else run.practice
    return replace(_STATES[name], zero_stage=run.zero_stage)
