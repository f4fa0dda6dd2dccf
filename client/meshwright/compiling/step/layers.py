"""The decoder layer of the compiled step: embedding, attention, feed-forward and experts.

Between blocks the residual stream [batch, sequence, hidden] is split over the batch axes, and its sequence over context
and tensor axes ("sequence parallelism", Korthikanti et al., arXiv:2205.05198); inside a block heads or columns are
split over the tensor axes instead.

Attention is causal and computed in blocks of keys, so that the matrix of scores is never held whole (Dao et al.,
"FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2, in plain XLA), or plainly where asked. The forward pass saves
the output and one number a row; the backward pass computes the scores again.

The embedding's gradient goes to the devices with its columns by an all-to-all over each axis, and is summed there. It
is written per device, because the partitioner would gather the gradients of the whole batch on every device.

Experts: each token goes to its best experts. The capacity factor sets the number of places of each expert. Tokens are
assigned inside their own row and context shard, without communication; places move to the devices of their expert by an
all-to-all over the expert axes, and back. Tokens beyond an expert's places are dropped, as in Switch and GShard
(arXiv:2101.03961, arXiv:2006.16668).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from meshwright.compiling.step.sharding import ShardedTensor, StepSharding, Tensors, build_spec, keep, list_axes
from meshwright.planning.job_code import EXPERT_MATMUL, LAYER_INPUT
from meshwright.planning.parallelism import Axes
from meshwright.wire.model import ModelSpec, TrainingSpec

Array = jax.Array

Rows = tuple[Array, Array, Array]

BLOCK: Final = 512
"""Keys in a block: scores of a block are [.., queries, 512]."""

_MASKED: Final = -1e30
"""Not −inf, since a difference of two −inf is not a number."""


def attend(query: Array, key: Array, value: Array, *, blocked: bool) -> Array:
    """Returns causal attention [batch, queries, heads, size] in the type of `query`.

    Args:
        query: [batch, queries, heads, group, size]: `group` queries share each head of keys.
        key, value: [batch, keys, heads, size]; the number of keys is that of queries.
        blocked: computes in blocks; otherwise the scores are one array.
    """
    with jax.named_scope("attention"):
        if not blocked or key.shape[1] <= BLOCK:
            return _attend_whole(query, key, value)
        return _attend_blocks(query, key, value, find_block(key.shape[1]))


def find_block(length: int) -> int:
    """Returns the largest block of at most `BLOCK` keys that divides the sequence."""
    return next(size for size in range(min(BLOCK, length), 0, -1) if length % size == 0)


def _score(query: Array, key: Array, start: Array | int) -> Array:
    """Returns scores [batch, heads, group, queries, keys] in float32; keys begin at `start`.

    Where `start` is traced, the barrier ties it to this turn's keys: the mask hangs on nothing else of the loop, and
    JAX (0.10 to 0.12) would take the masks of all blocks out of it: a byte for each score of the whole sequence.
    """
    scale = query.shape[-1] ** -0.5
    if not isinstance(start, int):
        start, _ = jax.lax.optimization_barrier((start, key))
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", query, key, preferred_element_type=jnp.float32) * scale
    rows = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 3)
    columns = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 4) + start
    return jnp.where(columns <= rows, scores, _MASKED)


def _attend_whole(query: Array, key: Array, value: Array) -> Array:
    weights = jax.nn.softmax(_score(query, key, 0), axis=-1).astype(value.dtype)
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, value)


def _split(key: Array, value: Array, block: int) -> Rows:
    """Returns keys and values [blocks, batch, block, heads, size], and where each block begins."""
    batch, length, *rest = key.shape
    keys, values = (jnp.moveaxis(x.reshape(batch, length // block, block, *rest), 1, 0) for x in (key, value))
    return keys, values, jnp.arange(0, length, block, dtype=jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend_blocks(query: Array, key: Array, value: Array, block: int) -> Array:
    return _forward(query, key, value, block)[0]


def _forward(query: Array, key: Array, value: Array, block: int) -> tuple[Array, Array]:
    """Returns the output, and the logarithm of each row's sum [batch, heads, group, queries]."""
    batch, length, heads, group, size = query.shape
    rows = (batch, heads, group, length)

    def step(carry: Rows, part: Rows) -> tuple[Rows, None]:
        top, total, output = carry
        keys, values, start = part
        scores = _score(query, keys, start)
        new_top = jnp.maximum(top, scores.max(axis=-1))
        weights = jnp.exp(scores - new_top[..., None])
        shrink = jnp.exp(top - new_top)
        more = jnp.einsum("bhgqk,bkhd->bhgqd", weights.astype(values.dtype), values, preferred_element_type=jnp.float32)
        return (new_top, total * shrink + weights.sum(axis=-1), output * shrink[..., None] + more), None

    first = (jnp.full(rows, _MASKED), jnp.zeros(rows), jnp.zeros((*rows, size)))
    (top, total, output), _ = jax.lax.scan(step, first, _split(key, value, block))
    normed = (output / total[..., None]).astype(query.dtype)
    return jnp.einsum("bhgqd->bqhgd", normed), top + jnp.log(total)


def _attend_forward(query: Array, key: Array, value: Array, block: int) -> tuple[Array, tuple[Array, ...]]:
    output, logs = _forward(query, key, value, block)
    return output, (query, key, value, output, logs)


def _attend_backward(block: int, kept: tuple[Array, ...], gradient: Array) -> tuple[Array, Array, Array]:
    query, key, value, output, logs = kept
    scale = query.shape[-1] ** -0.5
    deltas = jnp.einsum("bqhgd,bqhgd->bhgq", output, gradient, preferred_element_type=jnp.float32)

    def step(of_query: Array, part: Rows) -> tuple[Array, tuple[Array, Array]]:
        keys, values, start = part
        weights = jnp.exp(_score(query, keys, start) - logs[..., None])
        of_value = jnp.einsum("bhgqk,bqhgd->bkhd", weights.astype(gradient.dtype), gradient)
        of_weights = jnp.einsum("bqhgd,bkhd->bhgqk", gradient, values, preferred_element_type=jnp.float32)
        of_scores = (weights * (of_weights - deltas[..., None]) * scale).astype(query.dtype)
        of_key = jnp.einsum("bhgqk,bqhgd->bkhd", of_scores, query)
        added = jnp.einsum("bhgqk,bkhd->bqhgd", of_scores, keys, preferred_element_type=jnp.float32)
        return of_query + added, (of_key, of_value)

    with jax.named_scope("attention"):
        zero = jnp.zeros(query.shape, jnp.float32)
        of_query, (of_key, of_value) = jax.lax.scan(step, zero, _split(key, value, block))
    return of_query.astype(query.dtype), _join(of_key, key), _join(of_value, value)


def _join(parts: Array, like: Array) -> Array:
    return jnp.moveaxis(parts, 0, 1).reshape(like.shape)


_attend_blocks.defvjp(_attend_forward, _attend_backward)


_BATCH, _SEQUENCE, _HIDDEN = range(3)


def look_up(weight: Array, tokens: Array, tensor: ShardedTensor, layout: StepSharding, dtype: Any) -> Array:
    """Returns the rows [batch, sequence, hidden] of the table [vocabulary, hidden], hidden as its columns are used."""
    used = list_axes(tensor.used[1])

    @jax.custom_vjp
    def find(weight: Array, tokens: Array) -> Array:
        table = layout.gather(weight, tensor, dtype)
        return layout.put(jnp.take(table, tokens, axis=0), layout.axes.batch, layout.axes.context, used)

    def forward(weight: Array, tokens: Array) -> tuple[Array, Array]:
        return find(weight, tokens), tokens

    def backward(tokens: Array, gradient: Array) -> tuple[Array, None]:
        return _add_rows(gradient, tokens, tensor, layout).astype(weight.dtype), None

    find.defvjp(forward, backward)
    return find(weight, tokens)


def _add_rows(gradient: Array, tokens: Array, tensor: ShardedTensor, layout: StepSharding) -> Array:
    """Returns the table's gradient [vocabulary, hidden], where the table is stored."""
    batch, context = layout.axes.batch, layout.axes.context
    used = list_axes(tensor.used[1])
    kept = list_axes(tensor.stored[1])[len(used) :]

    def add(gradient: Array, tokens: Array) -> Array:
        for name in kept:
            here = _BATCH if name in batch else _SEQUENCE
            gradient = jax.lax.all_to_all(gradient, name, _HIDDEN, here, tiled=True)
            tokens = jax.lax.all_gather(tokens, name, axis=here, tiled=True)
        summed = jnp.zeros((tensor.shape[0], gradient.shape[_HIDDEN]), gradient.dtype).at[tokens].add(gradient)
        others = tuple(name for name in (*batch, *context) if name not in kept)
        return jax.lax.psum(summed, others) if others else summed

    rows = build_spec(batch, context)
    added: Array = jax.shard_map(
        add,
        mesh=layout.mesh,
        in_specs=(build_spec(batch, context, used), rows),
        out_specs=tensor.stored,
        check_vma=False,
    )(gradient, tokens)
    return added


class Routing(NamedTuple):
    """The assignment of tokens [groups.., tokens] to places of experts.

    Attributes:
        token: [groups.., experts, places] the token at each place; the number of tokens where the place is empty.
        place: [groups.., tokens, choices] place in the expert; the number of places where it was dropped.
        expert: [groups.., tokens, choices].
        weight: [groups.., tokens, choices] in float32.
    """

    token: Array
    place: Array
    expert: Array
    weight: Array


def count_places(model: ModelSpec, tokens: int, capacity_factor: float) -> int:
    """Returns the number of tokens of a group that each expert takes."""
    average = tokens * (model.num_experts_per_tok or 1) / (model.num_experts or 1)
    return min(tokens, math.ceil(average * capacity_factor))


def route_tokens(scores: Array, model: ModelSpec, places: int) -> Routing:
    """Returns where tokens go by their scores [groups.., tokens, experts]: first come, first served."""
    tokens, experts = scores.shape[-2:]
    chosen, expert = jax.lax.top_k(scores, model.num_experts_per_tok or 1)
    weight = jax.nn.softmax(chosen, axis=-1)
    flat = expert.reshape(*expert.shape[:-2], -1)
    hits = jax.nn.one_hot(flat, experts, dtype=jnp.int32)
    order = (jnp.cumsum(hits, axis=-2) * hits).sum(axis=-1) - 1
    place = jnp.minimum(order, places).reshape(expert.shape)
    token = _invert(expert, place, tokens, experts, places)
    return Routing(token, place, expert, weight)


def _invert(expert: Array, place: Array, tokens: int, experts: int, places: int) -> Array:
    """Returns the token at each place: [groups.., experts, places]."""

    def invert(expert: Array, place: Array) -> Array:
        numbers = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32)[:, None], expert.shape)
        return jnp.full((experts, places), tokens, jnp.int32).at[expert, place].set(numbers, mode="drop")

    for _ in range(expert.ndim - 2):
        invert = jax.vmap(invert)
    return invert(expert, place)


def dispatch_tokens(tokens: Array, routing: Routing) -> Array:
    """Returns tokens [rows, shards, tokens, hidden] at their places: [rows, shards, experts, places, hidden]."""

    def pick(values: Array, index: Array) -> Array:
        return values.at[index].get(mode="fill", fill_value=0)

    return jax.vmap(jax.vmap(pick))(tokens, routing.token)


def combine_results(results: Array, routing: Routing) -> Array:
    """Returns the weighted sum of each token's results: [rows, shards, tokens, hidden]."""

    def pick(values: Array, expert: Array, place: Array, weight: Array) -> Array:
        found = values.at[expert, place].get(mode="fill", fill_value=0)
        return jnp.einsum("tkd,tk->td", found, weight.astype(found.dtype))

    return jax.vmap(jax.vmap(pick))(results, routing.expert, routing.place, routing.weight)


def to_experts(layout: StepSharding, dispatched: Array) -> Array:
    """Returns places [rows, shards, experts, places, hidden] moved to the devices that have their experts."""
    axes = layout.axes
    dispatched = layout.put(dispatched, axes.batch, axes.context, None, None, None)
    return layout.put(dispatched, axes.find("data", "fsdp"), axes.context, axes.expert, None, None)


def from_experts(layout: StepSharding, results: Array) -> Array:
    """Returns the results moved back to the devices of their tokens."""
    axes = layout.axes
    results = layout.put(results, axes.find("data", "fsdp"), axes.context, axes.expert, None, None)
    return layout.put(results, axes.batch, axes.context, None, None, None)


Weights = dict[str, Array]

EPSILON = 1e-5
ROPE_BASE = 10_000.0


class Decoder:
    """The layers of one model on one mesh."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, layout: StepSharding, layer: Tensors) -> None:
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
        spread = axes.take(together, self._training.seq_len) or axes.context
        return axes.batch, spread

    def apply(self, residual: Array, weights: Weights) -> Array:
        """Returns the residual stream behind the layer."""
        residual = keep(residual, LAYER_INPUT)
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
        """Returns a function whose backward pass saves only its arguments, where it would otherwise save all.

        With remat none, the gathered input of a matmul is gathered again, though its result is saved. Norms are
        computed again from their narrow input.
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
        inner = self._activate(lambda name: self._project(inside, weights, f"{prefix}{name}"))
        inner = self._layout.put(inner, axes.batch, axes.context, axes.tensor)
        return self._rest(self._project(inner, weights, f"{prefix}down"))

    def _activate(self, multiply: Callable[[str], Array]) -> Array:
        """Returns what comes out of a block's first matmuls, which `multiply` does by name: up, and gate."""
        activation = jax.nn.silu if self._model.activation == "silu" else jax.nn.gelu
        up = multiply("up")
        return activation(multiply("gate")) * up if self._model.gated else activation(up)

    def _mix(self, inside: Array, weights: Weights) -> Array:
        model, layout, axes = self._model, self._layout, self._layout.axes
        rows, length, hidden = inside.shape
        shards = axes.measure(axes.context)
        grouped = inside.reshape(rows, shards, length // shards, hidden)
        grouped = layout.put(grouped, axes.batch, axes.context, None, None)
        scores = jnp.einsum("rcsd,de->rcse", grouped, self._gather(weights["router"], "router")).astype(jnp.float32)
        places = count_places(model, length // shards, self._training.capacity_factor)
        routing = route_tokens(scores, model, places)
        results = self._run_experts(to_experts(layout, dispatch_tokens(grouped, routing)), weights)
        mixed = combine_results(from_experts(layout, results), routing).reshape(rows, length, hidden)
        mixed = self._rest(layout.put(mixed, axes.batch, axes.context, None))
        return mixed + self._feed(inside, weights, "shared_") if model.num_shared_experts else mixed

    def _run_experts(self, places: Array, weights: Weights) -> Array:
        axes = self._layout.axes
        where = (axes.find("data", "fsdp"), axes.context, axes.expert, None)
        inner = self._activate(lambda name: self._multiply(places, weights, name))
        inner = self._layout.put(inner, *where, axes.tensor)
        return self._layout.put(self._multiply(inner, weights, "down"), *where, None)

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


def build_residual(
    tokens: Array, weights: dict[str, Any], decoder: Decoder, layout: StepSharding, outer: Tensors
) -> Array:
    """Returns the embedded tokens [batch, sequence, hidden]."""
    dtype = decoder.dtype
    with jax.named_scope("embedding"):
        found = look_up(weights["embedding"], tokens, outer["embedding"], layout, dtype)
        if "positions" in weights:
            found = found + weights["positions"][: tokens.shape[1]].astype(dtype)
        return layout.put(found, *decoder.residual, None)
