"""AdamW (Loshchilov and Hutter, arXiv:1711.05101) with moments in the types that are asked for; or plain SGD.

Rule: computed in float32, kept in the given types; each tensor's state lies where the tensor lies. Gradients are
clipped by their global norm, as trainers do, so all of them exist before the first weight changes. Knows no model.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp

from meshwright.wire.model import TrainingSpec

Array = jax.Array
Tree = Any
"""A pytree of arrays like the weights."""

RATE: Final = 1e-4
DECAY: Final = 0.1
FIRST: Final = 0.9
SECOND: Final = 0.95
EPSILON: Final = 1e-8
NORM_MAX: Final = 1.0


def list_moments(training: TrainingSpec) -> dict[str, Any]:
    """Returns which moments the optimizer keeps for each weight, and their types; None: as the weight."""
    if training.optimizer == "sgd":
        return {}
    return {"first_moment": training.first_moment_dtype, "second_moment": training.second_moment_dtype}


def update(state: dict[str, Tree], gradients: Tree) -> dict[str, Tree]:
    """Returns the state after one step."""
    with jax.named_scope("optimizer"):
        clip = measure_clip(gradients)
        count = state["count"] + 1
        if "first_moment" not in state:
            moved = jax.tree.map(partial(_descend, clip), state["weights"], gradients)
            return {"count": count, "weights": moved}
        return {"count": count, **_apply_adamw(state, gradients, clip, count)}


def _apply_adamw(state: dict[str, Tree], gradients: Tree, clip: Array, count: Array) -> dict[str, Tree]:
    names = ("weights", "first_moment", "second_moment")
    leaves = zip(*(jax.tree.leaves(tree) for tree in (*(state[name] for name in names), gradients)), strict=True)
    steps = [_step_adamw(weight, first, second, gradient, clip, count) for weight, first, second, gradient in leaves]
    structure = jax.tree.structure(gradients)
    return {name: jax.tree.unflatten(structure, [step[i] for step in steps]) for i, name in enumerate(names)}


def measure_clip(gradients: Tree) -> Array:
    """Returns the factor that brings the gradients' global norm to at most `NORM_MAX`."""
    squares = [jnp.square(gradient.astype(jnp.float32)).sum() for gradient in jax.tree.leaves(gradients)]
    return jnp.minimum(1.0, NORM_MAX / (jnp.sqrt(jnp.stack(squares).sum()) + 1e-6))


def _step_adamw(
    weight: Array, first: Array, second: Array, gradient: Array, clip: Array, count: Array
) -> tuple[Array, Array, Array]:
    """Returns weight, first and second moment after a step."""
    wide = gradient.astype(jnp.float32) * clip
    new_first = FIRST * first.astype(jnp.float32) + (1 - FIRST) * wide
    new_second = SECOND * second.astype(jnp.float32) + (1 - SECOND) * jnp.square(wide)
    age = count.astype(jnp.float32)
    mean, square = new_first / (1 - FIRST**age), new_second / (1 - SECOND**age)
    kept = weight.astype(jnp.float32)
    moved = kept - RATE * (mean / (jnp.sqrt(square) + EPSILON) + DECAY * kept)
    return moved.astype(weight.dtype), new_first.astype(first.dtype), new_second.astype(second.dtype)


def _descend(clip: Array, weight: Array, gradient: Array) -> Array:
    return (weight.astype(jnp.float32) - RATE * clip * gradient.astype(jnp.float32)).astype(weight.dtype)
