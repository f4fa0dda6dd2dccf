"""A model and how it is trained, as requests give them: dimensions by the names that Hugging Face's config.json uses.

Rule: describes the model, and not its sharding. A preset or a config.json is read in `meshwright.planning.models`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StrictInt

from meshwright.wire.base import Line, Reply, RequestPart

Count = Annotated[StrictInt, Field(ge=1, le=2**40)]
CountOrZero = Annotated[StrictInt, Field(ge=0, le=2**40)]
Bound = Annotated[float, Field(gt=0, allow_inf_nan=False)]
WeightDtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
Remat = Literal["none", "minimal", "full", "offload"]
Attention = Literal["flash", "xla"]
QkNormScale = Literal["head", "all_heads", "none"]


MemoryShare = Annotated[
    Literal["conservative", "balanced", "aggressive"] | None,
    Field(
        description="how much of a GPU's memory the job's JAX may take: 0.6, 0.75 (JAX's default) or 0.9 of it; null: "
        "0.92 where a model is trained, else 0.75"
    ),
]
BATCH_MAX: Final = 2**24
"""Sequences in a step."""


class ModelSpec(RequestPart):
    """A decoder-only transformer by its dimensions. Vectors and norms as the family of the model has them.

    Of layers that look at a part of the sequence, or have experts, it says how many there are. Modules beside the
    layers that predict further tokens (DeepSeek-V3's `num_nextn_predict_layers`) are no part of it.
    """

    name: Line | None = Field(default=None, max_length=128, description="what people call it")

    # ---- sizes
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count = Field(description="of the dense feed-forward layers")
    num_hidden_layers: Count
    num_attention_heads: Count

    # ---- attention
    num_key_value_heads: Count | None = Field(default=None, description="null: as many as query heads")
    head_dim: Count | None = Field(default=None, description="null: hidden_size ÷ num_attention_heads")
    attention_bias: StrictBool = Field(default=False, description="on query, key and value")
    attention_output_bias: StrictBool = False
    qk_norm: StrictBool = Field(default=False, description="a norm on queries and on keys")
    qk_norm_scale: QkNormScale = Field(
        default="head", description="head: one scale of head_dim; all_heads: one over all heads together; none"
    )
    attention_sinks: StrictBool = Field(default=False, description="a score for each head that no token has")
    attn_logit_softcapping: Bound | None = Field(default=None, description="scores are kept below it by a tanh")

    # ---- latent attention (DeepSeek-V2): queries, keys and values through narrow matrices; used if kv_lora_rank is set
    q_lora_rank: Count | None = Field(default=None, description="null: queries are made directly")
    kv_lora_rank: Count | None = Field(
        default=None, description="of keys and values together; null: no latent attention"
    )
    qk_nope_head_dim: Count | None = Field(default=None, description="of a head's query and key, without position")
    qk_rope_head_dim: Count | None = Field(
        default=None, description="beside it, turned by position; one key for all heads"
    )
    v_head_dim: Count | None = Field(default=None, description="of a head's value")

    # ---- which tokens a token attends to; all before it unless one of these limits them
    sliding_window: Count | None = Field(default=None, description="the last so many")
    attention_chunk_size: Count | None = Field(default=None, description="those in its chunk of so many")
    num_window_layers: CountOrZero | None = Field(
        default=None, description="layers that have the window or chunk, the others attend to all; null: all have"
    )
    global_head_dim: Count | None = Field(default=None, description="of layers without the window; null: head_dim")
    num_global_key_value_heads: Count | None = Field(default=None, description="there, where keys are values too")
    index_topk: Count | None = Field(default=None, description="the so many that an indexer chooses (DeepSeek-V3.2)")
    index_n_heads: Count | None = Field(default=None, description="of the indexer")
    index_head_dim: Count | None = Field(default=None, description="of the indexer")

    # ---- the layer
    activation: Literal["silu", "gelu"] = "silu"
    gated: StrictBool = Field(default=True, description="SwiGLU or GeGLU: three matrices; false: two")
    mlp_bias: StrictBool = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    pre_norms: StrictBool = Field(default=True, description="before attention and before the feed-forward block")
    post_attention_norm: StrictBool = Field(default=False, description="of what attention gives, before it is added")
    post_feedforward_norm: StrictBool = Field(default=False, description="of what the block gives, before it is added")
    use_parallel_residual: StrictBool = Field(default=False, description="attention and block side by side")

    # ---- before and behind the layers
    positions: Literal["rope", "learned"] = "rope"
    max_position_embeddings: Count | None = Field(
        default=None, description="the longest sequence; needed where positions are learned"
    )
    tie_word_embeddings: StrictBool = False
    final_logit_softcapping: Bound | None = Field(default=None, description="logits are kept below it by a tanh")

    # ---- mixture of experts
    num_experts: Count | None = Field(default=None, description="null: a dense model")
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = Field(default=None, description="of one expert; null: intermediate_size")
    expert_bias: StrictBool = Field(default=False, description="on the matrices of each expert")
    router_bias: StrictBool = Field(
        default=False, description="trained; a correction that no gradient trains, as DeepSeek-V3's, is not counted"
    )
    num_shared_experts: Annotated[StrictInt, Field(ge=0, le=64)] = Field(
        default=0, description="experts that every token goes through"
    )
    shared_expert_intermediate_size: Count | None = Field(
        default=None, description="of one shared expert; null: moe_intermediate_size"
    )
    shared_expert_gate: StrictBool = Field(default=False, description="a number that scales what shared experts give")
    num_expert_layers: Count | None = Field(
        default=None, description="layers that have experts, the others are dense; null: all have, where there are any"
    )

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values; in latent attention each head has its own."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def is_latent(self) -> bool:
        """Whether keys and values go through one narrow matrix."""
        return self.kv_lora_rank is not None

    @property
    def head_size(self) -> int:
        """Elements of one head's query and key."""
        if self.is_latent:
            return (self.qk_nope_head_dim or 0) + (self.qk_rope_head_dim or 0)
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def value_size(self) -> int:
        """Elements of one head's value."""
        return (self.v_head_dim or 0) if self.is_latent else self.head_size

    @property
    def expert_size(self) -> int:
        """Intermediate size of one expert."""
        return self.moe_intermediate_size or self.intermediate_size

    @property
    def shared_size(self) -> int:
        """Intermediate size of all shared experts together."""
        return self.num_shared_experts * (self.shared_expert_intermediate_size or self.expert_size)

    @property
    def expert_layer_count(self) -> int:
        """Layers with experts."""
        if self.num_experts is None:
            return 0
        return self.num_expert_layers or self.num_hidden_layers

    @property
    def dense_layer_count(self) -> int:
        """Layers without experts."""
        return self.num_hidden_layers - self.expert_layer_count

    @property
    def window(self) -> int | None:
        """Tokens of a window or chunk; None: every layer attends to all before."""
        return self.sliding_window or self.attention_chunk_size

    @property
    def has_two_head_sizes(self) -> bool:
        """Whether layers without the window have heads of their own size or number."""
        return self.global_head_dim is not None or self.num_global_key_value_heads is not None

    @property
    def window_layer_count(self) -> int:
        """Layers that attend in windows or chunks."""
        if self.window is None:
            return 0
        return self.num_hidden_layers if self.num_window_layers is None else self.num_window_layers


def _pop_default(schema: dict[str, Any]) -> None:
    """Leaves the default out of the OpenAPI document: a client that sends it asks for something else."""
    schema.pop("default", None)


class TrainingSpec(RequestPart):
    """How it is trained: one optimizer step."""

    seq_len: Annotated[StrictInt, Field(ge=1, le=2**24)] = Field(
        default=4096,
        json_schema_extra=_pop_default,
        description="tokens; not said: the model's max_position_embeddings, at most 8192, and 4096 where it has none",
    )
    global_batch_size: Annotated[StrictInt, Field(ge=1, le=BATCH_MAX)] = Field(
        default=BATCH_MAX,
        json_schema_extra=_pop_default,
        description="sequences in one optimizer step, which a plan or search needs; of POST /batch-size the most to "
        "look at, and what a mesh is searched for; not said: no bound",
    )
    gradient_accumulation_steps: Annotated[StrictInt, Field(ge=1, le=2**16)] = Field(
        default=1,
        json_schema_extra=_pop_default,
        description="forward and backward passes in one step, each on its part of the batch; not said: a plan's choice",
    )
    weight_dtype: WeightDtype = "float32"
    compute_dtype: ComputeDtype = "bfloat16"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    first_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: as the weights")
    second_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: as the weights")
    remat: Remat = Field(
        default="full",
        json_schema_extra=_pop_default,
        description="what the backward pass computes again: none; minimal: all but matmuls; full: each layer; offload: "
        "as full, with the layers' inputs in the host's memory; not said: a plan's choice",
    )
    attention: Attention = Field(
        default="flash", description="flash: blocks of queries and keys; xla: the whole matrix of scores"
    )
    scan_layers: StrictBool = Field(default=True, description="one compiled layer in a loop; false: all unrolled")
    capacity_factor: Annotated[float, Field(gt=0, le=64, allow_inf_nan=False)] = Field(
        default=1.25, description="of mixtures of experts: places in an expert ÷ tokens that it gets on average"
    )


class ModelFacts(Reply):
    """What a plan says of the model that it was made for."""

    name: str | None = None
    parameter_count: int = Field(description="of what is trained, exactly")
