"""Steps of a trainer, as test_verify names them. Run as a script, with a PLAN, it verifies a step of its own."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
WEIGHTS = jax.ShapeDtypeStruct((128, 64), jnp.float32)
BATCH = jax.ShapeDtypeStruct((32, 128), jnp.float32)


def loss(w: Any, x: Any) -> Any:
    return jnp.mean((x @ w) ** 2)


def plain(w: Any, x: Any) -> Any:
    return w - 0.1 * jax.grad(loss)(w, x)


jitted = jax.jit(plain, donate_argnums=0)


def constrained(w: Any, x: Any, rate: float, *, mesh: Mesh) -> Any:
    """Wants the mesh by name and in force."""
    x = jax.lax.with_sharding_constraint(x, P("dp"))
    assert set(mesh.axis_names) == {"dp", "tp"}
    return w - rate * jax.grad(loss)(w, x)


def build(mesh: Mesh) -> Any:
    key = jax.random.key(0)
    shape = jax.eval_shape(lambda: jax.random.normal(key, WEIGHTS.shape))
    w = jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=NamedSharding(mesh, P(None, "tp")))
    return jitted, (w, jax.ShapeDtypeStruct(BATCH.shape, BATCH.dtype, sharding=NamedSharding(mesh, P("dp"))))


def build_huge(mesh: Mesh) -> Any:
    huge = jax.ShapeDtypeStruct((2**18, 2**18), jnp.float32, sharding=NamedSharding(mesh, P("dp", "tp")))
    return jax.jit(lambda a, b: a @ b), (huge, huge)


def build_wrong(mesh: Mesh) -> Any:
    return jitted


def mismatched(w: Any, x: Any) -> Any:
    return x @ x


def fails(mesh: Mesh) -> Any:
    raise RuntimeError("no such checkpoint\nsecond line")


def of_this_script(w: Any, x: Any) -> Any:
    return plain(w, x)


if __name__ == "__main__":
    from meshwright.verify import verify

    print(verify(sys.argv[1], of_this_script, WEIGHTS, BATCH, in_specs=(None, P("dp"))).model_dump_json())
