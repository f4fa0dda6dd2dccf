"""A training step of a decoder-only transformer, written a second time, to weigh the product's against.

Rule: one `jax.shard_map` whose collectives are all written by hand, so that nothing is left to the partitioner. Written
from `meshwright.wire.model` and from papers, without a look at `meshwright.compiling`, with which it shares no line.

The residual stream is split over data and sequence axes, and between matmuls over tensor axes (Korthikanti et al.,
arXiv 2205.05198); keys and values are gathered over the context axis; logits stand for a piece of the tokens at a time,
split over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.compiler.steps.axes import Array, Axes
from tests.compiler.steps.blocks import attend_blocks, attend_plain, find_block
from tests.compiler.steps.experts import mix_experts
from tests.compiler.steps.weights import Weight, list_layer_weights, list_weights

LOSS_TOKENS: Final = 2048
"""Tokens of a device whose logits stand in memory at one time, at most."""

RATE, DECAY, FIRST, SECOND, TINY = 3e-4, 0.1, 0.9, 0.95, 1e-8
"""AdamW's, as GPT-3 was trained. Source: Brown et al., arXiv 2005.14165, appendix B."""

NORM_TINY: Final = 1e-5
ROPE_BASE: Final = 10000.0

MATMULS: Final = ("query", "key", "value", "out", "gate", "up", "down")
"""What is kept where everything but matmuls is computed again."""

Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Step:
    """One step: `function(*arguments)` returns the new state and the loss.

    Attributes:
        function: jitted; the state, its first argument, is donated.
        arguments: the state, token ids and next ids [sequence, position], abstract and sharded.
    """

    function: Any
    arguments: tuple[Any, ...]


def build_step(model: ModelSpec, training: TrainingSpec, mesh: Mesh) -> Step:
    """Returns the step of a model on a mesh.

    Raises:
        ValueError: the model, the training or the mesh has something that this step has not.
    """
    if training.gradient_accumulation_steps != 1 or training.optimizer != "adamw":
        raise ValueError("this step has one pass and AdamW; ask for gradient_accumulation_steps 1 and optimizer adamw")
    decoder = Decoder(model, training, Axes(mesh))
    state, specs = decoder.describe_state()
    tokens = PartitionSpec(decoder.axes.list_names("data", "fsdp", "expert"), decoder.axes.list_names("context"))
    shape = (training.global_batch_size, training.seq_len)
    ids = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(mesh, tokens))
    function = jax.shard_map(
        decoder.run_step,
        mesh=mesh,
        in_specs=(specs, tokens, tokens),
        out_specs=(specs, PartitionSpec()),
        check_vma=False,
    )
    return Step(jax.jit(function, donate_argnums=0), (state, ids, ids))


@dataclass(frozen=True)
class Decoder:
    """The model on a mesh. All methods but those that describe run on one device's parts, inside `jax.shard_map`."""

    model: ModelSpec
    training: TrainingSpec
    axes: Axes

    @property
    def weights(self) -> dict[str, dict[str, Weight]]:
        """All weights, those of the layers stacked."""
        count = self.model.num_hidden_layers
        layers = {name: each.stack(count) for name, each in list_layer_weights(self.model).items()}
        return {"outside": list_weights(self.model), "layers": layers}

    @property
    def dtype(self) -> Any:
        """What is computed in."""
        return jnp.dtype(self.training.compute_dtype)

    def describe_state(self) -> tuple[Any, Any]:
        """Returns the state's arrays, abstract, and their specs."""
        specs = jax.tree.map(lambda each: self.axes.build_spec(each.splits), self.weights)

        def describe(dtype: str) -> Any:
            return jax.tree.map(
                lambda each, spec: jax.ShapeDtypeStruct(
                    each.shape, dtype, sharding=NamedSharding(self.axes.mesh, spec)
                ),
                self.weights,
                specs,
            )

        own = self.training.weight_dtype
        moments = (self.training.first_moment_dtype or own, self.training.second_moment_dtype or own)
        count = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(self.axes.mesh, PartitionSpec()))
        state = {
            "count": count,
            "weights": describe(own),
            "first": describe(moments[0]),
            "second": describe(moments[1]),
        }
        return state, {"count": PartitionSpec(), "weights": specs, "first": specs, "second": specs}

    def run_step(self, state: Any, ids: Array, next_ids: Array) -> tuple[Any, Array]:
        """Returns the state after one step, and the mean loss before it."""
        share, slopes = jax.value_and_grad(self.measure_share)(state["weights"], ids, next_ids)
        loss = self.axes.sum_up(share, "data", "fsdp", "expert", "context", "tensor")
        return step_adamw(state, slopes), loss

    def measure_share(self, weights: Mapping[str, Weights], ids: Array, next_ids: Array) -> Array:
        """Returns this device's share of the mean loss; the shares of all devices add up to it."""
        outside = {
            name: self.axes.use(weights["outside"][name], each.splits, self.dtype)
            for name, each in self.weights["outside"].items()
        }
        hidden = self.run_layers(self.embed(outside, ids), weights["layers"])
        hidden = self.axes.gather(self.normalize(hidden, outside, "last"), 1, "tensor")
        head = outside["embedding"].T if self.model.tie_word_embeddings else outside["head"]
        total = self.add_losses(hidden, head, next_ids)
        return total / (self.training.global_batch_size * self.training.seq_len * self.axes.size("tensor"))

    def embed(self, outside: Weights, ids: Array) -> Array:
        """Returns the residual stream [sequence, position of this device, width]."""
        table = outside["embedding"]
        rows = ids - self.axes.place("tensor") * table.shape[0]
        is_here = (rows >= 0) & (rows < table.shape[0])
        found = jnp.where(is_here[..., None], table[jnp.clip(rows, 0, table.shape[0] - 1)], 0)
        hidden = self.axes.scatter_sum(found, 1, "tensor")
        if self.model.positions != "learned":
            return hidden
        begin = self.axes.place("context", "tensor") * hidden.shape[1]
        return hidden + jax.lax.dynamic_slice_in_dim(outside["positions"], begin, hidden.shape[1])

    def run_layers(self, hidden: Array, layers: Weights) -> Array:
        """Returns the residual stream after all layers."""
        again = build_remat(self.training.remat, self.training.scan_layers)
        layer = again(self.run_layer)
        if self.training.scan_layers:
            return jax.lax.scan(lambda hidden, one: (layer(hidden, one), None), hidden, layers)[0]
        for index in range(self.model.num_hidden_layers):
            hidden = layer(hidden, {name: stacked[index] for name, stacked in layers.items()})
        return hidden

    def run_layer(self, hidden: Array, stored: Weights) -> Array:
        """Returns the residual stream after one layer."""
        splits = list_layer_weights(self.model)
        one = {name: self.axes.use(stored[name], each.splits, self.dtype) for name, each in splits.items()}
        hidden = hidden + self.attend(self.normalize(hidden, one, "before_attention"), one)
        wide = self.axes.gather(self.normalize(hidden, one, "before_mlp"), 1, "tensor")
        if not self.model.num_experts:
            return hidden + self.run_mlp(wide, one, "")
        mixed = mix_experts(wide, one, self.model, self.training.capacity_factor, self.axes, self.activate)
        hidden = hidden + self.axes.scatter_sum(mixed, 1, "tensor")
        return hidden + self.run_mlp(wide, one, "shared_") if self.model.num_shared_experts else hidden

    def run_mlp(self, wide: Array, one: Weights, prefix: str) -> Array:
        """Returns what a dense feed-forward adds to the residual stream."""
        up = checkpoint_name(wide @ one[f"{prefix}up"], "up")
        gate = checkpoint_name(wide @ one[f"{prefix}gate"], "gate") if self.model.gated else None
        return self.finish(self.activate(up, gate) @ one[f"{prefix}down"], "down")

    def activate(self, up: Array, gate: Array | None) -> Array:
        """Returns SwiGLU, GeGLU or the plain activation."""
        function = jax.nn.silu if self.model.activation == "silu" else partial(jax.nn.gelu, approximate=True)
        return function(up) if gate is None else function(gate) * up

    def finish(self, partial_sum: Array, name: str) -> Array:
        """Returns this device's positions of a sum over the tensor axis, named for what is kept of a layer."""
        return checkpoint_name(self.axes.scatter_sum(partial_sum, 1, "tensor"), name)

    def attend(self, narrow: Array, one: Weights) -> Array:
        """Returns what attention adds to the residual stream."""
        wide = self.axes.gather(narrow, 1, "tensor")
        names = ("query", "key", "value")
        query, key, value = (checkpoint_name(jnp.einsum("bsw,whd->bhsd", wide, one[name]), name) for name in names)
        begin = self.axes.place("context") * wide.shape[1]
        query, key = (self.turn(each, one, name, begin) for each, name in ((query, "query"), (key, "key")))
        key, value = (self.axes.gather(each, 2, "context") for each in (key, value))
        groups = query.reshape(query.shape[0], key.shape[1], -1, *query.shape[2:]) * query.shape[-1] ** -0.5
        function = attend_blocks if self.training.attention == "flash" else attend_plain
        mixed = function(groups.astype(self.dtype), key, value, begin).reshape(query.shape)
        return self.finish(jnp.einsum("bhsd,hdw->bsw", mixed, one["out"]), "out")

    def turn(self, heads: Array, one: Weights, name: str, begin: Array) -> Array:
        """Returns queries or keys [sequence, head, position, element] with their norm and their positions."""
        heads = self.normalize(heads, one, f"of_{name}") if self.model.qk_norm else heads
        return turn_by_position(heads, begin) if self.model.positions == "rope" else heads

    def normalize(self, hidden: Array, weights: Weights, name: str) -> Array:
        """Returns RMSNorm or LayerNorm over the last dimension, computed in float32."""
        whole = hidden.astype(jnp.float32)
        if self.model.norm == "layernorm":
            whole = whole - whole.mean(axis=-1, keepdims=True)
        even = whole * jax.lax.rsqrt((whole * whole).mean(axis=-1, keepdims=True) + NORM_TINY)
        scaled = even.astype(self.dtype) * weights[f"{name}_scale"]
        return scaled + weights[f"{name}_shift"] if self.model.norm == "layernorm" else scaled

    def add_losses(self, hidden: Array, head: Array, next_ids: Array) -> Array:
        """Returns the sum of all cross-entropies, in pieces whose logits are computed again for the gradient."""
        sequences, length, _ = hidden.shape
        size = find_block(length, max(1, LOSS_TOKENS // sequences))
        pieces = hidden.reshape(sequences, length // size, size, -1), next_ids.reshape(sequences, length // size, size)

        def add(total: Array, piece: tuple[Array, Array]) -> tuple[Array, None]:
            return total + self.add_piece(piece[0], head, piece[1]), None

        moved = jax.tree.map(lambda each: jnp.moveaxis(each, 1, 0), pieces)
        return jax.lax.scan(jax.checkpoint(add, prevent_cse=False), jnp.float32(0), moved)[0]

    def add_piece(self, hidden: Array, head: Array, next_ids: Array) -> Array:
        """Returns the sum of the cross-entropies of a piece; logits are split over the vocabulary."""
        logits = jnp.einsum("bsw,wv->bsv", hidden, head, preferred_element_type=jnp.float32)
        names = self.axes.list_names("tensor")
        top = jax.lax.stop_gradient(logits.max(axis=-1))
        top = jax.lax.pmax(top, names) if names else top
        logsum = top + jnp.log(self.axes.sum_up(jnp.exp(logits - top[..., None]).sum(axis=-1), "tensor"))
        columns = jnp.arange(logits.shape[-1]) + self.axes.place("tensor") * logits.shape[-1]
        mine = jnp.where(columns == next_ids[..., None], logits, 0).sum(axis=-1)
        return (logsum - self.axes.sum_up(mine, "tensor")).sum()


def turn_by_position(heads: Array, begin: Array) -> Array:
    """Returns [sequence, head, position, element] turned by rotary positions. Source: Su et al., arXiv 2104.09864."""
    half = heads.shape[-1] // 2
    speeds = ROPE_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (begin + jnp.arange(heads.shape[-2]))[:, None] * speeds
    one, other = heads[..., :half].astype(jnp.float32), heads[..., half:].astype(jnp.float32)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1).astype(heads.dtype)


def build_remat(remat: str, is_loop: bool) -> Callable[[Any], Any]:
    """Returns what wraps a layer, so that backward computes again what the policy does not keep."""
    policies = jax.checkpoint_policies
    policy = {
        "full": policies.nothing_saveable,
        "minimal": policies.save_only_these_names(*MATMULS),
        "none": _keep_all_but_gathered,
    }[remat]
    return partial(jax.checkpoint, policy=policy, prevent_cse=not is_loop)


def _keep_all_but_gathered(primitive: Any, *_: Any, **__: Any) -> bool:
    """Gathered weights are as large as the model; a trainer that keeps everything else gathers them again."""
    return str(primitive) != "all_gather"


def step_adamw(state: Any, slopes: Any) -> Any:
    """Returns the state after AdamW. Source: Loshchilov and Hutter, arXiv 1711.05101, algorithm 2."""
    count = state["count"] + 1
    scale_first, scale_second = 1 - FIRST**count, 1 - SECOND**count

    def step(weight: Array, first: Array, second: Array, slope: Array) -> tuple[Array, Array, Array]:
        own = slope.astype(jnp.float32)
        mean = FIRST * first.astype(jnp.float32) + (1 - FIRST) * own
        square = SECOND * second.astype(jnp.float32) + (1 - SECOND) * own * own
        move = mean / scale_first / (jnp.sqrt(square / scale_second) + TINY) + DECAY * weight.astype(jnp.float32)
        moved = weight.astype(jnp.float32) - RATE * move
        return moved.astype(weight.dtype), mean.astype(first.dtype), square.astype(second.dtype)

    stepped = jax.tree.map(step, state["weights"], state["first"], state["second"], slopes)
    parts = jax.tree.transpose(jax.tree.structure(slopes), jax.tree.structure((0, 0, 0)), stepped)
    return {"count": count, "weights": parts[0], "first": parts[1], "second": parts[2]}
