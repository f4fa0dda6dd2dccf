"""What a model computes: matmuls, attention, parameters, layer by layer."""

from __future__ import annotations

import pytest

from meshwright.errors import NotCompiledError
from meshwright.planning.cost.work import build_work
from meshwright.planning.models import read_model, read_presets
from meshwright.planning.tensors import count_parameters
from meshwright.wire.model import ModelSpec

DENSE = ModelSpec(
    vocab_size=1000, hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2,
)  # fmt: skip


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
        assert work.parameters + count_final_norm(model) == count, model.name
        assert all(block.other_parameters >= 0 for block in work.blocks), model.name
        assert work.layers == model.num_hidden_layers, model.name


def test_gpt_has_six_flops_a_parameter_and_causal_attention() -> None:
    work = build_work(read_model("llama2-7b"), 4096)
    weights = work.parameters - work.embedding_parameters - 32 * 2 * 4096

    attention = 3 * 2 * 32 * 2 * 4096 * (4097 / 2)
    assert work.flops_per_token == pytest.approx(6 * weights + attention)


def test_a_kernel_on_tpus_takes_whole_blocks_of_windows_and_pads_small_heads() -> None:
    found = build_work(read_model("gpt-oss-120b"), 8192).blocks[0].attention  # half of its layers have windows of 128
    assert found.blocks == pytest.approx((4096.5 + 2 * 512) / 2)
    assert found.kernel_flops_per_token == pytest.approx(2 * 64 * (128 + 128) * found.blocks)
    plain = build_work(read_model("llama2-7b"), 4096).blocks[0].attention
    assert plain.kernel_flops_per_token == plain.flops_per_token


@pytest.mark.parametrize(("fields", "length", "context"), [
    ({"sliding_window": 4}, 8, (1 + 2 + 3 + 4 * 5) / 8), ({"sliding_window": 16}, 8, 4.5),
    ({"attention_chunk_size": 4}, 8, 2.5), ({"sliding_window": 4, "num_window_layers": 2}, 8, (2 * 26 / 8 + 4.5) / 3),
], ids=["window", "window longer than the sequence", "chunks", "every third layer sees all"])  # fmt: skip
def test_windows_leave_keys_out(fields: dict[str, int], length: int, context: float) -> None:
    (block,) = build_work(DENSE.model_copy(update=fields), length).blocks

    assert block.attention.context == pytest.approx(context)
    assert block.attention.length == length
