"""Every candidate of a search is legal, none that is legal is missed, and sizes that were left out are told."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshwright.errors import RequestError
from meshwright.planning.cost.spans import AXES
from meshwright.planning.models import read_model
from meshwright.planning.parallelism import check_divides, list_divisors
from meshwright.planning.search.candidates import CONTEXT_LEAST, UNEQUAL_MOST, Bounds, Space, list_space
from meshwright.wire.model import ModelSpec, TrainingSpec

LLAMA = read_model("llama3-8b")
MIXTRAL = read_model("mixtral-8x7b")
DENSE_FIRST = {
    "num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 1001, "moe_intermediate_size": 14336,
    "num_expert_layers": 30,
}  # fmt: skip
WIDE = DENSE_FIRST | {"intermediate_size": 14336}


def list_rows(space: Space) -> list[dict[str, int]]:
    names = (*AXES, "micro_batch_size", "gradient_accumulation_steps", "remat")
    columns = {name: np.broadcast_to(np.asarray(getattr(space.layout, name)), (space.size,)) for name in names}
    return [{name: int(columns[name][row]) for name in names} for row in range(space.size)]


WIDTHS = st.sampled_from([1001, 1026, 1536, 1792])


@st.composite
def uneven_models(draw: st.DrawFn) -> ModelSpec:
    """Real models, some sizes of which are cut by fewer tensor axes than the others are."""
    model = draw(st.sampled_from([LLAMA, MIXTRAL, read_model("deepseek2-16b")]))
    fields: dict[str, Any] = {
        "intermediate_size": draw(WIDTHS),
        "vocab_size": draw(st.sampled_from([32_000, 32_006, 50_257])),
        "num_hidden_layers": draw(st.sampled_from([4, 6, 7])),
    }
    if model.num_experts is not None:
        fields |= {
            "moe_intermediate_size": draw(st.none() | WIDTHS),
            "num_expert_layers": draw(st.integers(1, fields["num_hidden_layers"])),
            "num_shared_experts": draw(st.integers(0, 2)),
        }
        fields["shared_expert_intermediate_size"] = draw(st.none() | WIDTHS) if fields["num_shared_experts"] else None
    return model.model_copy(update=fields)


@given(model=uneven_models(), devices=st.sampled_from([8, 12, 16, 24]), batch=st.sampled_from([12, 16, 48]))
@example(model=LLAMA, devices=16, batch=48)
@example(model=MIXTRAL, devices=24, batch=48)
@example(model=MIXTRAL.model_copy(update=DENSE_FIRST), devices=16, batch=16)
@settings(max_examples=60)
def test_candidates_are_exactly_the_meshes_that_pass_the_check(model: ModelSpec, devices: int, batch: int) -> None:
    training = TrainingSpec(global_batch_size=batch, seq_len=4096)
    found = {tuple(row[axis] for axis in AXES) for row in list_rows(list_space(devices, model, training, Bounds()))}
    legal = set()
    for sizes in list_shapes(devices):
        shape = dict(zip(AXES, sizes, strict=True))
        fullest = math.ceil(model.num_hidden_layers / shape["pp"]) * shape["pp"] / model.num_hidden_layers
        if training.seq_len // shape["cp"] >= CONTEXT_LEAST and fullest <= 1 + UNEQUAL_MOST:
            with contextlib.suppress(RequestError):
                check_divides(model, training, shape)
                legal.add(sizes)
    assert found == legal


@functools.cache
def list_shapes(devices: int) -> list[tuple[int, ...]]:
    shapes = itertools.product(list_divisors(devices), repeat=len(AXES))
    return [sizes for sizes in shapes if math.prod(sizes) == devices]


@pytest.mark.parametrize(("changes", "words"), [
    ({"num_hidden_layers": 7}, "pp:8 is more than num_hidden_layers 7"),
    ({"vocab_size": 50257}, "tp:2 does not divide vocab_size 50257"),
    ({"hidden_size": 4100, "head_dim": 128}, "fsdp:8 does not divide hidden_size 4100"),
    (DENSE_FIRST, "tp:4 does not divide intermediate_size 1001"),
    (WIDE | {"moe_intermediate_size": 1001}, "tp:2 does not divide moe_intermediate_size 1001"),
    (WIDE | {"num_shared_experts": 1, "shared_expert_intermediate_size": 1003},
     "tp:2 does not divide shared_expert_intermediate_size 1003"),
])  # fmt: skip
def test_a_size_that_a_rule_keeps_out_is_told_with_it(changes: dict[str, Any], words: str) -> None:
    model = LLAMA.model_copy(update=changes)
    space = list_space(8, model, TrainingSpec(global_batch_size=8), Bounds())
    assert words in [left.rule for left in space.left]
    assert space.size


@pytest.mark.parametrize(("steps", "micro_batches"), [(1, {60}), (None, {1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60})])
def test_the_micro_batches_are_those_of_each_part_of_the_batch(steps: int | None, micro_batches: set[int]) -> None:
    training = TrainingSpec(global_batch_size=960, seq_len=1024)
    space = list_space(16, LLAMA, training, Bounds(axes={"fsdp": 16}, gradient_accumulation_steps=steps))
    assert {row["micro_batch_size"] for row in list_rows(space)} == micro_batches
