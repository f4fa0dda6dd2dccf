"""How many numbers a model trains: exactly, by the tensors that it has.

Rule: counts every bias and every norm, and nothing twice: a tied head is the embedding. Knows no preset and no mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.wire.model import ModelSpec


@dataclass(frozen=True)
class ParameterCount:
    """Trained parameters of a whole model, by what they are for.

    Attributes:
        embedding: tokens, and positions where they are learned.
        attention: queries, keys, values, output, with their biases.
        mlp: dense layers with their biases, or experts and shared experts.
        norms: of layers, of queries and keys, and the last one.
        router: which expert a token goes to.
        head: the output over the vocabulary; 0 where it is the embedding.
        idle: part of `mlp` that one token does not go through: the experts that it did not choose.
    """

    embedding: int
    attention: int
    mlp: int
    norms: int
    router: int
    head: int
    idle: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.attention + self.mlp + self.norms + self.router + self.head

    @property
    def active(self) -> int:
        """Those that one token goes through: all but the experts that it did not choose."""
        return self.total - self.idle


def count_parameters(model: ModelSpec) -> ParameterCount:
    """Returns how many parameters a model has.

    The tensors, with V vocab_size, D hidden_size, F intermediate_size, H heads, K KV heads, h head size, E experts,
    X expert size, P max_position_embeddings:

    * token embedding [V, D]; learned positions [P, D]; head [D, V] unless tied, without bias
    * a layer: query [D, H·h], key and value [D, K·h], output [H·h, D]; `attention_bias`: [H·h], [K·h], [K·h];
      `attention_output_bias`: [D]; `qk_norm`: a scale [h] for queries and one for keys
    * a dense layer: up [D, F], down [F, D], if gated also gate [D, F]; `mlp_bias`: [F] for each of up and gate, [D]
    * a layer of experts instead: router [D, E], E times up [D, X], down [X, D], if gated also gate [D, X], and the
      same once more for each shared expert; none of these has a bias, whatever `mlp_bias` says
    * norms [D] before attention, before the MLP, and one after all layers: rmsnorm a scale, layernorm scale and bias

    Source: the counts published with the checkpoints in `models.csv`, which these sums meet exactly.
    """
    hidden, vocabulary, layers = model.hidden_size, model.vocab_size, model.num_hidden_layers
    positions = (model.max_position_embeddings or 0) if model.positions == "learned" else 0
    vectors = 1 if model.norm == "rmsnorm" else 2
    experts, chosen = model.num_experts or 0, model.num_experts_per_tok or 0
    return ParameterCount(
        embedding=(vocabulary + positions) * hidden,
        attention=layers * _count_attention(model),
        mlp=layers * _count_block(model),
        norms=layers * (2 * vectors * hidden + (2 * model.head_size if model.qk_norm else 0)) + vectors * hidden,
        router=layers * hidden * experts,
        head=0 if model.tie_word_embeddings else hidden * vocabulary,
        idle=layers * max(experts - chosen, 0) * _count_matrices(model, model.expert_size),
    )


def _count_attention(model: ModelSpec) -> int:
    queries = model.num_attention_heads * model.head_size
    pairs = 2 * model.kv_heads * model.head_size
    biases = (queries + pairs) * model.attention_bias + model.hidden_size * model.attention_output_bias
    return model.hidden_size * (2 * queries + pairs) + biases


def _count_block(model: ModelSpec) -> int:
    if model.num_experts:
        return (model.num_experts + model.num_shared_experts) * _count_matrices(model, model.expert_size)
    inner = model.intermediate_size
    biases = (inner * (2 if model.gated else 1) + model.hidden_size) * model.mlp_bias
    return _count_matrices(model, inner) + biases


def _count_matrices(model: ModelSpec, inner: int) -> int:
    return model.hidden_size * inner * (3 if model.gated else 2)
