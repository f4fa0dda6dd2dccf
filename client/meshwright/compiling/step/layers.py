"""One decoder layer, and the blocks that it is made of.

Rule: between blocks the residual stream [batch, sequence, hidden] lies over the batch axes, and its sequence over
context and tensor axes ("sequence parallelism", Korthikanti et al., arXiv:2205.05198); inside a block heads or columns
lie over the tensor axes instead. Knows no loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiling.step import experts
from meshwright.compiling.step.attention import attend
from meshwright.compiling.step.axes import Axes
from meshwright.compiling.step.embedding import look_up
from meshwright.compiling.step.parameters import Tensors
from meshwright.compiling.step.sharding import EXPERT_MATMUL, Layout, keep
from meshwright.wire.model import ModelSpec, TrainingSpec

Array = jax.Array
Weights = dict[str, Array]

EPSILON = 1e-5
ROPE_BASE = 10_000.0


class Decoder:
    """The layers of one model on one mesh."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, layout: Layout, layer: Tensors) -> None:
        self._model = model
        self._training = training
        self._layout = layout
        self._layer = layer
        self.dtype: Any = jnp.dtype(training.compute_dtype)

    @property
    def residual(self) -> tuple[Axes, Axes]:
        """Over which axes rows and sequence of the residual stream lie."""
        axes = self._layout.axes
        together = (*axes.context, *axes.tensor)
        spread = axes.take(together, self._training.sequence_length) or axes.context
        return axes.batch, spread

    def apply(self, residual: Array, weights: Weights) -> Array:
        """Returns the residual stream behind the layer."""
        with jax.named_scope("token_mixing"):
            residual = self._rest(residual + self._attend(self._enter(residual, weights, "attention_norm"), weights))
        with jax.named_scope("feed_forward"):
            inside = self._enter(residual, weights, "mlp_norm")
            block = self._mix if self._model.num_experts else self._feed
            return self._rest(residual + block(inside, weights))

    def _rest(self, value: Array) -> Array:
        return self._layout.put(value, *self.residual, None)

    def _enter(self, residual: Array, weights: Weights, norm: str) -> Array:
        """Returns the normed stream with the part of the sequence that a block works on: gathered over tensor."""
        axes = self._layout.axes
        normed = self._again(partial(normalise, name=norm, model=self._model))(residual, weights)
        return self._layout.put(self._rest(normed), axes.batch, axes.context, None)

    def _again(self, function: Callable[..., Array]) -> Callable[..., Array]:
        """Returns a function of which the backward pass keeps no more than its arguments, where else it would all.

        With remat none: what a matmul gathered is gathered again, though its result is kept; norms begin from their
        narrow input.
        """
        return jax.checkpoint(function) if self._training.remat == "none" else function

    def _gather(self, weight: Array, name: str) -> Array:
        return self._layout.gather(weight, self._layer[name], self.dtype)

    def _project(self, value: Array, weights: Weights, name: str) -> Array:
        product = self._again(lambda value, weight: value @ self._gather(weight, name))(value, weights[name])
        bias = weights.get(f"{name}_bias")
        return product if bias is None else product + bias.astype(self.dtype)

    # ---- attention -------------------------------------------------------------------------------------

    def _attend(self, inside: Array, weights: Weights) -> Array:
        model, layout, axes = self._model, self._layout, self._layout.axes
        query = self._split_heads(self._project(inside, weights, "query"), model.num_attention_heads)
        key = self._split_heads(self._project(inside, weights, "key"), model.kv_heads)
        value = self._split_heads(self._project(inside, weights, "value"), model.kv_heads)
        if model.qk_norm:
            query, key = (scale_rms(x, weights[f"{n}_norm"]) for n, x in (("query", query), ("key", key)))
        if model.positions == "rope":
            query, key = rotate(query), rotate(key)
        key, value = self._gather_heads(key), self._gather_heads(value)
        heads = key.shape[2]
        grouped = query.reshape(*query.shape[:2], heads, model.num_attention_heads // heads, model.head_size)
        grouped = layout.put(grouped, axes.batch, axes.context, axes.tensor, None, None)
        mixed = attend(grouped, key, value, blocked=self._training.attention == "flash")
        mixed = layout.put(mixed, axes.batch, axes.context, axes.tensor, None, None)
        flat = mixed.reshape(*mixed.shape[:2], model.num_attention_heads * model.head_size)
        return self._rest(self._project(flat, weights, "output"))

    def _split_heads(self, value: Array, heads: int) -> Array:
        axes = self._layout.axes
        split = value.reshape(*value.shape[:2], heads, self._model.head_size)
        return self._layout.put(split, axes.batch, axes.context, axes.take_tensor(heads), None)

    def _gather_heads(self, value: Array) -> Array:
        """Returns keys or values of the whole sequence, each head repeated until the tensor axes divide the heads."""
        axes, kv_heads = self._layout.axes, self._model.kv_heads
        over = axes.take_tensor(kv_heads)
        whole = self._layout.spread(value, (axes.batch, axes.context, over, ()), (axes.batch, (), over, ()))
        copies = math.lcm(kv_heads, axes.measure(axes.tensor)) // kv_heads
        if copies == 1:
            return whole
        return self._layout.put(jnp.repeat(whole, copies, axis=2), axes.batch, None, axes.tensor, None)

    # ---- feed forward ----------------------------------------------------------------------------------

    def _feed(self, inside: Array, weights: Weights, prefix: str = "") -> Array:
        axes = self._layout.axes
        up = self._project(inside, weights, f"{prefix}up")
        inner = self._activate(self._project(inside, weights, f"{prefix}gate")) * up if self._model.gated else None
        inner = self._activate(up) if inner is None else inner
        inner = self._layout.put(inner, axes.batch, axes.context, axes.tensor)
        return self._rest(self._project(inner, weights, f"{prefix}down"))

    def _activate(self, value: Array) -> Array:
        return jax.nn.silu(value) if self._model.activation == "silu" else jax.nn.gelu(value)

    def _mix(self, inside: Array, weights: Weights) -> Array:
        model, layout, axes = self._model, self._layout, self._layout.axes
        rows, length, hidden = inside.shape
        shards = axes.measure(axes.context)
        grouped = inside.reshape(rows, shards, length // shards, hidden)
        grouped = layout.put(grouped, axes.batch, axes.context, None, None)
        scores = jnp.einsum("rcsd,de->rcse", grouped, self._gather(weights["router"], "router")).astype(jnp.float32)
        places = experts.count_places(model, length // shards, self._training.capacity_factor)
        deal = experts.deal_tokens(scores, model, places)
        results = self._run_experts(experts.to_experts(layout, experts.send(grouped, deal)), weights)
        mixed = experts.receive(experts.from_experts(layout, results), deal).reshape(rows, length, hidden)
        mixed = self._rest(layout.put(mixed, axes.batch, axes.context, None))
        return mixed + self._feed(inside, weights, "shared_") if model.num_shared_experts else mixed

    def _run_experts(self, places: Array, weights: Weights) -> Array:
        axes = self._layout.axes
        where = (axes.find("data", "fsdp"), axes.context, axes.expert, None)
        up = self._multiply(places, weights, "up")
        gated = self._activate(self._multiply(places, weights, "gate")) * up if self._model.gated else None
        up = self._activate(up) if gated is None else gated
        up = self._layout.put(up, *where, axes.tensor)
        return self._layout.put(self._multiply(up, weights, "down"), *where, None)

    def _multiply(self, places: Array, weights: Weights, name: str) -> Array:
        """Returns places [rows, shards, experts, places, in] through each expert's own matrix [experts, in, out]."""

        def multiply(places: Array, weight: Array) -> Array:
            return jnp.einsum("rcepd,edf->rcepf", places, self._gather(weight, name))

        return keep(self._again(multiply)(places, weights[name]), EXPERT_MATMUL)


def normalise(value: Array, weights: Weights, name: str, model: ModelSpec) -> Array:
    """Returns RMSNorm or LayerNorm over the last dimension, computed in float32, in the type of `value`."""
    if model.norm == "rmsnorm":
        return scale_rms(value, weights[name])
    wide = value.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + EPSILON)
    return (normed * weights[name] + weights[f"{name}_bias"]).astype(value.dtype)


def scale_rms(value: Array, scale: Array) -> Array:
    """Returns RMSNorm (Zhang and Sennrich, arXiv:1910.07467) over the last dimension."""
    wide = value.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + EPSILON)
    return (normed * scale).astype(value.dtype)


def rotate(value: Array) -> Array:
    """Returns [batch, sequence, heads, size] turned by position (RoPE, Su et al., arXiv:2104.09864)."""
    half = value.shape[-1] // 2
    rates = ROPE_BASE ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(value.shape[1], dtype=jnp.float32)[:, None] * rates
    sine, cosine = (turn(angles)[None, :, None, :] for turn in (jnp.sin, jnp.cos))
    low, high = value[..., :half].astype(jnp.float32), value[..., half:].astype(jnp.float32)
    turned = jnp.concatenate([low * cosine - high * sine, high * cosine + low * sine], axis=-1)
    return turned.astype(value.dtype)


def build_residual(tokens: Array, weights: dict[str, Any], decoder: Decoder, layout: Layout, outer: Tensors) -> Array:
    """Returns the embedded tokens [batch, sequence, hidden]."""
    dtype = decoder.dtype
    with jax.named_scope("embedding"):
        found = look_up(weights["embedding"], tokens, outer["embedding"], layout, dtype)
        if "positions" in weights:
            found = found + weights["positions"][: tokens.shape[1]].astype(dtype)
        return layout.put(found, *decoder.residual, None)
