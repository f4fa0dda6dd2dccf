"""Published runs as one type, whatever framework they come from: what ran, on what, laid out how, what was measured.

Rule: a `Run` is complete, or it is a `LeftOut` that says why. Seconds are those of one optimizer step. Knows no table
and no prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout
from meshwright.topology.chips import Chip, find_chip
from meshwright.wire.model import ModelSpec
from tests.accuracy.sets import Practice

ComputeDtype = Literal["bfloat16", "float16", "fp8", "mxfp8", "nvfp4"]
Recompute = Literal["none", "selective", "minimal", "full"]
"""none; selective: scores of attention alone; minimal: all but matmuls; full: each layer."""
Graphs = Literal["none", "part", "whole"]
Dispatcher = Literal["", "alltoall", "deepep", "hybridep"]
MemoryKind = Literal["", "allocated", "reserved", "calculated", "compiler", "not told"]
"""What a peak is: the allocator's count of tensors, what it took from the driver, a paper's formula, XLA's word."""
Attention = Literal["flash", "scores"]
"""Blocks of queries and keys in one kernel; or the whole matrix of scores, kept or computed again."""

REMATS: Final[dict[Recompute, int]] = {
    "none": REMAT_NONE,
    "selective": REMAT_NONE,
    "minimal": REMAT_MINIMAL,
    "full": REMAT_FULL,
}
"""What a `Layout` calls it. Scores that a fused kernel never keeps cost no layout anything."""


@dataclass(frozen=True, eq=False)
class Run:
    """One published run. Two are the same where they are one object.

    Attributes:
        set_name: which set: "maxtext", "llm-foundry", "vtrain-single", ….
        id: of the row, in its set.
        model: what was trained; without a name, as nothing may be looked up by it.
        target: the hardware as requests name it: "2*v5p:4x4x4", "48*a100:8".
        chip: what it is made of, as `find_chip` knows it.
        devices: JAX devices or GPUs.
        hosts: machines with chips.
        granules: slices of TPUs or hosts of GPUs: the target's first number.
        layout: axes, micro-batches and remat.
        sequence_length: tokens.
        compute_dtype: of the matmuls.
        attention: how it is computed.
        first_moment_dtype: of AdamW.
        practice: whose step it is.
        zero_stage: 0 to 3: what of the state is split over data-parallel parts (1: optimizer, 2: and gradients, 3: and
            weights).
        sequence_parallel: whether the tensor axis splits what lies between matmuls too.
        recompute: what the backward pass computes again, the nearest of four.
        published_recompute: as the source calls it.
        edge_layers: layers for which embedding and head count when stages are cut: 2, or 0.
        step_s: seconds of a step; None: not told.
        step_basis: what they come from: "published", "FLOP/s" or "tokens/s"; empty: none told.
        peak_bytes: of the fullest device; None: not told.
        memory_kind: what that peak is.
        oom: whether it ran out of memory; None: not told.
        fold: what is left out together when a fit is judged.
        group: what is ranked together.
        note, source: what else is to be known; where it was published.
        network_bytes_per_s: a device's share of its host's NICs, one way, where it is not the chip table's.
        graphs: which of its kernels a CUDA graph starts: "none", "part" of a layer's, or the "whole" step.
        dispatcher: what brings tokens to their experts; empty: there are none, or nobody says.
        expert_overlap: whether that runs beside the compute of another micro-batch.
        drops_tokens: whether experts have a fixed capacity, so that no host waits for how many tokens they get.
    """

    set_name: str
    id: str
    model: ModelSpec
    target: str
    chip: str
    devices: int
    hosts: int
    granules: int
    layout: Layout
    sequence_length: int
    compute_dtype: ComputeDtype
    attention: Attention
    first_moment_dtype: Literal["float32", "bfloat16"]
    practice: Practice
    zero_stage: int
    sequence_parallel: bool
    recompute: Recompute
    published_recompute: str
    edge_layers: int
    step_s: float | None
    step_basis: str
    peak_bytes: int | None
    memory_kind: MemoryKind
    oom: bool | None
    fold: str
    group: str
    note: str
    source: str
    network_bytes_per_s: float | None = None
    graphs: Graphs = "none"
    dispatcher: Dispatcher = ""
    expert_overlap: bool = False
    drops_tokens: bool = False

    @property
    def global_batch(self) -> int:
        """Sequences in one step."""
        return int(self.layout.global_batch)

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.global_batch * self.sequence_length

    def find_chip(self) -> Chip:
        """Returns the chip's row of the table."""
        chip = find_chip(self.chip)
        assert chip is not None, f"{self.id}: no chip {self.chip}"
        return chip


@dataclass(frozen=True)
class LeftOut:
    """A row that is no `Run`, and why."""

    set_name: str
    id: str
    reason: str
    source: str
