"""MaxText's command line: flags by its names, what they cannot say as comments, and refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InvalidRequestError
from meshwright.planning.models import find_preset
from tests.fakes.asking import ask_planner
from tests.unit.planning.exports.asking import EXPERTS, TINY, export, make_plan

LLAMA: dict[str, Any] = {
    "model": "llama3-70b", "target": "8*h100:8", "training": {"seq_len": 8192, "global_batch_size": 256},
}  # fmt: skip


def read_flags(text: str) -> dict[str, str]:
    """Returns the flags of the command, as a shell would hand them over."""
    command = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    words = shlex.split(command)
    assert words[:3] == ["python3", "-m", "maxtext.trainers.pre_train.train"]
    return {name: value for name, _, value in (word.partition("=") for word in words[3:])}


def read_notes(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("# Not said by flags: "))


ONE: dict[str, Any] = {"global_batch_size": 1, "seq_len": 98}


def cut(parts: int) -> dict[str, Any]:
    """Returns a model that this many parts of a tensor axis divide."""
    sizes = {"num_attention_heads": parts, "intermediate_size": 2 * parts, "vocab_size": 2 * parts}
    return {**TINY, "head_dim": 8, **sizes}


def test_a_batch_that_no_float_holds_is_rounded_so_that_none_is_lost() -> None:
    # 1 sequence on 49 devices: 49 · (1/49) is 0.9999999999999999, of which MaxText would make none.
    assert int(49 * (1 / 49)) == 0
    flags = read_flags(export("maxtext", mesh="tp:49", target="cpu:49", model=cut(49), training=ONE))
    assert int(49 * float(flags["per_device_batch_size"])) == 1


@pytest.mark.parametrize("name", ["deepseek3-671b", "gemma3-4b", "gpt-oss-20b", "llama4-17b-128e", "qwen3-30b-a3b"])
def test_a_model_is_named_as_maxtext_names_it_also_where_its_config_is_given(name: str) -> None:
    config = json.loads((Path(__file__).parents[3] / "recorded" / "configs" / f"{name}.json").read_text())
    asked: dict[str, Any] = {
        "target": "8*h100:8",
        "training": {"seq_len": 4096, "global_batch_size": 64, "attention": "xla"},
    }
    text = export("maxtext", model=config, mesh="fsdp:64", **asked)
    assert read_flags(text)["model_name"] == name
    assert f"# Not said by flags: the model's name; MaxText's {name} has the same dimensions" in text
    config.get("text_config", config)["vocab_size"] = 1024
    assert "model_name" not in read_flags(export("maxtext", model=config, mesh="fsdp:64", **asked))


def test_of_models_of_the_same_dimensions_that_of_the_context_is_named() -> None:
    config = json.loads((Path(__file__).parents[3] / "recorded" / "configs" / "llama3-8b.json").read_text())
    for context, name in ((8192, "llama3-8b"), (131072, "llama3.1-8b"), (None, "llama3-8b")):
        text = export("maxtext", model={**config, "max_position_embeddings": context}, mesh="dp:8")
        assert read_flags(text)["model_name"] == name


def test_a_pipeline_whose_stages_differ_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="3 stages do not divide the 80 layers") as refused:
        export("maxtext", **{**LLAMA, "target": "3*h100:8"}, mesh="pp:3,tp:8")
    assert "2, 4 or 8 stages" in refused.value.hint  # of 24 devices: 5 stages, which divide the layers, are no mesh
    with pytest.raises(InvalidRequestError, match="3 stages") as refused:
        export("maxtext", mesh="pp:3", target="3*h100:1")
    assert refused.value.hint == "leave out the pipeline"


@pytest.mark.parametrize(("model", "mesh", "stages"), [
    ("gemma2-9b", "pp:3,fsdp:8", None),  # MaxText's 21 layers are pairs
    ("gemma2-9b", "pp:2,fsdp:8", "3 or 7"),
    ("deepseek2-16b", "pp:2,fsdp:8", None),  # of its 27 layers 26 have experts
    ("deepseek2-16b", "pp:3,fsdp:8", "2"),
])  # fmt: skip
def test_stages_divide_the_layers_that_maxtext_cuts(model: str, mesh: str, stages: str | None) -> None:
    asked: Any = {"model": model, "target": "v5p:4x4x12", "devices": {"count": 24 if "3" in mesh else 16}}
    asked["training"] = {"seq_len": 4096, "global_batch_size": 96, "gradient_accumulation_steps": 6}
    if stages is None:
        assert f"ici_pipeline_parallelism={mesh[3]}" in export("maxtext", mesh=mesh, **asked)
        return
    with pytest.raises(InvalidRequestError, match="layers that MaxText cuts"):
        export("maxtext", mesh=mesh, **asked)


@pytest.mark.parametrize(("model", "mesh", "said"), [
    ("gpt-oss-20b", "fsdp:16", "no attention sinks in cudnn_flash_te"),
    ("gemma2-9b", "fsdp:8,cp:2", "no windows on context axes in cudnn_flash_te"),
])  # fmt: skip
def test_what_the_kernel_for_gpus_does_not_do_is_refused_and_dot_product_does_it(
    model: str, mesh: str, said: str
) -> None:
    asked: Any = {"model": model, "target": "2*h100:8", "mesh": mesh}
    training = {"seq_len": 4096, "global_batch_size": 64}
    with pytest.raises(InvalidRequestError, match=said):
        export("maxtext", **asked, training=training)
    text = export("maxtext", **asked, training={**training, "attention": "xla"})
    assert read_flags(text)["attention"] == "dot_product"


def test_a_cap_on_scores_that_the_kernel_for_gpus_has_not_is_told() -> None:
    asked: Any = {"model": "gemma2-9b", "training": {"seq_len": 4096, "global_batch_size": 64}, "mesh": "fsdp:16"}
    assert "attn_logit_softcapping" in str(read_notes(export("maxtext", target="2*h100:8", **asked)))
    assert "attn_logit_softcapping" not in str(read_notes(export("maxtext", target="v5p:2x2x4", **asked)))


@pytest.mark.parametrize(("mesh", "length", "flag"), [
    ("fsdp:4,cp:4", 4096, None), ("fsdp:2,cp:8", 4096, None), ("dp:4,cp:3", 13824, "false"), ("fsdp:16", 4608, None),
])  # fmt: skip
def test_sequences_are_not_balanced_over_context_axes_where_their_pieces_differ(
    mesh: str, length: int, flag: str | None
) -> None:
    training, count = {"seq_len": length, "global_batch_size": 16}, 12 if "cp:3" in mesh else 16
    text = export(
        "maxtext", mesh=mesh, model="gemma-7b", target="v5p:4x4x12", devices={"count": count}, training=training
    )
    assert read_flags(text).get("context_parallel_load_balance") == flag


def test_the_runs_of_a_pipeline_are_accumulation_steps_and_share_its_micro_batches() -> None:
    asked: Any = {"model": "llama3-8b", "target": "h100:8", "exports": ["maxtext"]}
    (made,) = ask_planner(**asked, mesh="pp:2,fsdp:4", training={"seq_len": 8192, "global_batch_size": 32}).plans
    flags, schedule = read_flags(made.exports["maxtext"]), made.schedule
    assert schedule is not None
    assert (schedule.gradient_accumulation_steps, schedule.pipeline_runs) == (8, 4)
    assert (flags["gradient_accumulation_steps"], flags["num_pipeline_microbatches"]) == ("4", "2")
    assert flags["per_device_batch_size"] == "1"  # 2 micro-batches of a sequence for each of 4 parts, on 8 devices


def test_a_pipeline_whose_micro_batches_do_not_fill_its_stages_is_refused() -> None:
    training = {**LLAMA["training"], "gradient_accumulation_steps": 4}
    with pytest.raises(InvalidRequestError, match="4 micro-batches are not a multiple of the 8 stages") as refused:
        export("maxtext", **{**LLAMA, "training": training}, mesh="pp:8,tp:8")
    assert refused.value.hint == "use gradient_accumulation_steps 8, 16 or 32"
    training = {"global_batch_size": 62, "gradient_accumulation_steps": 1}
    with pytest.raises(InvalidRequestError, match="1 micro-batches") as refused:
        export("maxtext", mesh="pp:4,dp:2", target="h100:8", training=training)
    assert refused.value.hint == "use a global_batch_size that is a multiple of 8"  # none divides 31 sequences


def test_heads_of_keys_and_values_are_not_repeated() -> None:
    fields = {"model": "llama3.1-405b", "target": "v6e:16x16", "training": LLAMA["training"]}
    with pytest.raises(InvalidRequestError, match="tp:32 does not divide num_key_value_heads 8") as refused:
        export("maxtext", mesh="fsdp:8,tp:32", **fields)
    assert refused.value.hint == "use a mesh with tp of 2, 4 or 8"
    assert read_flags(export("maxtext", mesh="fsdp:32,tp:8", **fields))["ici_tensor_parallelism"] == "8"
    latent = {**fields, "model": "deepseek2-16b"}  # each of its 16 heads has its own
    assert read_flags(export("maxtext", mesh="fsdp:16,tp:16", **latent))["ici_tensor_parallelism"] == "16"


def test_a_device_has_a_whole_number_of_tokens() -> None:
    fields = {"mesh": "tp:7", "target": "7*h100:1", "model": cut(7)}
    with pytest.raises(InvalidRequestError, match="sequences a device are not a whole number of tokens") as refused:
        export("maxtext", **fields, training={**ONE, "seq_len": 64})
    assert "global_batch_size 7," in refused.value.hint
    assert export("maxtext", **fields, training={"global_batch_size": 7, "seq_len": 64})


@pytest.mark.parametrize(("mesh", "tiling"), [("fsdp:64", "8"), ("fsdp:16,cp:4", "2"), ("pp:8,tp:8", "1")])
def test_logits_are_cut_as_the_plan_counts_them(mesh: str, tiling: str) -> None:
    assert read_flags(export("maxtext", mesh=mesh, **LLAMA))["num_vocab_tiling"] == tiling


def test_logits_that_cannot_be_cut_are_told() -> None:
    training = {"global_batch_size": 1, "seq_len": 7 * 1021}  # 7 pieces, and 1,021 tokens on each device: a prime
    text = export(
        "maxtext", mesh="tp:7", target="7*h100:1", model={**cut(7), "vocab_size": 7 * 2**16}, training=training
    )
    assert read_flags(text)["num_vocab_tiling"] == "1"
    assert "logits in 7 pieces; a device's tokens are not cut so, and all at once take 1.5 GiB more" in read_notes(text)


def test_sequences_are_packed_only_where_maxtext_can() -> None:
    text = export("maxtext", mesh="fsdp:16,cp:4", **LLAMA)
    assert (read_flags(text)["attention"], read_flags(text)["packing"]) == ("cudnn_flash_te", "false")
    assert "packed sequences" in read_notes(text)
    assert "packing" not in read_flags(export("maxtext", mesh="fsdp:64", **{**LLAMA, "target": "v5p:4x4x4"}))


def test_a_known_model_is_named_and_another_of_that_name_is_described() -> None:
    known = read_flags(export("maxtext", mesh="fsdp:64", **LLAMA))
    assert known["model_name"] == "llama3-70b"
    assert "base_emb_dim" not in known
    preset: Any = find_preset("llama3-70b")
    other = {**preset.model.model_dump(exclude_defaults=True), "num_hidden_layers": 40}
    flags = read_flags(export("maxtext", mesh="fsdp:64", **{**LLAMA, "model": other}))
    assert "model_name" not in flags
    assert (flags["decoder_block"], flags["base_num_decoder_layers"], flags["base_emb_dim"]) == ("llama2", "40", "8192")
    assert (flags["base_num_query_heads"], flags["base_num_kv_heads"], flags["head_dim"]) == ("64", "8", "128")
    assert (flags["base_mlp_dim"], flags["vocab_size"]) == ("28672", "128256")
    assert (flags["mlp_activations"], flags["logits_via_embedding"]) == ("[silu,linear]", "false")


def test_experts_have_as_many_places_as_the_compiled_step() -> None:
    model = {**TINY, **EXPERTS, "moe_intermediate_size": 32, "qk_norm": True}
    flags = read_flags(export("maxtext", mesh="fsdp:2,ep:4", model=model))
    assert (flags["decoder_block"], flags["num_experts"], flags["num_experts_per_tok"]) == ("qwen3_moe", "4", "2")
    assert (flags["base_moe_mlp_dim"], flags["base_mlp_dim"], flags["use_qk_norm"]) == ("32", "32", "true")
    assert flags["ici_expert_parallelism"] == "4"


@pytest.mark.parametrize(
    ("model", "seq_len", "target", "said"),
    [
        ("mixtral-8x7b", 4096, "8*h100:8", {"sparse_matmul": "false", "megablox": "false", "capacity_factor": "1.25"}),
        ("mixtral-8x7b", 65536, "8*h100:8", {"megablox": "false"}),  # masks of long sequences take longer
        ("qwen3-30b-a3b", 4096, "v5p:4x4x4", {}),  # as for narrow experts
        ("llama4-17b-16e", 4096, "8*h100:8", {"megablox": "false"}),  # MaxText gives it no capacity
        ("gpt-oss-20b", 4096, "v5p:4x4x4", {}),
    ],
)
def test_experts_run_as_they_are_priced(model: str, seq_len: int, target: str, said: dict[str, str]) -> None:
    training = {"global_batch_size": 64, "seq_len": seq_len, "remat": "full"}
    text = export("maxtext", mesh="fsdp:64", model=model, target=target, training=training)
    names = ("sparse_matmul", "megablox", "capacity_factor")
    assert {name: value for name, value in read_flags(text).items() if name in names} == said
    is_dropless = "capacity_factor 1.25; the plan's experts drop no tokens" in read_notes(text)
    more = make_plan(mesh="fsdp:64", model=model, target=target, training={**training, "capacity_factor": 64})[0]
    plan = make_plan(mesh="fsdp:64", model=model, target=target, training=training)[0]
    assert is_dropless == (plan.step_time == more.step_time) == (len(said) < 3)


@pytest.mark.parametrize(("model", "mesh", "training", "words"), [
    ("llama4-17b-16e", "pp:4,fsdp:16", {"gradient_accumulation_steps": 4}, "one kind of layer"),
    ("gpt-oss-20b", "fsdp:64,ep:2", {}, "fsdp:64 × ep:2 does not divide 2880"),
    ("deepseek3-671b", "fsdp:64", {"seq_len": 6000}, "6000 tokens over 1 are not whole blocks of 512"),
    ("llama3-8b", "fsdp:8,cp:8", {"seq_len": 2048}, "2048 tokens over 8 are not whole blocks of 512"),
])  # fmt: skip
def test_what_maxtext_would_refuse_or_do_otherwise_is_refused(
    model: str, mesh: str, training: dict[str, Any], words: str
) -> None:
    asked = {"seq_len": 4096, "global_batch_size": 256, **training}
    with pytest.raises(InvalidRequestError, match=words):
        export(
            "maxtext", mesh=mesh, model=model, target="v5p:4x4x4" if "ep" not in mesh else "v5p:4x4x8", training=asked
        )


def test_an_indexer_has_the_kernel_that_maxtext_has_for_it() -> None:
    asked: Any = {"model": "deepseek3.2-671b", "mesh": "fsdp:64,ep:8"}
    asked["training"] = {"seq_len": 4096, "global_batch_size": 512}
    flags = read_flags(export("maxtext", target="v5p:8x8x8", **asked))
    assert (flags["attention"], flags["use_tokamax_splash"], flags["ragged_buffer_factor"]) == ("flash", "true", "1.25")
    with pytest.raises(InvalidRequestError, match="no indexer in cudnn_flash_te"):
        export("maxtext", target="64*h100:8", **asked)


@pytest.mark.parametrize(("length", "tiles"), [(4096, "4"), (4093, "1"), (4200, "5")])
def test_logits_are_cut_into_few_tiles_or_none(length: int, tiles: str) -> None:
    training = {"seq_len": length, "global_batch_size": 8, "gradient_accumulation_steps": 1}
    text = export("maxtext", model="llama3.2-1b", mesh="fsdp:8", target="h100:8", training=training)
    assert read_flags(text)["num_vocab_tiling"] == tiles
    assert ("logits in 4093 pieces" in read_notes(text)) == (tiles == "1")


def test_what_no_flag_says_is_a_comment() -> None:
    training = {"remat": "none", "first_moment_dtype": "bfloat16", "second_moment_dtype": "bfloat16"}
    text = export("maxtext", mesh="dp:8", training=training)
    notes = read_notes(text)
    assert read_flags(text)["remat_policy"] == "minimal_with_context"
    assert read_flags(text)["mu_dtype"] == "bfloat16"
    flags = read_flags(export("maxtext", mesh="dp:8", training={"remat": "offload"}))
    assert (flags["remat_policy"], flags["decoder_layer_input"]) == ("custom", "offload")
    for said in ("remat none", "second moment in bfloat16", "order of the devices", "attention in blocks"):
        assert said in notes


def test_what_a_decoder_block_has_not_is_a_comment() -> None:
    model = {**TINY, "norm": "layernorm", "mlp_bias": True, "use_parallel_residual": True}
    notes = read_notes(export("maxtext", mesh="dp:8", model=model))
    assert "norm layernorm, which decoder_block llama2 has not" in notes
    assert "mlp_bias, which decoder_block llama2 has not" in notes
    assert "use_parallel_residual" in notes
    learned = {**TINY, "positions": "learned", "max_position_embeddings": 64}
    assert "decoder_block gpt3 has a bias on each" in read_notes(export("maxtext", mesh="dp:8", model=learned))


def test_a_name_cannot_leave_its_line() -> None:
    text = export("maxtext", mesh="dp:8", model={**TINY, "name": "a'; rm -rf ."})
    assert "rm -rf" not in text
    with pytest.raises(InvalidRequestError, match="one line"):
        export("maxtext", mesh="dp:8", model={**TINY, "name": "a\nrm -rf ."})


def test_a_padded_vocabulary_is_told() -> None:
    training = {"seq_len": 1024, "global_batch_size": 64}
    notes = read_notes(export("maxtext", mesh="fsdp:64", model="gemma-2b", target="v5e:8x8", training=training))
    assert "a vocabulary of 256000; MaxText's gemma-2b has 256128" in notes


MIXED = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3), (0, 3)]
"""Devices of two hosts in an order that is no part inside times a part across."""


def test_a_mesh_that_maxtext_cannot_have_is_refused() -> None:
    mesh, target, said = "dp:2,tp:4", "2*h100:4", "dp:2 over 2, tp:4 over 2 hosts is not so"
    more: Any = {"devices": [f"host-{host}/{at}" for host, at in MIXED], "device_order": "given"}
    model = {**TINY, "num_attention_heads": 24, "head_dim": 8, "intermediate_size": 96, "vocab_size": 240}
    with pytest.raises(InvalidRequestError, match=said) as refused:
        export("maxtext", mesh=mesh, target=target, model=model, training={"global_batch_size": 24}, **more)
    assert refused.value.hint
