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


def build_on_host(mesh: Mesh) -> Any:
    on_host = NamedSharding(mesh, P("dp"), memory_kind="pinned_host")
    return (lambda state, x: (state, x + 1)), (jax.ShapeDtypeStruct((4096, 4096), jnp.float32, sharding=on_host), BATCH)


def build_huge(mesh: Mesh) -> Any:
    huge = jax.ShapeDtypeStruct((2**18, 2**18), jnp.float32, sharding=NamedSharding(mesh, P("dp", "tp")))
    return jax.jit(lambda a, b: a @ b), (huge, huge)


def build_splash_attention(mesh: Mesh) -> Any:
    """JAX's own fused attention for TPUs, with its gradients: batch over dp, 8 heads over tp."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    heads, length = 8 // mesh.shape["tp"], 1024
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((length, length))] * heads)
    attend = jax.vmap(splash_attention_kernel.make_splash_mha(mask, head_shards=1, q_seq_shards=1))
    spec = P("dp", "tp")
    on_mesh = jax.shard_map(attend, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    part = jax.ShapeDtypeStruct((4, 8, length, 128), jnp.bfloat16, sharding=NamedSharding(mesh, spec))
    return jax.jit(jax.grad(lambda q, k, v: on_mesh(q, k, v).astype(jnp.float32).sum(), (0, 1, 2))), (part,) * 3


def build_ring_all_gather(mesh: Mesh) -> Any:
    """JAX's own ring collective: a kernel that sends by itself."""
    from jax.experimental.pallas.ops.tpu.all_gather import all_gather

    part = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=NamedSharding(mesh, P("tp")))
    return jax.jit(lambda x: all_gather(x, mesh=mesh, axis_name="tp")), (part,)


def mismatched(w: Any, x: Any) -> Any:
    return x @ x


def fails(mesh: Mesh) -> Any:
    raise RuntimeError("no such checkpoint\nsecond line")


def of_this_script(w: Any, x: Any) -> Any:
    return plain(w, x)


if __name__ == "__main__":
    from meshwright.verify import verify

    print(verify(sys.argv[1], of_this_script, WEIGHTS, BATCH, in_specs=(None, P("dp"))).model_dump_json())
