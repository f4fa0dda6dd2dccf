"""The loss: cross-entropy, a piece at a time, whatever the pieces."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from meshwright.compiling.step.sharding import StepSharding
from meshwright.compiling.step.train import PIECE, measure_loss
from meshwright.planning.cost.memory import count_pieces
from meshwright.planning.parallelism import MeshAxes
from tests.unit.compiling.traced import list_shapes

HIDDEN, VOCABULARY = 8, 32


def build_layout(**shape: int) -> StepSharding:
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))
    return StepSharding(mesh, MeshAxes.of(shape))


def draw(length: int, batch: int = 2) -> tuple[jax.Array, jax.Array, jax.Array]:
    random = np.random.default_rng(length)
    hidden = jnp.asarray(random.normal(size=(batch, length, HIDDEN)), jnp.float32)
    targets = jnp.asarray(random.integers(0, VOCABULARY, size=(batch, length)), jnp.int32)
    return hidden, targets, jnp.asarray(random.normal(size=(HIDDEN, VOCABULARY)), jnp.float32)


def test_logits_of_a_whole_sequence_never_exist() -> None:
    layout = build_layout(dp=1)

    def count_largest(length: int) -> int:
        hidden, targets, head = draw(length, batch=1)
        step = jax.grad(lambda *parts: measure_loss(parts[0], targets, parts[1], layout), argnums=(0, 1))
        shapes = list_shapes(jax.make_jaxpr(step)(hidden, head))
        return max(int(np.prod(shape)) for shape in shapes if shape[-1:] == (VOCABULARY,))

    assert count_largest(PIECE) == PIECE * VOCABULARY
    assert count_largest(4 * PIECE) == PIECE * VOCABULARY


@given(st.integers(1, 1 << 16))
def test_pieces_are_equal_and_as_few_as_can_be(length: int) -> None:
    count = int(count_pieces(length, PIECE))
    assert length % count == 0
    assert length // count <= PIECE
    assert all(length % fewer for fewer in range(-(-length // PIECE), count))
