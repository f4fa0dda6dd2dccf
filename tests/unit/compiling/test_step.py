"""The training step on real (virtual) devices: every mesh and every way to run it trains the same model."""

from __future__ import annotations

import functools
import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from meshwright.compiling.step import BuiltStep, build_step
from meshwright.wire.model import ModelSpec, TrainingSpec

SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
LLAMA = ModelSpec(**SIZES)
QWEN = ModelSpec(**SIZES, qk_norm=True, tie_word_embeddings=True, attention_bias=True)
GPT = ModelSpec(
    **{**SIZES, "num_key_value_heads": 4}, gated=False, activation="gelu", norm="layernorm", positions="learned",
    max_position_embeddings=32, attention_bias=True, attention_output_bias=True, mlp_bias=True,
)  # fmt: skip
EXPERTS = ModelSpec(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, num_shared_experts=1)

TRAINING = TrainingSpec(
    global_batch_size=8, seq_len=16, compute_dtype="float32", remat="none", capacity_factor=4.0, attention="xla"
)
"""Float32, and places for every token, since which are dropped depends on the mesh."""


QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""LLVM takes most of a compile for CPUs, for speed that no test needs."""


def build(model: ModelSpec, training: TrainingSpec, shape: dict[str, int]) -> BuiltStep:
    devices = jax.devices()[: math.prod(shape.values())]
    mesh = jax.make_mesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape), devices=devices)
    return build_step(model, training, mesh)


def fill(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
    """Returns values that a weight has by its name and layer, whether layers are stacked or listed."""
    names = [getattr(key, "key", getattr(key, "idx", None)) for key in path]
    if names[0] != "weights":
        return jax.device_put(jnp.zeros(leaf.shape, leaf.dtype), leaf.sharding)
    is_stacked = "layers" in names and not isinstance(names[2], int)
    rows = range(leaf.shape[0]) if is_stacked else [names[2] if "layers" in names else 0]
    shape = leaf.shape[1:] if is_stacked else leaf.shape
    drawn = [draw(str(names[-1]), row, shape) for row in rows]
    return jax.device_put(jnp.asarray(np.stack(drawn) if is_stacked else drawn[0], leaf.dtype), leaf.sharding)


def draw(name: str, row: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(zlib.crc32(f"{name} {row}".encode()))
    middle = 1.0 if name.endswith("_norm") else 0.0
    return random.normal(size=shape) * (0.4 if name == "router" else 0.1) + middle


def fill_batch(batch: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Returns the same 8 sequences, in as many parts as are accumulated."""
    size = math.prod(batch["tokens"].shape)
    ids = {name: np.random.default_rng(seed).integers(0, 64, size) for seed, name in enumerate(("tokens", "targets"))}
    parts = {name: ids[name].reshape(leaf.shape).astype(np.int32) for name, leaf in batch.items()}
    return {name: jax.device_put(part, batch[name].sharding) for name, part in parts.items()}


def train(model: ModelSpec, training: TrainingSpec, shape: dict[str, int], steps: int = 1) -> tuple[list[float], Any]:
    """Returns the loss of each step, and the state after the last, on the host; layers stacked."""
    built = build(model, training, shape)
    state = jax.tree_util.tree_map_with_path(fill, built.arguments[0])
    batch = fill_batch(built.arguments[1])
    lowered = jax.jit(built.function, donate_argnums=built.donate_argnums).lower(*built.arguments)
    step = lowered.compile(compiler_options=QUICK)
    losses = []
    for _ in range(steps):
        state, loss = step(state, batch)
        losses.append(float(loss))
    return losses, stack(jax.tree.map(np.asarray, state))


def stack(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state with layers that were listed stacked."""
    for tree in state.values():
        if isinstance(tree, dict) and isinstance(tree["layers"], tuple):
            tree["layers"] = jax.tree.map(lambda *layers: np.stack(layers), *tree["layers"])
    return state


@functools.cache
def train_plainly(model: ModelSpec) -> tuple[list[float], Any]:
    """Returns one step on one device: nothing sharded, nothing computed again."""
    return train(model, TRAINING, {"dp": 1})


def check_same(model: ModelSpec, training: TrainingSpec, shape: dict[str, int]) -> None:
    """Asserts the loss and the gradients of one device: Adam's first moment after one step is a tenth of them.

    What is all but zero is: keys have no use for a bias, which a softmax takes away again.
    """
    (expected,), plain = train_plainly(model)
    (loss,), state = train(model, training, shape)
    assert loss == pytest.approx(expected, rel=1e-5)
    moments = zip(*(jax.tree.leaves_with_path(each["first_moment"]) for each in (plain, state)), strict=True)
    for (path, one), (_, other) in moments:
        atol = 2e-4 * float(np.abs(one).max()) + 1e-8
        np.testing.assert_allclose(other, one, atol=atol, err_msg=jax.tree_util.keystr(path))


MESHES: tuple[tuple[ModelSpec, dict[str, int]], ...] = (
    (LLAMA, {"cp": 4}), (LLAMA, {"dp": 2, "fsdp": 2, "tp": 2}), (EXPERTS, {"fsdp": 2, "ep": 2}),
    (EXPERTS, {"ep": 2, "cp": 2, "tp": 2}), (QWEN, {"fsdp": 2, "tp": 4}), (GPT, {"fsdp": 2, "cp": 2, "tp": 2}),
)  # fmt: skip


FEW = ({"cp": 4}, {"dp": 2, "fsdp": 2, "tp": 2})
"""Of MESHES: each kind of axis of a dense model once. The others are exhaustive."""


def name_shape(model: ModelSpec, shape: dict[str, int]) -> Any:
    name = ",".join(f"{axis}:{size}" for axis, size in shape.items())
    return pytest.param(model, shape, id=name, marks=() if shape in FEW else pytest.mark.exhaustive)


@pytest.mark.parametrize(("model", "shape"), [name_shape(*case) for case in MESHES])
def test_every_mesh_trains_as_one_device_does(model: ModelSpec, shape: dict[str, int]) -> None:
    check_same(model, TRAINING, shape)


@pytest.mark.parametrize(("model", "changed"), [
    (LLAMA, {"remat": "full"}),
    pytest.param(LLAMA, {"remat": "minimal", "scan_layers": False}, marks=pytest.mark.exhaustive),
    pytest.param(QWEN, {"scan_layers": False, "gradient_accumulation_steps": 4}, marks=pytest.mark.exhaustive),
    pytest.param(EXPERTS, {"remat": "full"}, marks=pytest.mark.exhaustive),
])  # fmt: skip
def test_remat_scans_and_accumulation_change_nothing_of_training(model: ModelSpec, changed: dict[str, Any]) -> None:
    check_same(model, TRAINING.model_copy(update=changed), {"fsdp": 2})


@pytest.mark.exhaustive
def test_the_step_in_blocks_is_the_step_with_whole_scores() -> None:
    long = TRAINING.model_copy(update={"global_batch_size": 2, "seq_len": 1024})
    model = LLAMA.model_copy(update={"num_hidden_layers": 1})
    (whole,), _ = train(model, long, {"fsdp": 2})
    (blocked,), _ = train(model, long.model_copy(update={"attention": "flash"}), {"fsdp": 2, "cp": 2})
    assert blocked == pytest.approx(whole, rel=1e-6)


def test_the_loss_of_one_batch_falls_step_by_step() -> None:
    first, second, third = train(LLAMA, TRAINING, {"fsdp": 2, "tp": 2}, steps=3)[0]
    assert first > second > third


def test_the_first_loss_of_weights_that_know_nothing_is_the_logarithm_of_the_vocabulary() -> None:
    built = build(LLAMA, TRAINING, {"dp": 1})
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), built.arguments[0])
    step = jax.jit(built.function).lower(*built.arguments).compile(compiler_options=QUICK)
    _, loss = step(state, fill_batch(built.arguments[1]))
    assert float(loss) == pytest.approx(math.log(64), rel=1e-6)


# ---- what is lowered ------------------------------------------------------------------------------------------------


def test_arguments_are_shapes_with_shardings_and_the_state_is_donated() -> None:
    changed = {"weight_dtype": "bfloat16", "second_moment_dtype": "float32", "gradient_accumulation_steps": 2}
    built = build(LLAMA, TRAINING.model_copy(update=changed), {"fsdp": 2, "tp": 2})
    state, batch = built.arguments
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.sharding for leaf in jax.tree.leaves(built.arguments))
    assert built.donate_argnums == (0,)
    assert batch["tokens"].shape == batch["targets"].shape == (2, 4, 16)
    dtypes = [state[name]["head"].dtype.name for name in ("weights", "first_moment", "second_moment")]
    assert dtypes == ["bfloat16", "bfloat16", "float32"]
    assert state["weights"]["head"].sharding.shard_shape((32, 64)) == (16, 32)
