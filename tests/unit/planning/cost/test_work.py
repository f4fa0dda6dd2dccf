"""What a model computes: matmuls, attention, parameters, layer by layer."""

from __future__ import annotations

import pytest

from meshwright.errors import NotCompiledError
from meshwright.planning.cost.work import MatmulShape, build_work
from meshwright.planning.models import read_model, read_presets
from meshwright.planning.tensors import count_parameters
from meshwright.wire.model import ModelSpec

DENSE = ModelSpec(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def list_models() -> list[ModelSpec]:
    found: list[ModelSpec] = []
    for preset in read_presets():
        try:
            found.append(read_model(preset.name))
        except NotCompiledError:
            continue
    return found


def count_final_norm(model: ModelSpec) -> int:
    return model.hidden_size * (1 if model.norm == "rmsnorm" else 2)


def test_every_preset_has_the_parameters_that_are_counted() -> None:
    models = list_models()
    assert len(models) > 60
    for model in models:
        work, count = build_work(model, 4096), count_parameters(model)
        assert work.parameters + count_final_norm(model) == count.total, model.name
        assert all(block.other_parameters >= 0 for block in work.blocks), model.name
        assert work.layers == model.num_hidden_layers, model.name


def test_a_dense_layer_has_its_four_matmuls() -> None:
    (block,) = build_work(DENSE, 8).blocks

    assert block.count == 3
    assert block.matmuls == (
        MatmulShape(64, 64 + 2 * 32, "outputs"),
        MatmulShape(64, 64, "inputs"),
        MatmulShape(64, 512, "outputs"),
        MatmulShape(256, 64, "inputs"),
    )
    assert block.attention.context == 4.5
    assert block.flops_per_token == 2 * (64 * 128 + 64 * 64 + 64 * 512 + 256 * 64) + 2 * 4 * 32 * 4.5


def test_gpt_has_six_flops_a_parameter_and_causal_attention() -> None:
    work = build_work(read_model("llama2-7b"), 4096)
    weights = work.parameters - work.embedding_parameters - 32 * 2 * 4096

    attention = 3 * 2 * 32 * 2 * 4096 * (4097 / 2)
    assert work.flops_per_token == pytest.approx(6 * weights + attention)


@pytest.mark.parametrize(
    ("fields", "length", "context"),
    [
        ({"sliding_window": 4}, 8, (1 + 2 + 3 + 4 * 5) / 8),
        ({"sliding_window": 16}, 8, 4.5),
        ({"attention_chunk_size": 4}, 8, 2.5),
        ({"sliding_window": 4, "num_window_layers": 2}, 8, (2 * 26 / 8 + 4.5) / 3),
    ],
    ids=["window", "window longer than the sequence", "chunks", "every third layer sees all"],
)
def test_windows_leave_keys_out(fields: dict[str, int], length: int, context: float) -> None:
    (block,) = build_work(DENSE.model_copy(update=fields), length).blocks

    assert block.attention.context == pytest.approx(context)
    assert block.attention.length == length


def test_experts_are_apart_from_what_every_token_goes_through() -> None:
    model = DENSE.model_copy(
        update={
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "num_shared_experts": 1,
            "num_expert_layers": 2,
        }
    )
    dense, sparse = build_work(model, 8).blocks

    assert (dense.count, dense.experts) == (1, None)
    assert sparse.count == 2
    assert sparse.experts is not None
    assert (sparse.experts.count, sparse.experts.chosen) == (8, 2)
    assert sparse.expert_parameters == 8 * 3 * 64 * 32
    assert sparse.matmuls[2:] == (MatmulShape(64, 64, "outputs"), MatmulShape(32, 64, "inputs"))
    assert sparse.inner == 3 * 32


def test_latent_attention_goes_through_narrow_matrices() -> None:
    work = build_work(read_model("deepseek3-671b"), 4096)
    dense, sparse = work.blocks

    assert (dense.count, sparse.count) == (3, 58)
    assert [matmul.cut for matmul in dense.matmuls[:5]] == ["tokens", "outputs", "tokens", "outputs", "inputs"]
    assert dense.matmuls[0] == MatmulShape(7168, 1536, "tokens")
    assert dense.attention.query_size == 192
    assert dense.attention.value_size == 128
