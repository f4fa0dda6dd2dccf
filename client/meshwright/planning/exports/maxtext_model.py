"""A model by MaxText's flags: its name where MaxText has it with these dimensions, else the dimensions.

Rule: a name is used only for the very dimensions of that preset; what the chosen decoder block has otherwise is noted.
Flags and names as of the commit that `maxtext` says.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from meshwright.planning.exports.setting import Setting
from meshwright.planning.expressible import find_inexpressible
from meshwright.planning.presets import find_preset
from meshwright.topology.chips import Names, read_table
from meshwright.wire.model import ModelSpec


@dataclass(frozen=True)
class Known:
    """A model that MaxText has by a name that our presets have too.

    Attributes:
        vocab_size: MaxText's, which may be padded.
        sets: flags that a plan may set and the model's own file sets too; both at once need override_model_config.
    """

    model_name: str
    vocab_size: int
    sets: Names = ()


@functools.cache
def read_known() -> Mapping[str, Known]:
    """Returns the table `maxtext_models.csv` by model_name.

    Source: `src/maxtext/configs/models/` of the commit that `maxtext` says.
    """
    return {row.model_name: row for row in read_table("meshwright.planning.exports", "maxtext_models.csv", Known)}


def list_model_flags(setting: Setting) -> dict[str, str]:
    """Returns the flags that say the model."""
    model = setting.model
    if _find_known(model) is not None:
        return {"model_name": str(model.name)}
    activations = [model.activation, "linear"] if model.gated else [model.activation]
    flags = {
        "decoder_block": _choose_block(model),
        "base_emb_dim": model.hidden_size,
        "base_num_query_heads": model.num_attention_heads,
        "base_num_kv_heads": model.kv_heads,
        "head_dim": model.head_size,
        "base_mlp_dim": model.expert_size if model.num_experts else model.intermediate_size,
        "base_num_decoder_layers": model.num_hidden_layers,
        "vocab_size": model.vocab_size,
        "mlp_activations": f"[{','.join(activations)}]",
        "logits_via_embedding": str(model.tie_word_embeddings).lower(),
        **_list_extras(model),
    }
    return {name: str(value) for name, value in flags.items()}


def _list_extras(model: ModelSpec) -> dict[str, object]:
    extras: dict[str, object] = {}
    if model.positions == "learned":
        extras["trainable_position_size"] = model.max_position_embeddings
    if model.qk_norm:
        extras["use_qk_norm"] = "true"
    if model.attention_bias and _choose_block(model) != "gpt3":
        extras["attention_bias"] = "true"
    if model.num_experts:
        extras["num_experts"], extras["num_experts_per_tok"] = model.num_experts, model.num_experts_per_tok or 1
        extras["base_moe_mlp_dim"] = model.expert_size
    return extras


def list_model_notes(setting: Setting) -> Iterator[str]:
    """Yields what the model has that MaxText's flags do not say, or the reverse."""
    model = setting.model
    known = _find_known(model)
    if known is not None:
        if known.vocab_size != model.vocab_size:
            yield f"a vocabulary of {model.vocab_size}; MaxText's {model.name} has {known.vocab_size}"
        return
    block = _choose_block(model)
    for field, what in find_inexpressible(model, setting.training.sequence_length):
        yield f"{field}, {what}, which decoder_block {block} has not"
    yield from (f"{field}, which decoder_block {block} has not" for field in _list_left(model, block))
    if block == "gpt3":
        yield from _list_added(model)


def list_overrides(setting: Setting, flags: Collection[str]) -> dict[str, str]:
    """Returns the flag that lets others stand beside a model_name whose file sets them too, where it is needed."""
    known = _find_known(setting.model)
    return {"override_model_config": "true"} if known is not None and set(known.sets) & set(flags) else {}


def _find_known(model: ModelSpec) -> Known | None:
    """Returns the model that MaxText has by this name; None where the name does not mean these dimensions."""
    preset = find_preset(model.name) if model.name and model.name in read_known() else None
    return read_known()[preset.name] if preset is not None and preset.model == model else None


def _choose_block(model: ModelSpec) -> str:
    """Returns the decoder block whose layer is like the model's."""
    if model.positions == "learned":
        return "gpt3"
    if model.num_experts:
        return "qwen3_moe" if model.qk_norm else "mixtral"
    if model.qk_norm:
        return "qwen3"
    return "qwen2" if model.attention_bias else "llama2"


def _list_left(model: ModelSpec, block: str) -> Iterator[str]:
    """Yields the fields of the model that a block of MaxText does not have."""
    if block != "gpt3":
        if model.norm == "layernorm":
            yield "norm layernorm"
        if model.mlp_bias:
            yield "mlp_bias"
        if model.attention_output_bias:
            yield "attention_output_bias"
    if model.attention_bias and block not in ("gpt3", "qwen2"):
        yield "attention_bias"
    if model.num_shared_experts:
        yield f"num_shared_experts {model.num_shared_experts}"


def _list_added(model: ModelSpec) -> Iterator[str]:
    """Yields what MaxText's gpt3 block has that the model has not."""
    if model.norm == "rmsnorm":
        yield "norm rmsnorm; decoder_block gpt3 has layernorm"
    if not (model.attention_bias and model.attention_output_bias and model.mlp_bias):
        yield "matrices without biases; decoder_block gpt3 has a bias on each"
    if model.kv_heads != model.num_attention_heads:
        yield f"{model.kv_heads} heads of keys and values; decoder_block gpt3 has as many as query heads"
