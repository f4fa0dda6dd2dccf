"""Which models can be described and not compiled: told by the field, and before any compiler is asked."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import check_expressible, find_inexpressible
from meshwright.planning.models import read_model, read_presets
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN

MIXTURE: dict[str, Any] = {**PLAIN, "num_experts": 4, "num_experts_per_tok": 2, "num_shared_experts": 1}
LATENT = {"kv_lora_rank": 32, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
LENGTH = 64


def list_fields(model: ModelSpec, seq_len: int = LENGTH) -> list[str]:
    return [name for name, _ in find_inexpressible(model, seq_len)]


NOT_IN_THE_STEP: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    (PLAIN, [
        LATENT, {"qk_norm_scale": "all_heads", "qk_norm": True}, {"qk_norm_scale": "none", "qk_norm": True},
        {"attention_sinks": True}, {"attn_logit_softcapping": 50.0}, {"final_logit_softcapping": 30.0},
        {"sliding_window": LENGTH - 1}, {"attention_chunk_size": LENGTH - 1}, {"pre_norms": False},
        {"post_attention_norm": True}, {"post_feedforward_norm": True}, {"use_parallel_residual": True},
    ]),
    (MIXTURE, [
        {"num_expert_layers": 1}, {"expert_bias": True}, {"router_bias": True},
        {"shared_expert_intermediate_size": 96}, {"shared_expert_gate": True},
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("base", "fields"), [(base, each) for base, fields in NOT_IN_THE_STEP for each in fields])
def test_what_the_step_has_not_is_named_by_its_field(base: dict[str, Any], fields: dict[str, Any]) -> None:
    model, named = read_model(base | fields), next(iter(fields))
    assert list_fields(model) == [named]
    with pytest.raises(NotCompiledError, match=rf"the model has {named} \("):
        check_expressible(model, LENGTH)


def test_of_the_presets_these_are_compiled() -> None:
    """As many as before the others could be described: those that the step has no field against."""
    described = [preset for preset in read_presets() if not preset.unsupported]
    compiled = [preset.name for preset in described if not list_fields(preset.model, 4096)]
    assert len(described) == 85
    assert len(compiled) == 59
    others = ("deepseek", "gemma2", "gemma3", "gemma4", "gpt-oss", "llama4", "olmo")
    assert not [name for name in compiled if name.startswith(others)]
