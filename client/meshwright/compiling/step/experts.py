"""A mixture of experts: each token to its best experts, as many places in each as the capacity factor gives.

Rule: tokens are dealt out inside their own row and context shard, so that dealing needs no communication; places move
to the devices that have their expert (all-to-all over the expert axes) and back. Tokens beyond an expert's places
are dropped, as in Switch and GShard (arXiv:2101.03961, arXiv:2006.16668). Knows no optimizer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from meshwright.compiling.step.sharding import Layout
from meshwright.wire.model import ModelSpec

Array = jax.Array


class Deal(NamedTuple):
    """Who goes where, for tokens [groups.., tokens].

    Attributes:
        token: [groups.., experts, places] which token stands there; the number of tokens where none does.
        place: [groups.., tokens, choices] place in the expert; the number of places where it was dropped.
        expert: [groups.., tokens, choices].
        weight: [groups.., tokens, choices] in float32.
    """

    token: Array
    place: Array
    expert: Array
    weight: Array


def count_places(model: ModelSpec, tokens: int, capacity_factor: float) -> int:
    """Returns how many tokens of a group each expert takes."""
    average = tokens * (model.num_experts_per_tok or 1) / (model.num_experts or 1)
    return min(tokens, math.ceil(average * capacity_factor))


def deal_tokens(scores: Array, model: ModelSpec, places: int) -> Deal:
    """Returns where tokens go by their scores [groups.., tokens, experts]: first come, first served."""
    tokens, experts = scores.shape[-2:]
    chosen, expert = jax.lax.top_k(scores, model.num_experts_per_tok or 1)
    weight = jax.nn.softmax(chosen, axis=-1)
    flat = expert.reshape(*expert.shape[:-2], -1)
    hits = jax.nn.one_hot(flat, experts, dtype=jnp.int32)
    order = (jnp.cumsum(hits, axis=-2) * hits).sum(axis=-1) - 1
    place = jnp.minimum(order, places).reshape(expert.shape)
    token = _invert(expert, place, tokens, experts, places)
    return Deal(token, place, expert, weight)


def _invert(expert: Array, place: Array, tokens: int, experts: int, places: int) -> Array:
    """Returns which token stands at each place: [groups.., experts, places]."""

    def invert(expert: Array, place: Array) -> Array:
        numbers = jnp.broadcast_to(jnp.arange(tokens, dtype=jnp.int32)[:, None], expert.shape)
        return jnp.full((experts, places), tokens, jnp.int32).at[expert, place].set(numbers, mode="drop")

    for _ in range(expert.ndim - 2):
        invert = jax.vmap(invert)
    return invert(expert, place)


def send(tokens: Array, deal: Deal) -> Array:
    """Returns tokens [rows, shards, tokens, hidden] at their places: [rows, shards, experts, places, hidden]."""

    def pick(values: Array, index: Array) -> Array:
        return values.at[index].get(mode="fill", fill_value=0)

    return jax.vmap(jax.vmap(pick))(tokens, deal.token)


def receive(results: Array, deal: Deal) -> Array:
    """Returns the weighted sum of each token's results: [rows, shards, tokens, hidden]."""

    def pick(values: Array, expert: Array, place: Array, weight: Array) -> Array:
        found = values.at[expert, place].get(mode="fill", fill_value=0)
        return jnp.einsum("tkd,tk->td", found, weight.astype(found.dtype))

    return jax.vmap(jax.vmap(pick))(results, deal.expert, deal.place, deal.weight)


def to_experts(layout: Layout, dealt: Array) -> Array:
    """Returns places [rows, shards, experts, places, hidden] moved to the devices that have their experts."""
    axes = layout.axes
    dealt = layout.put(dealt, axes.batch, axes.context, None, None, None)
    return layout.put(dealt, axes.find("data", "fsdp"), axes.context, axes.expert, None, None)


def from_experts(layout: Layout, results: Array) -> Array:
    """Returns the results moved back to the devices of their tokens."""
    axes = layout.axes
    results = layout.put(results, axes.find("data", "fsdp"), axes.context, axes.expert, None, None)
    return layout.put(results, axes.batch, axes.context, None, None, None)
