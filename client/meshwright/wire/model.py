"""A model and how it is trained, as requests give them: dimensions by the names that Hugging Face's config.json uses.

Rule: says what the model is, and nothing of how it is sharded. What a preset or a config.json means is read in
`meshwright.planning.models`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from meshwright.wire.base import Reply, RequestPart

Count = Annotated[StrictInt, Field(ge=1, le=2**40)]
WeightDtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["float32", "bfloat16", "float16"]
Remat = Literal["none", "minimal", "full"]
Attention = Literal["flash", "xla"]


class ModelSpec(RequestPart):
    """A decoder-only transformer by its dimensions. Vectors and norms as the family of the model has them."""

    name: StrictStr | None = Field(default=None, max_length=128, description="what people call it")
    vocab_size: Count
    hidden_size: Count
    intermediate_size: Count = Field(description="of the dense feed-forward layers")
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = Field(default=None, description="null: as many as query heads")
    head_dim: Count | None = Field(default=None, description="null: hidden_size ÷ num_attention_heads")
    activation: Literal["silu", "gelu"] = "silu"
    gated: StrictBool = Field(default=True, description="SwiGLU or GeGLU: three matrices; false: two")
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    positions: Literal["rope", "learned"] = "rope"
    max_position_embeddings: Count | None = Field(default=None, description="needed where positions are learned")
    tie_word_embeddings: StrictBool = False
    attention_bias: StrictBool = Field(default=False, description="on query, key and value")
    attention_output_bias: StrictBool = False
    mlp_bias: StrictBool = False
    qk_norm: StrictBool = Field(default=False, description="a norm over head_dim on queries and on keys, as Qwen3 has")
    num_experts: Count | None = Field(default=None, description="null: a dense model")
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = Field(default=None, description="of one expert; null: intermediate_size")
    num_shared_experts: Annotated[StrictInt, Field(ge=0, le=64)] = Field(
        default=0, description="experts of moe_intermediate_size that every token goes through"
    )

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def expert_size(self) -> int:
        """Intermediate size of one expert."""
        return self.moe_intermediate_size or self.intermediate_size


class TrainingSpec(RequestPart):
    """How it is trained: one optimizer step."""

    sequence_length: Annotated[StrictInt, Field(ge=1, le=2**24)] = 4096
    global_batch: Annotated[StrictInt, Field(ge=1, le=2**24)] = Field(description="sequences in one optimizer step")
    gradient_accumulation: Annotated[StrictInt, Field(ge=1, le=2**16)] = Field(
        default=1, description="forward and backward passes in one step, each on its part of the batch"
    )
    weight_dtype: WeightDtype = "float32"
    compute_dtype: ComputeDtype = "bfloat16"
    optimizer: Literal["adamw", "sgd"] = "adamw"
    first_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: as the weights")
    second_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: as the weights")
    remat: Remat = Field(
        default="full",
        description="what the backward pass computes again: none; minimal: all but matmuls; full: each layer",
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
    active_parameter_count: int = Field(description="that one token goes through")
