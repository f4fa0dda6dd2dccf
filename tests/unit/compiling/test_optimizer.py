"""AdamW and SGD against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiling.step.train import (
    DECAY,
    EPSILON,
    FIRST,
    NORM_MAX,
    RATE,
    SECOND,
    list_moments,
    measure_clip,
    update_weights,
)
from meshwright.wire.model import TrainingSpec

Tree = dict[str, np.ndarray[Any, Any]]
SHAPES = {"matrix": (4, 8), "vector": (8,)}


def draw(seed: int, scale: float = 1.0) -> Tree:
    random = np.random.default_rng(seed)
    return {name: (random.normal(size=shape) * scale).astype(np.float32) for name, shape in SHAPES.items()}


def start(dtype: Any = jnp.float32, **moments: Any) -> dict[str, Any]:
    """Returns the state before the first step, its moments in these types."""
    zeros = {name: {key: jnp.zeros(shape, kind) for key, shape in SHAPES.items()} for name, kind in moments.items()}
    weights = {key: jnp.asarray(value, dtype) for key, value in draw(0).items()}
    return {"count": jnp.zeros((), jnp.int32), "weights": weights, **zeros}


def clip_by_numpy(gradients: Tree) -> Tree:
    norm = np.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients.values()))
    return {name: gradient * min(1.0, NORM_MAX / norm) for name, gradient in gradients.items()}


def descend_by_numpy(weights: Tree, all_gradients: list[Tree]) -> Tree:
    """Returns the weights after a step of AdamW for each of the gradients."""
    first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for age, gradients in enumerate(all_gradients, start=1):
        for name, gradient in clip_by_numpy(gradients).items():
            first[name] = FIRST * first[name] + (1 - FIRST) * gradient
            second[name] = SECOND * second[name] + (1 - SECOND) * gradient**2
            mean, square = first[name] / (1 - FIRST**age), second[name] / (1 - SECOND**age)
            moved = mean / (np.sqrt(square) + EPSILON) + DECAY * weights[name]
            weights = {**weights, name: weights[name] - RATE * moved}
    return weights


def move(before: Any, after: Any) -> np.ndarray[Any, Any]:
    return np.asarray(after, np.float64) - np.asarray(before, np.float64)


@pytest.mark.parametrize("scale", [0.01, 10.0], ids=["no clipping", "clipped"])
def test_adamw_takes_the_steps_of_the_paper(scale: float) -> None:
    state = start(first_moment=jnp.float32, second_moment=jnp.float32)
    gradients = [draw(seed, scale) for seed in (1, 2, 3)]
    before = state["weights"]
    for each in gradients:
        state = update_weights(state, each)
    expected = descend_by_numpy(draw(0), gradients)
    assert int(state["count"]) == 3
    for name in SHAPES:
        np.testing.assert_allclose(
            move(before[name], state["weights"][name]), move(before[name], expected[name]), atol=2e-7
        )


def test_gradients_are_clipped_by_the_norm_of_all_of_them_together() -> None:
    gradients = {"a": jnp.full((9,), 1.0), "b": jnp.full((16,), 1.0)}  # a norm of 5
    assert float(measure_clip(gradients)) == pytest.approx(NORM_MAX / 5)
    assert float(measure_clip(jax.tree.map(lambda array: array / 100, gradients))) == 1.0
    assert float(measure_clip(jax.tree.map(jnp.zeros_like, gradients))) == 1.0


def test_moments_and_weights_are_kept_in_the_types_that_are_asked_for() -> None:
    state = start(jnp.bfloat16, first_moment=jnp.bfloat16, second_moment=jnp.float32)
    after = update_weights(state, draw(1))
    kinds = {name: {leaf.dtype for leaf in jax.tree.leaves(tree)} for name, tree in after.items()}
    assert kinds == {
        "count": {jnp.dtype(jnp.int32)},
        "weights": {jnp.dtype(jnp.bfloat16)},
        "first_moment": {jnp.dtype(jnp.bfloat16)},
        "second_moment": {jnp.dtype(jnp.float32)},
    }
    clipped = clip_by_numpy(draw(1))
    for name in SHAPES:
        expected = ((1 - FIRST) * clipped[name]).astype(jnp.bfloat16).astype(np.float32)
        np.testing.assert_allclose(after["first_moment"][name].astype(np.float32), expected, rtol=0.01)


def test_sgd_goes_down_the_clipped_gradient_and_keeps_nothing() -> None:
    state = start()
    after = update_weights(state, draw(1, 10.0))
    assert set(after) == {"count", "weights"}
    for name, gradient in clip_by_numpy(draw(1, 10.0)).items():
        np.testing.assert_allclose(move(state["weights"][name], after["weights"][name]), -RATE * gradient, atol=2e-7)


def test_adamw_keeps_two_moments_in_their_types_and_sgd_none() -> None:
    training = TrainingSpec(global_batch_size=1, first_moment_dtype="bfloat16")
    assert list_moments(training) == {"first_moment": "bfloat16", "second_moment": None}
    assert list_moments(training.model_copy(update={"optimizer": "sgd"})) == {}
