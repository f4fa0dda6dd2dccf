"""A plan's step, run for real: `python -m tests.device.step FILE`, the job as JSON; answers with one line of JSON.

Rule: the plan's environment is set before jax is imported, its mesh is made by the library as a trainer makes it, and
the step is the very one that the compiler was asked about; with "attention": "cudnn" it has the attention that trainers
use on NVIDIA's cards instead, whose speed the plan is about.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from meshwright.wire.mesh import Plan
from meshwright.wire.model import ModelSpec, TrainingSpec

WARM_UP: Final = 2


def main() -> None:
    """Runs the job of the file."""
    job = json.loads(Path(sys.argv[1]).read_text())
    plan = Plan.model_validate(job["plan"])
    os.environ.update(plan.environment)
    model, training = ModelSpec.model_validate(job["model"]), TrainingSpec.model_validate(job["training"])
    if job["attention"] == "cudnn":
        from meshwright.compiling.step import layers

        layers.attend = attend_by_cudnn
    print(json.dumps(run_steps(plan, model, training, job["steps"])), flush=True)


def attend_by_cudnn(query: Any, key: Any, value: Any, *, blocked: bool) -> Any:
    """Returns what the step's own `attend` does, by cuDNN's fused kernel."""
    import jax

    assert blocked
    flat = query.reshape(*query.shape[:2], -1, query.shape[-1])
    mixed = jax.nn.dot_product_attention(flat, key, value, is_causal=True, implementation="cudnn")
    return mixed.reshape(query.shape)


def run_steps(plan: Plan, model: ModelSpec, training: TrainingSpec, count: int) -> dict[str, Any]:
    """Returns time, loss and memory of `count` steps after the warm-up."""
    import jax
    from jax.sharding import AxisType, Mesh

    from meshwright.compiling.report import lower_step, read_peak_bytes
    from meshwright.compiling.step import build_step
    from meshwright.mesh import build_mesh, mesh_fingerprint

    mesh = build_mesh(plan)
    names = mesh.axis_names
    built = build_step(model, training, Mesh(mesh.devices, names, axis_types=(AxisType.Auto,) * len(names)))
    began_s = time.monotonic()
    compiled = lower_step(built).compile()
    compile_s = time.monotonic() - began_s
    state, batch = fill_arguments(built.arguments, model.vocab_size)
    losses, seconds = [], []
    for _ in range(WARM_UP + count):
        began_s = time.perf_counter()
        state, loss = compiled(state, batch)
        losses.append(float(loss))
        jax.block_until_ready(state)
        seconds.append(time.perf_counter() - began_s)
    device = mesh.devices.flat[0]
    return {
        "jax": jax.__version__, "device": device.device_kind, "fingerprint": mesh_fingerprint(mesh),
        "compile_s": compile_s, "steps_s": seconds[WARM_UP:], "losses": losses,
        "is_finite": all(map(math.isfinite, losses)),
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "compiled_peak_bytes": read_peak_bytes(compiled.memory_analysis(), plan.platform),
        "parameter_count": built.parameter_count,
    }  # fmt: skip


def fill_arguments(arguments: tuple[Any, ...], vocab_size: int) -> tuple[Any, Any]:
    """Returns a state and a batch of these shapes: random weights and tokens, since on zeros a card runs faster."""
    import jax
    import jax.numpy as jnp

    state, batch = arguments

    def make(leaf: Any, function: Any, key: Any) -> Any:
        return jax.block_until_ready(jax.jit(function, out_shardings=leaf.sharding)(key))

    def draw(path: Any, leaf: Any, key: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if "moment" in name or "count" in name:
            return make(leaf, lambda _: jnp.zeros(leaf.shape, leaf.dtype), key)
        if "norm" in name:
            return make(leaf, lambda _: jnp.ones(leaf.shape, leaf.dtype), key)
        return make(leaf, lambda k: (0.02 * jax.random.normal(k, leaf.shape)).astype(leaf.dtype), key)

    keys = iter(jax.random.split(jax.random.key(0), 1 + len(jax.tree.leaves(state))))
    filled = jax.tree_util.tree_map_with_path(lambda path, leaf: draw(path, leaf, next(keys)), state)
    last = next(keys)
    tokens = {
        name: make(leaf, lambda k, leaf=leaf: jax.random.randint(k, leaf.shape, 0, vocab_size, leaf.dtype), last)
        for name, leaf in batch.items()
    }
    return filled, tokens


if __name__ == "__main__":
    main()
