"""Whether the training step that is compiled has what a model has.

Rule: a model can be described and counted without being compiled: what of it the step does not have is told by the
field that says so, before any compiler is started. Each row here falls away when `meshwright.compiling.step` learns it.
Knows no jax.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.errors import NotCompiledError
from meshwright.planning.parallelism import ROLE_NAMES, MeshAxes
from meshwright.wire.model import ModelSpec


def check_expressible(model: ModelSpec, sequence_length: int) -> None:
    """Passes over a model that the compiled step has, with exactly its tensors and matmuls.

    Args:
        model: its dimensions fit together.
        sequence_length: tokens; a window that no sequence is longer than is none.

    Raises:
        NotCompiledError: it has something else; names each field, and what it is.
    """
    found = [f"{name} ({what})" for name, what in find_inexpressible(model, sequence_length)]
    if found:
        raise NotCompiledError(
            f"{model.name or 'the model'} has {', '.join(found)}, which the step that is compiled does not have; its "
            f"parameters are counted and its plan stands, but no compiler says whether it fits"
        )


def check_axes(mesh_shape: Mapping[str, int]) -> None:
    """Raises NotCompiledError unless the compiled step has every axis that is larger than 1."""
    axes = MeshAxes.of(mesh_shape)
    for name in axes.find(None):
        known = ", ".join(names[0] for names in ROLE_NAMES.values())
        raise NotCompiledError(f"axis {name} says nothing of what it is for; the step knows axes by name, as {known}")
    for name in axes.find("pipeline"):
        raise NotCompiledError(
            f"axis {name} of {axes.sizes[name]} is a pipeline, and the step that is compiled has no pipeline stages; "
            f"leave {name} out, and compile one stage by giving the model that many layers fewer"
        )


def find_inexpressible(model: ModelSpec, sequence_length: int) -> Iterator[tuple[str, str]]:
    """Yields each field that says what the compiled step has not, and what that is."""
    yield from _find_in_attention(model)
    yield from _find_in_reach(model, sequence_length)
    yield from _find_in_layer(model)
    yield from _find_in_experts(model)


def _find_in_attention(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if model.is_latent:
        yield "kv_lora_rank", "latent attention"
    if model.qk_norm and model.qk_norm_scale != "head":
        yield "qk_norm_scale", f"norms of queries and keys with a scale for {model.qk_norm_scale}"
    if model.attention_sinks:
        yield "attention_sinks", "a score that no token has"
    if model.attn_logit_softcapping is not None:
        yield "attn_logit_softcapping", "capped scores"


def _find_in_reach(model: ModelSpec, sequence_length: int) -> Iterator[tuple[str, str]]:
    """Yields what lets a token attend to less than all before it."""
    if model.window is not None and model.window < sequence_length and model.window_layer_count:
        name = "sliding_window" if model.sliding_window else "attention_chunk_size"
        yield name, f"{model.window} tokens of sequences of {sequence_length}"
    if model.index_topk is not None:
        yield "index_topk", "an indexer that chooses tokens"


def _find_in_layer(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if not model.pre_norms:
        yield "pre_norms", "no norms before blocks"
    if model.post_attention_norm:
        yield "post_attention_norm", "a norm behind attention"
    if model.post_feedforward_norm:
        yield "post_feedforward_norm", "a norm behind the feed-forward block"
    if model.use_parallel_residual:
        yield "use_parallel_residual", "attention and feed-forward block side by side"
    if model.final_logit_softcapping is not None:
        yield "final_logit_softcapping", "capped logits"


def _find_in_experts(model: ModelSpec) -> Iterator[tuple[str, str]]:
    if model.expert_layer_count and model.dense_layer_count:
        name = "first_k_dense_replace" if model.first_k_dense_replace else "decoder_sparse_step"
        yield name, f"{model.dense_layer_count} dense layers beside {model.expert_layer_count} with experts"
    if model.expert_bias:
        yield "expert_bias", "biases of experts"
    if model.router_bias:
        yield "router_bias", "a bias of the router"
    if model.shared_size != model.num_shared_experts * model.expert_size:
        yield "shared_expert_intermediate_size", "shared experts of a size of their own"
    if model.shared_expert_gate:
        yield "shared_expert_gate", "a gate of shared experts"
