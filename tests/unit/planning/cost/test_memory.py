"""Bytes of a step by part: hand counts, published formulas, and what may never shrink or grow."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.planning.cost.layout import REMAT_FULL, REMAT_MINIMAL, REMAT_NONE, Layout
from meshwright.planning.cost.memory import (
    Circumstances,
    Keeping,
    MemoryParts,
    State,
    price_memory,
    price_stages,
    read_keepings,
)
from meshwright.planning.cost.step_time import Execution
from meshwright.planning.cost.work import Work, build_work
from meshwright.planning.models import read_model

GIB = 2**30
XLA = read_keepings()["xla", "tpu"]
KORTHIKANTI = read_keepings()["megatron-lm-2021", "gpu"]
LLAMA = build_work(read_model("llama2-7b"), 4096)
LLAMA_PARAMETERS = 6_738_415_616 - 4096
"""Published, without the norm behind all layers, which `Work` leaves out."""


def build_gpt(hidden: int, heads: int, layers: int, length: int = 2048) -> Work:
    """Returns a GPT with a feed-forward of 4 × hidden, as Korthikanti et al. have them."""
    return build_work(
        read_model(
            {
                "vocab_size": 51200,
                "hidden_size": hidden,
                "intermediate_size": 4 * hidden,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "gated": False,
                "activation": "gelu",
                "norm": "layernorm",
                "tie_word_embeddings": True,
            }
        ),
        length,
    )


def price(work: Work = LLAMA, state: State | None = None, keeping: Keeping = XLA, **axes: Any) -> MemoryParts:
    """Returns the parts of a step with these axes."""
    return price_memory(work, Layout(**axes), state or State(), keeping)


# ---- state ---------------------------------------------------------------------------------------------


def test_state_of_seven_billion_parameters_over_four_devices() -> None:
    parts = price(fsdp=4)
    assert parts.parameters == LLAMA_PARAMETERS * 4 / 4
    assert parts.gradients == LLAMA_PARAMETERS * 4 / 4
    assert parts.optimizer == LLAMA_PARAMETERS * 8 / 4
    assert parts.parameters + parts.gradients + parts.optimizer == LLAMA_PARAMETERS * 16 / 4


@pytest.mark.parametrize(
    ("stage", "bytes_a_parameter"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)], ids=str
)
def test_stages_of_zero_cut_over_copies(stage: int, bytes_a_parameter: float) -> None:
    parts = price(state=State(2, 4, 12, zero_stage=stage, is_spread=False), dp=8)
    assert parts.parameters + parts.gradients + parts.optimizer == pytest.approx(LLAMA_PARAMETERS * bytes_a_parameter)


# ---- activations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "heads", "layers", "pp", "interleave", "micro_batch", "gib"),
    [
        (6144, 64, 48, 1, 1, 4, 9.56),
        (12288, 96, 96, 8, 3, 1, 12.35),
        (20480, 128, 105, 35, 3, 1, 23.08),
        (25600, 160, 128, 64, 1, 1, 26.56),
    ],
)
def test_activations_of_korthikanti(
    hidden: int, heads: int, layers: int, pp: int, interleave: int, micro_batch: int, gib: float
) -> None:
    """Figure 1 of arXiv:2205.05198: sequence parallel, scores recomputed, tensor axis of 8."""
    layout = Layout(tp=8, pp=pp, interleave=interleave, micro_batch=micro_batch, passes=512, remat=REMAT_NONE)
    first, *_ = price_stages(build_gpt(hidden, heads, layers), layout, State(2, 4, 12), _without_fit(KORTHIKANTI))
    assert first.activations / GIB == pytest.approx(gib, rel=2e-3)


def test_activations_of_korthikanti_with_scores() -> None:
    """s·b·h·(10 + 24 ÷ t + 5·a·s ÷ (h·t)) bytes a layer: tensor parallel alone."""
    work, layout = build_gpt(6144, 64, 48), Layout(tp=8, micro_batch=4, remat=REMAT_NONE)
    execution = Execution(sequence_parallel=False, fused_attention=False)
    parts = price_memory(work, layout, State(), _without_fit(KORTHIKANTI), execution)
    assert parts.activations == pytest.approx(48 * 2048 * 4 * 6144 * (10 + 24 / 8 + 5 * 64 * 2048 / (6144 * 8)))


def _without_fit(keeping: Keeping) -> Keeping:
    return replace(keeping, activation=1.0, reserve_bytes=0.0)


def test_last_stage_has_the_experts_where_dense_layers_come_first() -> None:
    work = build_work(read_model("deepseek2-16b"), 4096)
    dense, experts = work.blocks
    first, _, last = price_stages(work, Layout(pp=3, passes=8), State(), XLA)
    each = experts.dense_parameters + experts.expert_parameters
    assert last.parameters == 4 * (9 * each + work.head.parameters)
    ends = dense.count * dense.dense_parameters + work.embedding_parameters
    assert first.parameters == 4 * ((9 - dense.count) * each + ends)
    mixed = price_stages(work, Layout(pp=3, passes=8), State(), XLA, more=Circumstances(is_in_order=False))
    assert mixed[2].parameters < last.parameters


# ---- what lives for a while ----------------------------------------------------------------------------


def test_gathered_layers_where_fsdp_cuts_weights() -> None:
    layer = LLAMA.blocks[0].dense_parameters
    assert price(dp=8).gathered == 0
    assert price(fsdp=4, tp=2).gathered == pytest.approx(XLA.gathered * 2 * layer / 2)
    kept = price_memory(LLAMA, Layout(fsdp=8), State(), XLA, Execution(weights_kept=True))
    assert kept.gathered == LLAMA_PARAMETERS * (2 + 4)


# ---- all of it -----------------------------------------------------------------------------------------

SIZES = st.sampled_from([1, 2, 4, 8])


@given(fsdp=SIZES, tp=SIZES, cp=SIZES, micro_batch=SIZES, remat=st.sampled_from([REMAT_NONE, REMAT_FULL]))
def test_more_devices_never_need_more_and_larger_batches_never_less(**axes: Any) -> None:
    total = price(**axes).total_bytes
    assert price(**{**axes, "micro_batch": 2 * axes["micro_batch"]}).total_bytes > total
    assert price(**{**axes, "tp": 2 * axes["tp"]}).total_bytes < total
    assert price(**{**axes, "cp": 2 * axes["cp"]}).total_bytes <= total
    if axes["fsdp"] > 1:
        assert price(**{**axes, "fsdp": 2 * axes["fsdp"]}).total_bytes < total


@given(fsdp=SIZES, tp=SIZES, pp=SIZES, micro_batch=SIZES)
def test_remat_that_keeps_less_needs_less(**axes: Any) -> None:
    none, minimal, full = (
        price(**axes, passes=8, remat=remat).total_bytes for remat in (REMAT_NONE, REMAT_MINIMAL, REMAT_FULL)
    )
    assert none > minimal > full


@given(st.lists(st.tuples(SIZES, SIZES, SIZES, SIZES, st.sampled_from([0, 1, 2])), min_size=1, max_size=8))
def test_many_candidates_are_priced_as_one_by_one(rows: list[tuple[int, ...]]) -> None:
    names = ("fsdp", "tp", "pp", "micro_batch", "remat")
    columns: dict[str, Any] = {
        name: np.asarray(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    together = price(**columns, passes=4)
    for place, row in enumerate(rows):
        axes: dict[str, Any] = dict(zip(names, row, strict=True))
        alone = price(**axes, passes=4)
        for part in fields(MemoryParts):
            values = np.broadcast_to(getattr(together, part.name), len(rows))
            assert values[place] == pytest.approx(getattr(alone, part.name)), part.name


def test_fits_up_to_the_last_byte() -> None:
    parts = price(fsdp=np.asarray([1, 64]))
    assert list(parts.fit(20 * GIB)) == [False, True]
    assert price(fsdp=64).fit(price(fsdp=64).total_bytes)
