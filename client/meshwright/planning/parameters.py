"""How many numbers a model trains: exactly, by the tensors that it has.

Rule: counts every bias and every norm, and nothing twice: a tied head is the embedding. Knows no preset and no mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshwright.wire.model import ModelSpec


@dataclass(frozen=True)
class LayerCount:
    """Trained parameters of one layer, by what they are for.

    Attributes:
        attention: queries, keys, values, output, with their biases; sinks; the indexer.
        norms: before and behind blocks, of queries and keys, inside of latent attention and its indexer.
        mlp: what every token goes through: the dense block with its biases, or the shared experts.
        router: which expert a token goes to; the gate of shared experts.
        experts: all experts that are chosen among, with their biases.
        idle: part of `experts` that one token does not go through: those that it did not choose.
    """

    attention: int
    norms: int
    mlp: int
    router: int = 0
    experts: int = 0
    idle: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.without_experts + self.experts

    @property
    def active(self) -> int:
        """Those that one token goes through."""
        return self.total - self.idle

    @property
    def without_experts(self) -> int:
        """Those that are no chosen expert's: each device of an expert axis has them."""
        return self.attention + self.norms + self.mlp + self.router


@dataclass(frozen=True)
class ParameterCount:
    """Trained parameters of a whole model, by what they are for.

    Attributes:
        embedding: tokens, and positions where they are learned.
        head: the output over the vocabulary; 0 where it is the embedding.
        final_norm: behind all layers.
        dense_layer: one layer without experts; None: there is none.
        dense_layer_count: how many there are.
        expert_layer: one layer with experts; None: there is none.
        expert_layer_count: how many there are.
    """

    embedding: int
    head: int
    final_norm: int
    dense_layer: LayerCount | None
    dense_layer_count: int
    expert_layer: LayerCount | None
    expert_layer_count: int

    @property
    def attention(self) -> int:
        """Of all layers."""
        return self._add(lambda layer: layer.attention)

    @property
    def mlp(self) -> int:
        """Of all layers: dense blocks with their biases, experts and shared experts."""
        return self._add(lambda layer: layer.mlp + layer.experts)

    @property
    def norms(self) -> int:
        """Of all layers, and the last one."""
        return self._add(lambda layer: layer.norms) + self.final_norm

    @property
    def router(self) -> int:
        """Of all layers: which expert a token goes to."""
        return self._add(lambda layer: layer.router)

    @property
    def idle(self) -> int:
        """Part of `mlp` that one token does not go through: the experts that it did not choose."""
        return self._add(lambda layer: layer.idle)

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.head + self.final_norm + self._add(lambda layer: layer.total)

    @property
    def active(self) -> int:
        """Those that one token goes through: all but the experts that it did not choose."""
        return self.total - self.idle

    def _add(self, measure: Callable[[LayerCount], int]) -> int:
        """Returns a figure of all layers together."""
        kinds = ((self.dense_layer, self.dense_layer_count), (self.expert_layer, self.expert_layer_count))
        return sum(count * measure(layer) for layer, count in kinds if layer is not None)


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Returns how many parameters a model has.

    The tensors, with V vocab_size, D hidden_size, F intermediate_size, H heads, K KV heads, h head size, E experts,
    X expert size, P max_position_embeddings:

    * token embedding [V, D]; learned positions [P, D]; head [D, V] unless tied, without bias
    * a layer: query [D, H·h], key and value [D, K·h], output [H·h, D]; `attention_bias`: [H·h], [K·h], [K·h];
      `attention_output_bias`: [D]; `attention_sinks`: [H]
    * latent attention instead, with ranks q and c, n qk_nope_head_dim, r qk_rope_head_dim, v v_head_dim: query [D, q]
      and [q, H·(n + r)], or without `q_lora_rank` [D, H·(n + r)]; key and value [D, c + r] and [c, H·(n + v)]; output
      [H·v, D]; norms [q] and [c]. Its indexer of I heads of i: query [q, I·i], key [D, i], weights [D, I]; norm [i]
      with a bias
    * a dense layer: up [D, F], down [F, D], if gated also gate [D, F]; `mlp_bias`: [F] for each of up and gate, [D]
    * a layer of experts instead: router [D, E], E times up [D, X], down [X, D], if gated also gate [D, X], and the
      same once more for each shared expert, of its own size; none of these has a bias, but for `router_bias`: [E], and
      `expert_bias`: [X] for each of up and gate and [D], of each expert that is not shared; `shared_expert_gate`: [D]
    * norms [D] before attention and before the block unless `pre_norms` is false, behind each where it says so, and one
      after all layers: rmsnorm a scale, layernorm scale and bias
    * `qk_norm`: a scale for queries and one for keys, [h] each; [H·h] and [K·h] over all heads; or none

    Left out: a correction of the router's scores that no gradient trains (DeepSeek-V3: [E] a layer), and modules that
    predict further tokens.

    Source: the counts published with the checkpoints in `models.csv`, which these sums meet exactly.
    """
    dense, expert = model.dense_layer_count, model.expert_layer_count
    positions = (model.max_position_embeddings or 0) if model.positions == "learned" else 0
    return ParameterCount(
        embedding=(model.vocab_size + positions) * model.hidden_size,
        head=0 if model.tie_word_embeddings else model.hidden_size * model.vocab_size,
        final_norm=_count_norm(model),
        dense_layer=_count_dense_layer(model) if dense else None,
        dense_layer_count=dense,
        expert_layer=_count_expert_layer(model) if expert else None,
        expert_layer_count=expert,
    )


def _count_dense_layer(model: ModelSpec) -> LayerCount:
    inner = model.intermediate_size
    biases = _count_block_biases(model, inner) * model.mlp_bias
    return LayerCount(_count_attention(model), _count_norms(model), mlp=_count_matrices(model, inner) + biases)


def _count_expert_layer(model: ModelSpec) -> LayerCount:
    experts, chosen = model.num_experts or 0, model.num_experts_per_tok or 0
    size = model.expert_size
    expert = _count_matrices(model, size) + _count_block_biases(model, size) * model.expert_bias
    return LayerCount(
        _count_attention(model),
        _count_norms(model),
        mlp=_count_matrices(model, model.shared_size),
        router=model.hidden_size * (experts + model.shared_expert_gate) + experts * model.router_bias,
        experts=experts * expert,
        idle=max(experts - chosen, 0) * expert,
    )


def _count_attention(model: ModelSpec) -> int:
    own = _count_latent(model) if model.is_latent else _count_heads(model)
    return own + model.num_attention_heads * model.attention_sinks


def _count_heads(model: ModelSpec) -> int:
    queries = model.num_attention_heads * model.head_size
    pairs = 2 * model.kv_heads * model.head_size
    biases = (queries + pairs) * model.attention_bias + model.hidden_size * model.attention_output_bias
    return model.hidden_size * (2 * queries + pairs) + biases


def _count_latent(model: ModelSpec) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    rank, turned = model.kv_lora_rank or 0, model.qk_rope_head_dim or 0
    queries, values = heads * model.head_size, heads * model.value_size
    narrow = model.q_lora_rank
    query = hidden * queries if narrow is None else narrow * (hidden + queries)
    pairs = hidden * (rank + turned) + rank * (heads * (model.qk_nope_head_dim or 0) + values)
    return query + pairs + values * hidden + _count_indexer(model)


def _count_indexer(model: ModelSpec) -> int:
    heads, size = model.index_n_heads or 0, model.index_head_dim or 0
    return (model.q_lora_rank or 0) * heads * size + model.hidden_size * (size + heads)


def _count_norms(model: ModelSpec) -> int:
    """Returns the norms of one layer."""
    outer = 2 * model.pre_norms + model.post_attention_norm + model.post_feedforward_norm
    latent = (model.q_lora_rank or 0) + (model.kv_lora_rank or 0) + 2 * (model.index_head_dim or 0)
    return outer * _count_norm(model) + latent + _count_qk_norms(model)


def _count_norm(model: ModelSpec) -> int:
    return model.hidden_size * (1 if model.norm == "rmsnorm" else 2)


def _count_qk_norms(model: ModelSpec) -> int:
    if not model.qk_norm:
        return 0
    match model.qk_norm_scale:
        case "head":
            return 2 * model.head_size
        case "all_heads":
            return (model.num_attention_heads + model.kv_heads) * model.head_size
        case "none":
            return 0


def _count_matrices(model: ModelSpec, inner: int) -> int:
    return model.hidden_size * inner * (3 if model.gated else 2)


def _count_block_biases(model: ModelSpec, inner: int) -> int:
    return inner * (2 if model.gated else 1) + model.hidden_size
