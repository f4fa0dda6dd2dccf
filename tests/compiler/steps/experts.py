"""A mixture of experts on a mesh: each token goes to its best few, as far as they have places.

Rule: an expert has the same number of places for the tokens of every device; tokens beyond them are dropped. Tokens go
to their experts and back by all-to-all over the expert axis. Source: Lepikhin et al., GShard, arXiv 2006.16668.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from meshwright.wire.model import ModelSpec
from tests.compiler.steps.axes import Array, Axes

Activate = Callable[[Array, Array | None], Array]


def mix_experts(
    wide: Array, one: Mapping[str, Array], model: ModelSpec, factor: float, axes: Axes, activate: Activate
) -> Array:
    """Returns what the experts add [sequence, position, width]: a partial sum over the tensor axis.

    Args:
        wide: tokens, whole over the tensor axis.
        one: weights of a layer; experts are split over the expert axis.
        model: how many experts, and how many of them each token goes to.
        factor: places of an expert ÷ tokens that it gets on average.
        axes: of the mesh.
        activate: of up and gate.
    """
    tokens = wide.reshape(-1, wide.shape[-1])
    count, each = model.num_experts or 1, model.num_experts_per_tok or 1
    places = math.ceil(len(tokens) * each / count * factor)
    chance = jax.nn.softmax(jnp.dot(tokens, one["router"], preferred_element_type=jnp.float32), axis=-1)
    share, expert = jax.lax.top_k(chance, each)
    share = share / share.sum(axis=-1, keepdims=True)
    slot = find_slots(expert, count, places)
    sent = jnp.zeros((count * places + 1, tokens.shape[-1]), tokens.dtype).at[slot].set(tokens[:, None])[:-1]
    done = _run_experts(sent.reshape(count, places, -1), one, axes, activate)
    back = jnp.concatenate([done.reshape(count * places, -1), jnp.zeros((1, tokens.shape[-1]), done.dtype)])[slot]
    return jnp.einsum("tew,te->tw", back, share.astype(back.dtype)).reshape(wide.shape)


def find_slots(expert: Array, count: int, places: int) -> Array:
    """Returns for each token [token, choice] its row in [expert × place]; count × places where it has none.

    Args:
        expert: [token, choice], of `count`.
        count: of experts.
        places: of each.
    """
    chosen = jax.nn.one_hot(expert.T.reshape(-1), count, dtype=jnp.int32)
    before = ((jnp.cumsum(chosen, axis=0) - chosen) * chosen).sum(axis=-1).reshape(expert.T.shape).T
    return jnp.where(before < places, expert * places + before, count * places)


def _run_experts(sent: Array, one: Mapping[str, Array], axes: Axes, activate: Activate) -> Array:
    """Returns [expert, place, width] after the experts of all devices had their tokens."""
    names = axes.list_names("expert")
    if names:
        sent = jax.lax.all_to_all(sent, names, split_axis=0, concat_axis=1, tiled=True)
    up = jnp.einsum("epw,ewf->epf", sent, one["experts_up"])
    gate = jnp.einsum("epw,ewf->epf", sent, one["experts_gate"]) if "experts_gate" in one else None
    done = jnp.einsum("epf,efw->epw", activate(up, gate), one["experts_down"])
    return jax.lax.all_to_all(done, names, split_axis=1, concat_axis=0, tiled=True) if names else done
