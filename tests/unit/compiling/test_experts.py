"""Routing of tokens to experts: nobody twice in a place, the first come first, and the sum that a dense mixture has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from meshwright.compiling.step.layers import (
    Routing,
    combine_results,
    count_places,
    dispatch_tokens,
    from_experts,
    route_tokens,
    to_experts,
)
from meshwright.compiling.step.sharding import StepSharding
from meshwright.planning.parallelism import MeshAxes
from meshwright.wire.model import ModelSpec
from tests.unit.planning.models import PLAIN

HIDDEN = 6


def build_model(experts: int, choices: int) -> ModelSpec:
    return ModelSpec(**PLAIN, num_experts=experts, num_experts_per_tok=choices)


def draw_scores(seed: int, tokens: int, experts: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(2, 1, tokens, experts)), jnp.float32)


def run(scores: jax.Array, choices: int, places: int, tokens: jax.Array) -> tuple[Routing, jax.Array]:
    """Returns the routing, and what experts that multiply by their number plus 1 make of the tokens."""
    experts = scores.shape[-1]
    routing = route_tokens(scores, build_model(experts, choices), places)
    factors = jnp.arange(1.0, experts + 1)[:, None, None]
    return routing, combine_results(dispatch_tokens(tokens, routing) * factors, routing)


def draw_tokens(scores: jax.Array) -> jax.Array:
    return jnp.asarray(np.random.default_rng(9).normal(size=(*scores.shape[:-1], HIDDEN)), jnp.float32)


def sum_by_numpy(scores: Any, choices: int, places: int, tokens: Any) -> np.ndarray[Any, Any]:
    """Returns the weighted sums over the experts that each token chose and found a place in, a token at a time."""
    found = np.zeros(tokens.shape)
    for group in np.ndindex(tokens.shape[:-2]):
        taken = np.zeros(scores.shape[-1], int)
        for token, row in enumerate(np.asarray(scores[group], np.float64)):
            chosen = np.argsort(-row, kind="stable")[:choices]
            weights = np.exp(row[chosen] - row[chosen].max())
            for expert, weight in zip(chosen, weights / weights.sum(), strict=True):
                if taken[expert] < places:
                    found[group][token] += weight * (expert + 1) * np.asarray(tokens[group][token], np.float64)
                taken[expert] += 1
    return found


@pytest.mark.parametrize(("experts", "choices"), [(4, 1), (8, 3)])
@pytest.mark.parametrize("places", [12, 3, 1], ids=["room for all", "some dropped", "most dropped"])
def test_a_token_gets_the_weighted_sum_of_the_experts_that_had_a_place(experts: int, choices: int, places: int) -> None:
    scores = draw_scores(experts, 12, experts)
    tokens = draw_tokens(scores)
    _, found = run(scores, choices, places, tokens)
    np.testing.assert_allclose(found, sum_by_numpy(scores, choices, places, tokens), atol=1e-5)


@pytest.mark.parametrize(("tokens", "experts", "choices", "factor", "places"), [
    (128, 8, 2, 1.0, 32), (128, 8, 2, 1.25, 40), (10, 8, 1, 1.0, 2), (16, 4, 2, 64.0, 16), (1, 64, 1, 1.0, 1),
])  # fmt: skip
def test_places_are_average_times_factor(tokens: int, experts: int, choices: int, factor: float, places: int) -> None:
    assert count_places(build_model(experts, choices), tokens, factor) == places


def test_places_move_to_the_devices_of_their_experts_and_back() -> None:
    shape = {"fsdp": 2, "ep": 4}
    mesh = jax.make_mesh((2, 4), ("fsdp", "ep"), axis_types=(AxisType.Auto,) * 2)
    layout = StepSharding(mesh, MeshAxes.of(shape))
    dispatched = jnp.arange(8.0 * 4 * 3 * 2).reshape(8, 1, 4, 3, 2)
    there = jax.jit(lambda value: to_experts(layout, value))(dispatched)
    back = jax.jit(lambda value: from_experts(layout, value))(there)
    assert there.sharding.shard_shape(there.shape) == (4, 1, 1, 3, 2)
    assert back.sharding.shard_shape(back.shape) == (1, 1, 4, 3, 2)
    np.testing.assert_array_equal(back, dispatched)
