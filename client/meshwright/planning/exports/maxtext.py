"""A plan as MaxText's command line: flags where MaxText has them, and comments for the rest.

What no flag supports is written as a comment above the command, or refused where the run would have another mesh. A
model is named where MaxText has it with exactly these dimensions. Otherwise its dimensions are given.

Names and values are those of AI-Hypercomputer/maxtext at e591f30cbbf217ed67ef71263ec0538239f9c3b8 (2026-08-22):
`src/maxtext/configs/base.yml` and `types.py` (flags), `models/` (names), `pyconfig.py` (what may be set beside
model_name), `layers/nnx_decoders.py` (what a remat policy keeps), `layers/attention_op.py` (kernels).
"""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from meshwright.planning.compile_job import find_inexpressible
from meshwright.planning.cost.memory import read_capacity_factor
from meshwright.planning.cost.spans import Layout
from meshwright.planning.cost.step_time import LAW, find_expert_factor
from meshwright.planning.cost.work import BLOCK, build_work
from meshwright.planning.job_code import Setting, refuse
from meshwright.planning.models import find_preset
from meshwright.planning.parallelism import choose_near, find_role, list_divisors, write_values
from meshwright.topology.chips import Names, find_chip, read_table
from meshwright.topology.systems import find_domain_count
from meshwright.wire.devices import Platform
from meshwright.wire.model import Attention, ModelSpec

VERSION: Final = "e591f30 (2026-08-22)"
COMMAND: Final = "python3 -m maxtext.trainers.pre_train.train"

OWN_NAMES: Final = ("fsdp_transpose", "tensor_sequence", "context_autoregressive", "autoregressive")
"""Axes of MaxText's mesh beside these, which a plan may have by their own names."""

ALWAYS: Final = ("dcn_data", "ici_fsdp")
"""Flags with MaxText's default -1 (the rest): written also where they are 1."""

_ATTENTION: Final[Mapping[tuple[Platform, Attention], str]] = {
    ("tpu", "flash"): "flash",
    ("gpu", "flash"): "cudnn_flash_te",
}
"""Its kernels; elsewhere it has only dot_product."""


def write_maxtext(setting: Setting) -> str:
    """Returns the comments and the command.

    Raises:
        InvalidRequestError: MaxText does not have an axis; or an axis is not the same on every host or slice, is a
            pipeline whose micro-batches or layers do not fill its stages equally, or cuts heads of keys and values; or
            a device has a part of a token.
    """
    _check_model(setting)
    known = _find_known(setting.model)
    step = {**_list_parallelism(setting), **_list_batch(setting), **_list_numbers(setting), **_list_experts(setting)}
    flags = {
        "run_name": "meshwright",
        "hardware": setting.plan.platform,
        **list_model_flags(setting),
        **({"override_model_config": "true"} if known and set(known.sets) & set(step) else {}),
        **step,
    }
    mesh = ",".join(f"{name}:{size}" for name, size in setting.axes.sizes.items())
    head = [f"# Mesh {mesh or 'of one device'}, plan {setting.plan.fingerprint}; flags as of MaxText {VERSION}."]
    notes = [f"# Not said by flags: {note}." for note in (*list_model_notes(setting), *_list_notes(setting))]
    command = [COMMAND, *(f"  {name}={shlex.quote(value)}" for name, value in flags.items())]
    return "\n".join([*head, *notes, " \\\n".join(command), ""])


# ---- the mesh ------------------------------------------------------------------------------------------


def _list_parallelism(setting: Setting) -> dict[str, str]:
    """Returns the mesh: of each axis the part inside a slice or host, and the part across; MaxText's CPU has one."""
    inside, across = dict.fromkeys(ALWAYS[1:], 1), dict.fromkeys(ALWAYS[:1], 1)
    spread = {} if setting.plan.platform == "cpu" else {axis.name: axis.dcn_size for axis in setting.plan.axes}
    if spread:
        _check_granules(setting, spread)
    for name, size in setting.axes.sizes.items():
        flag, outer = name.lower() if name.lower() in OWN_NAMES else find_role(name), spread.get(name, 1)
        inside[f"ici_{flag}"] = inside.get(f"ici_{flag}", 1) * (size // outer)
        across[f"dcn_{flag}"] = across.get(f"dcn_{flag}", 1) * outer
    sizes = {**across, **inside}
    return {f"{name}_parallelism": str(size) for name, size in sizes.items() if size > 1 or name in ALWAYS}


def _check_model(setting: Setting) -> None:
    """Raises InvalidRequestError where tensor axes cut heads of keys and values, which MaxText does not repeat; where
    fsdp, context and expert axes do not divide a weight; or where a kernel does not do what the model needs."""
    model, cut = setting.model, setting.axes.find("fsdp", "context", "expert")
    for size in filter(None, (model.hidden_size, model.q_lora_rank, model.kv_lora_rank)):
        if size % setting.axes.measure(cut):
            message = f"{setting.axes.write(cut)} does not divide {size}, the side of a weight, as it must in MaxText"
            raise refuse("maxtext", message, "use fewer devices on them, and more of dp or tp")
    heads = math.gcd(model.kv_heads, model.num_global_key_value_heads or 0)
    tensor, parts = setting.axes.tensor, setting.axes.measure(setting.axes.tensor)
    if heads % parts and not setting.model.is_latent:
        message = f"{setting.axes.write(tensor)} does not divide num_key_value_heads {heads}, as it must in MaxText"
        near = write_values(choose_near(list_divisors(heads), parts))
        raise refuse("maxtext", message, f"use a mesh with {' × '.join(tensor)} of {near}")
    length, context = setting.training.seq_len, setting.axes.measure(setting.axes.context)
    if _find_kernel(setting) == "cudnn_flash_te":
        has = {"attention sinks": setting.model.attention_sinks, "indexer": setting.model.index_topk}
        has["windows on context axes"] = context > 1 and setting.model.window
        if missing := [name for name, is_there in has.items() if is_there]:
            raise refuse("maxtext", f"MaxText has no {missing[0]} in cudnn_flash_te", 'use attention "xla"')
    if _find_kernel(setting) == "flash" and length // context % min(BLOCK, length):
        message = (
            f"{length} tokens over {context} are not whole blocks of {BLOCK} tokens, as MaxText's flash needs them"
        )
        raise refuse("maxtext", message, f'use a seq_len that is a multiple of {BLOCK * context}, or attention "xla"')


def find_runnable(model: ModelSpec, layout: Layout) -> Any:
    """Returns which candidates of a search divide the model as MaxText needs it; see `_check_model`, `_list_batch`."""
    sides = math.gcd(*filter(None, (model.hidden_size, model.q_lora_rank, model.kv_lora_rank)))
    heads = 0 if model.is_latent else math.gcd(model.kv_heads, model.num_global_key_value_heads or 0)
    rests = sides % (layout.fsdp * layout.cp * layout.ep) + heads % layout.tp + _count_layers(model) % layout.pp
    return rests + layout.micro_batches_at_once % layout.pp == 0


def _find_kernel(setting: Setting) -> str:
    return _ATTENTION.get((setting.plan.platform, setting.training.attention), "dot_product")


def _check_granules(setting: Setting, spread: Mapping[str, int]) -> None:
    """Raises InvalidRequestError unless each axis has equally many parts in each slice, host or NVLink domain."""
    granules = setting.plan.granules
    kind, chip = granules[0].kind, find_chip(granules[0].device_kind or "")
    joined = find_domain_count(chip) if chip is not None and chip.platform == "gpu" else None
    size = joined or granules[0].device_count  # that the fast network joins
    count = -(-sum(granule.device_count for granule in granules) // size)
    outer = {name: spread.get(name, 1) for name in setting.axes.sizes}
    product, devices = math.prod(outer.values()), setting.axes.measure(setting.axes.sizes)
    uneven = any(setting.axes.sizes[name] % parts for name, parts in outer.items())
    if uneven or product > count or devices > product * size:
        cut = ", ".join(f"{name}:{setting.axes.sizes[name]} over {parts}" for name, parts in outer.items() if parts > 1)
        message = f"MaxText takes each axis as a part inside a {kind} times a part across, and {cut} {kind}s is not so"
        raise refuse("maxtext", message, f"let some axes fill the {size} devices of a {kind}, and others cross {kind}s")


# ---- batch and numbers ---------------------------------------------------------------------------------


def _list_batch(setting: Setting) -> dict[str, str]:
    """Returns batch and accumulation steps; those of a pipeline are the runs of its loop."""
    stages, passes = setting.axes.measure(setting.axes.find("pipeline")), setting.training.gradient_accumulation_steps
    length = {"max_target_length": str(setting.training.seq_len)}
    if stages == 1:
        batch = _write_batch(setting, passes)
        return {"per_device_batch_size": batch, "gradient_accumulation_steps": str(passes), **length}
    layers = _count_layers(setting.model)
    if layers == 1 < setting.model.num_hidden_layers:
        message = "MaxText's pipeline has one kind of layer; this model's differ in windows or experts"
        raise refuse("maxtext", message, "leave out the pipeline")
    if layers % stages:
        message = f"{stages} stages do not divide the {layers} layers that MaxText cuts, and its stages are equal"
        common = math.gcd(layers, setting.axes.measure(setting.axes.sizes))
        near = choose_near(list_divisors(common)[1:], stages)
        raise refuse("maxtext", message, f"use {write_values(near)} stages" if near else "leave out the pipeline")
    schedule = setting.plan.schedule
    runs = schedule.pipeline_runs if schedule else 1
    if passes // runs % stages:
        message = f"{passes} micro-batches are not a multiple of the {stages} stages, which MaxText needs"
        parts = setting.axes.measure(setting.axes.batch)
        counts = list_divisors(setting.training.global_batch_size // parts)
        near = choose_near((count for count in counts if count % stages == 0), passes)
        other = f"use a global_batch_size that is a multiple of {parts * stages}"
        raise refuse("maxtext", message, f"use gradient_accumulation_steps {write_values(near)}" if near else other)
    return {
        "per_device_batch_size": _write_batch(setting, runs),
        "gradient_accumulation_steps": str(runs),
        "num_pipeline_microbatches": str(passes // runs),
        "num_layers_per_pipeline_stage": "1",
        "pipeline_fsdp_ag_once": str(schedule is not None and schedule.pipeline_gathers_once).lower(),
        **length,
    }


def _count_layers(model: ModelSpec) -> int:
    """Returns the layers that MaxText cuts into stages. Gemma 2's are pairs; of DeepSeek's only those with experts; 1
    where they are not alike: it would repeat the first, or whole cycles of them."""
    name = known.model_name if (known := _find_known(model)) else ""
    if name.startswith("gemma2"):
        return model.num_hidden_layers // 2
    layers = model.expert_layer_count if name.startswith(("deepseek", "kimi")) else model.num_hidden_layers
    differ = 0 < model.window_layer_count < layers or 0 < model.expert_layer_count <= model.dense_layer_count
    return 1 if differ else layers


def _write_batch(setting: Setting, passes: int) -> str:
    """Returns sequences per device and accumulation step, such that MaxText's int(devices · value) is the batch of that
    step, and a device has a whole number of tokens."""
    devices, batch = setting.axes.measure(setting.axes.sizes), setting.training.global_batch_size // passes
    value = batch / devices
    while int(devices * value) < batch:
        value = math.nextafter(value, math.inf)
    if value * setting.training.seq_len % 1:
        message = f"{batch / devices:.4g} sequences a device are not a whole number of tokens, which MaxText needs"
        whole = math.lcm(devices * passes, setting.training.global_batch_size)
        raise refuse("maxtext", message, f"use global_batch_size {whole}, a multiple of the {devices} devices")
    return str(batch // devices) if batch % devices == 0 else repr(value)


def _find_tiling(setting: Setting) -> tuple[int, int]:
    """Returns into how many pieces the plan cuts a sequence for its logits, and the num_vocab_tiling that makes them no
    larger: it divides a device's tokens; 1 where none near does. Behind a pipeline neither has pieces."""
    from meshwright.planning.cost import memory  # here, for its numpy

    most = memory.read_memory_constants().get(setting.plan.platform, memory.MemoryConstants()).piece_tokens
    if not most or setting.axes.find("pipeline"):
        return 1, 1
    training = setting.training
    length = training.seq_len // setting.axes.measure(setting.axes.context)
    tokens = float(_write_batch(setting, training.gradient_accumulation_steps)) * training.seq_len
    near = range(least := math.ceil(length / most), 4 * least + 1)  # each tile computes a gradient of the whole head
    return int(memory.count_pieces(length, most)), next((count for count in near if tokens % count == 0), 1)


_REMAT: Final[Mapping[str, Mapping[str, str]]] = {
    "none": {"remat_policy": "minimal_with_context"},
    "offload": {"remat_policy": "custom", "decoder_layer_input": "offload"},
}
"""MaxText's flags for a remat, where it has another name there."""


def _list_numbers(setting: Setting) -> dict[str, str]:
    training, (_, tiling) = setting.training, _find_tiling(setting)
    flags = {
        "num_vocab_tiling": str(tiling),
        **_REMAT.get(training.remat, {"remat_policy": training.remat}),
        "dtype": training.compute_dtype,
        "weight_dtype": training.weight_dtype,
        "grad_dtype": training.weight_dtype,
        "opt_type": training.optimizer,
        "attention": _find_kernel(setting),
    }
    context = setting.axes.measure(setting.axes.context)
    if context > 1 and (context % 2 or training.seq_len % (2 * context)):  # it balances by 2 pieces for each device
        flags["context_parallel_load_balance"] = "false"
    if training.optimizer == "adamw":
        flags["mu_dtype"] = training.first_moment_dtype or training.weight_dtype
    if not training.scan_layers:
        flags["scan_layers"] = "false"
    if flags["attention"] == "cudnn_flash_te":
        flags["packing"] = "false"
    if setting.plan.platform == "tpu":
        flags["allow_split_physical_axes"] = "true"
    if setting.model.index_topk and flags["attention"] == "flash":
        flags["use_tokamax_splash"] = "true"
    return flags


def _list_experts(setting: Setting) -> dict[str, str]:
    """Returns the capacity of experts, where the plan's have one: else MaxText drops no tokens."""
    if not setting.model.num_experts:
        return {}
    if _is_dropless(setting):
        places = {"ragged_buffer_factor": str(setting.training.capacity_factor)} if setting.axes.expert else {}
        return places if setting.plan.platform == "tpu" else {**places, "megablox": "false"}  # a kernel for TPUs
    return {"sparse_matmul": "false", "megablox": "false", "capacity_factor": str(setting.training.capacity_factor)}


def _is_dropless(setting: Setting) -> bool:
    """Returns whether the plan's price is of experts that drop no tokens."""
    work = build_work(setting.model, setting.training.seq_len)
    capacity = read_capacity_factor(setting.model, setting.training)
    return all(find_expert_factor(block, work, capacity) == LAW.experts for block in work.blocks)


def _list_notes(setting: Setting) -> Iterator[str]:
    plan, training = setting.plan, setting.training
    yield "base_output_directory and the dataset's flags, which are yours"
    if setting.axes.sizes:
        yield "the order of the devices; MaxText orders them itself, by jax's mesh_utils"
    if training.remat == "none":
        yield "remat none; MaxText puts each layer under jax.checkpoint, and minimal_with_context keeps most of it"
    second = training.second_moment_dtype or training.weight_dtype
    if training.optimizer == "adamw" and second != training.weight_dtype:
        yield f"a second moment in {second}; it has the weights' type, {training.weight_dtype}"
    if plan.platform == "cpu" and training.attention == "flash":
        yield "attention in blocks; on a CPU MaxText has dot_product alone"
    if plan.platform == "gpu" and training.attention == "flash":
        yield "packed sequences; MaxText has them with cudnn_flash_te only where max_segments_per_seq is set"
        if setting.model.attn_logit_softcapping:
            yield "attn_logit_softcapping; cudnn_flash_te does not cap scores"
    pieces, tiling = _find_tiling(setting)
    if tiling == 1 < pieces:
        logits = setting.micro_batch_size * training.seq_len * setting.model.vocab_size
        extra = logits / setting.axes.measure((*setting.axes.context, *setting.axes.tensor)) * (1 - 1 / pieces) / 2**28
        yield f"logits in {pieces} pieces; a device's tokens are not cut so, and all at once take {extra:.3g} GiB more"
    if setting.model.num_experts and _is_dropless(setting):
        where = " but where an expert axis has no place for them (ragged_buffer_factor)" if setting.axes.expert else ""
        yield f"capacity_factor {training.capacity_factor}; the plan's experts drop no tokens{where}"
    kinds = sorted({kind for kind in plan.axis_types.values() if kind != "auto"})
    if kinds:
        yield f"axes of type {' and '.join(kinds)}; MaxText makes them by shard_mode"
    if plan.environment:
        yield f"the environment, {', '.join(f'{name}={value!r}' for name, value in plan.environment.items())}"


# ---- the model ------------------------------------------------------------------------------------------------------


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

    Source: `src/maxtext/configs/models/` of the commit that `maxtext` names.
    """
    return {row.model_name: row for row in read_table("meshwright.planning.exports", "maxtext_models.csv", Known)}


def list_model_flags(setting: Setting) -> dict[str, str]:
    """Returns the flags that describe the model."""
    model = setting.model
    if known := _find_known(model):
        return {"model_name": known.model_name}
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
    """Yields features of the model without a MaxText flag, or the reverse."""
    model = setting.model
    known = _find_known(model)
    if known is not None:
        if known.model_name != model.name:
            yield f"the model's name; MaxText's {known.model_name} has the same dimensions"
        if known.vocab_size != model.vocab_size:
            yield f"a vocabulary of {model.vocab_size}; MaxText's {known.model_name} has {known.vocab_size}"
        return
    yield "values of the model that change no shape, such as rope_max_timescale and normalization_layer_epsilon"
    block = _choose_block(model)
    for field, what in find_inexpressible(model, setting.training.seq_len):
        yield f"{field}, {what}, which decoder_block {block} has not"
    yield from (f"{field}, which decoder_block {block} has not" for field in _list_left(model, block))
    if block == "gpt3":
        yield from _list_added(model)


def _find_known(model: ModelSpec) -> Known | None:
    """Returns MaxText's model of exactly these dimensions, of several that of this name or context; else None."""
    presets = {name: found.model for name in read_known() if (found := find_preset(name))}
    alike = [name for name, preset in presets.items() if _write_out(preset) == _write_out(model)]
    context = model.max_position_embeddings
    near = [name for name in alike if context and presets[name].max_position_embeddings == context]
    name = model.name if model.name in alike else next(iter(near or alike), None)
    return read_known()[name] if name else None


def _write_out(model: ModelSpec) -> ModelSpec:
    """Returns the model with what it leaves to its other dimensions, and without what changes no shape."""
    written: dict[str, object] = {"name": None, "head_dim": model.head_size, "num_key_value_heads": model.kv_heads}
    written["moe_intermediate_size"] = model.expert_size
    written["intermediate_size"] = model.intermediate_size if model.dense_layer_count else None
    written["qk_norm_scale"] = model.qk_norm_scale if model.qk_norm else None
    written["max_position_embeddings"] = model.max_position_embeddings if model.positions == "learned" else None
    return model.model_copy(update=written)


def _choose_block(model: ModelSpec) -> str:
    """Returns the decoder block with the model's kind of layer."""
    if model.positions == "learned":
        return "gpt3"
    if model.num_experts:
        return "qwen3_moe" if model.qk_norm else "mixtral"
    if model.qk_norm:
        return "qwen3"
    return "qwen2" if model.attention_bias else "llama2"


def _list_left(model: ModelSpec, block: str) -> Iterator[str]:
    """Yields the fields of the model that a block of MaxText does not have."""
    is_other = block != "gpt3"
    left = {
        "norm layernorm": is_other and model.norm == "layernorm",
        "mlp_bias": is_other and model.mlp_bias,
        "attention_output_bias": is_other and model.attention_output_bias,
        "attention_bias": is_other and block != "qwen2" and model.attention_bias,
        f"num_shared_experts {model.num_shared_experts}": model.num_shared_experts,
    }
    return (name for name, is_left in left.items() if is_left)


def _list_added(model: ModelSpec) -> Iterator[str]:
    """Yields features of MaxText's gpt3 block that the model does not have."""
    if model.norm == "rmsnorm":
        yield "norm rmsnorm; decoder_block gpt3 has layernorm"
    if not (model.attention_bias and model.attention_output_bias and model.mlp_bias):
        yield "matrices without biases; decoder_block gpt3 has a bias on each"
    if model.kv_heads != model.num_attention_heads:
        yield f"{model.kv_heads} heads of keys and values; decoder_block gpt3 has as many as query heads"
