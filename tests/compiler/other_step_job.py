"""The child of test_other_step: one step on meshes of 8 CPU devices, beside the same step on one device.

Prints for each case the greatest error of loss and gradients, relative to the greatest gradient of each weight. One
device runs without blocks and remat; the first moment after one step is the gradient, times a constant.
"""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.compiler.steps import other

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TRAINING = {"sequence_length": 1024, "global_batch": 8, "compute_dtype": "float32", "capacity_factor": 8.0}
"""Two blocks of queries and of keys; and places for every token, since which are dropped depends on the mesh."""

LLAMA = ModelSpec(**SIZES, **HEADS, qk_norm=True)
GPT = ModelSpec(
    **SIZES,
    num_attention_heads=4,
    norm="layernorm",
    gated=False,
    activation="gelu",
    tie_word_embeddings=True,
    positions="learned",
    max_position_embeddings=1024,
)
EXPERTS = ModelSpec(**SIZES, **HEADS, num_experts=4, num_experts_per_tok=2, num_shared_experts=1)

Case = tuple[dict[str, int], dict[str, Any]]

CASES: tuple[tuple[ModelSpec, dict[str, Case]], ...] = (
    (
        LLAMA,
        {
            "dp, fsdp and cp, unrolled": ({"dp": 2, "fsdp": 2, "cp": 2}, {"remat": "none", "scan_layers": False}),
            "fsdp and tp": ({"fsdp": 4, "tp": 2}, {"remat": "minimal"}),
        },
    ),
    (GPT, {"another kind of model, plain attention": ({"fsdp": 2, "cp": 2, "tp": 2}, {"attention": "xla"})}),
    (EXPERTS, {"experts": ({"fsdp": 2, "ep": 2, "tp": 2}, {})}),
)


def run_step(model: ModelSpec, training: TrainingSpec, shape: dict[str, int]) -> tuple[Any, float]:
    """Returns the first moments after one step from made-up weights, and the loss."""
    count = int(np.prod(list(shape.values())))
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(tuple(shape.values())), tuple(shape))
    step = other.build_step(model, training, mesh)
    draw = np.random.default_rng(0)

    def fill(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        values = draw.normal(size=leaf.shape) * 0.2 + ("scale" in name) if "weights" in name else np.zeros(leaf.shape)
        return jax.device_put(values.astype(leaf.dtype), leaf.sharding)

    state = jax.tree_util.tree_map_with_path(fill, step.arguments[0])
    ids = draw.integers(0, model.vocab_size, size=(training.global_batch, training.sequence_length + 1), dtype=np.int32)
    told = [jax.device_put(part, step.arguments[1].sharding) for part in (ids[:, :-1], ids[:, 1:])]
    stepped, loss = step.function(state, *told)
    return jax.tree.map(np.asarray, stepped["first"]), float(loss)


def measure_errors(model: ModelSpec, cases: dict[str, Case]) -> dict[str, float]:
    """Returns the greatest relative error of each split."""
    plain = TrainingSpec(**TRAINING, attention="xla", remat="none")
    expected = run_step(model, plain, {"dp": 1})
    return {
        name: compare(expected, run_step(model, TrainingSpec(**{**TRAINING, **options}), shape))
        for name, (shape, options) in cases.items()
    }


def compare(expected: tuple[Any, float], found: tuple[Any, float]) -> float:
    """Returns the greatest error of a gradient by that weight's greatest gradient, or of the loss."""
    errors = jax.tree.map(lambda one, two: float(np.abs(one - two).max() / np.abs(one).max()), expected[0], found[0])
    return float(max(*jax.tree.leaves(errors), abs(found[1] / expected[1] - 1)))


if __name__ == "__main__":
    print(json.dumps({name: error for case in CASES for name, error in measure_errors(*case).items()}))
