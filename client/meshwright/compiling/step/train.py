"""The training step that is compiled for a plan: forward, loss, backward, clipping and optimizer, with abstract
arguments.

Nothing is computed or placed here: the arguments are shapes with shardings. The batch is processed in one part per
gradient accumulation step.

The loss is the cross-entropy over a vocabulary that is split over the tensor axes. It takes a piece of the sequence at
a time, and computes its logits again in the backward pass, so that the logits of a whole batch never exist at once.

The optimizer is AdamW (Loshchilov and Hutter, arXiv:1711.05101) with moments in the requested types, or plain SGD. It
computes in float32; the state of a tensor is split as the tensor is. Gradients are clipped by their global norm, so all
of them exist before the first weight changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from meshwright.compiling.step.layers import Decoder, build_residual, normalise
from meshwright.compiling.step.sharding import ShardedTensor, StepSharding, Tensors, build_spec, build_tensors, pin
from meshwright.planning.cost.memory import count_pieces, read_moments
from meshwright.planning.job_code import EXPERT_MATMUL, LAYER_INPUT
from meshwright.planning.parallelism import MeshAxes
from meshwright.wire.model import ModelSpec, TrainingSpec

Array = jax.Array

PIECE: Final = 1024
"""Positions of each device's sequence whose logits exist at one time."""


def measure_loss(hidden: Array, targets: Array, head: Array, layout: StepSharding) -> Array:
    """Returns the mean cross-entropy in nats.

    Args:
        hidden: [batch, sequence, hidden].
        targets: [batch, sequence], the token that follows each position.
        head: [hidden, vocabulary], its columns over the tensor axes.
    """
    axes = layout.axes
    shards = axes.measure(axes.context)
    pieces = int(count_pieces(hidden.shape[1] // shards, PIECE))
    with jax.named_scope("loss"):
        hidden = layout.put(hidden, axes.batch, axes.context, None)
        parts = (_cut(hidden, shards, pieces, layout), _cut(targets, shards, pieces, layout))
        total = _loop(head, parts, layout)
    return total / float(math.prod(targets.shape))  # as an integer it may exceed 32 bits


def _loop(head: Array, parts: tuple[Array, Array], layout: StepSharding) -> Array:
    if len(parts[0]) == 1:
        return _add_loss(head, (parts[0][0], parts[1][0]), layout)

    @jax.checkpoint
    def step(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + _add_loss(head, part, layout), None

    return jax.lax.scan(step, jnp.zeros((), jnp.float32), parts)[0]


def _cut(value: Array, shards: int, pieces: int, layout: StepSharding) -> Array:
    """Returns [pieces, batch, shards, positions, …]: each piece has a part of every context shard."""
    batch, length, *rest = value.shape
    split = value.reshape(batch, shards, pieces, length // shards // pieces, *rest)
    moved = jnp.moveaxis(split, 2, 0)
    return layout.put(moved, None, layout.axes.batch, layout.axes.context, None, *(None for _ in rest))


def _add_loss(head: Array, part: tuple[Array, Array], layout: StepSharding) -> Array:
    """Returns the sum over one piece: hidden [batch, shards, positions, hidden] and its targets."""
    hidden, targets = part
    axes = layout.axes
    logits = jnp.einsum("bcsd,dv->bcsv", hidden, head)  # in bfloat16, so that gradients are sent in it too
    logits = layout.put(logits, axes.batch, axes.context, None, axes.tensor).astype(jnp.float32)
    top = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    sums = jnp.log(jnp.exp(logits - top).sum(axis=-1)) + top[..., 0]
    hits = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 3) == targets[..., None]
    return (sums - jnp.where(hits, logits, 0.0).sum(axis=-1)).sum()


Tree = Any
"""A pytree of arrays like the weights."""

RATE: Final = 1e-4
DECAY: Final = 0.1
FIRST: Final = 0.9
SECOND: Final = 0.95
EPSILON: Final = 1e-8
NORM_MAX: Final = 1.0


def update_weights(state: dict[str, Tree], gradients: Tree) -> dict[str, Tree]:
    """Returns the state after one step."""
    with jax.named_scope("optimizer"):
        clip = measure_clip(gradients)
        count = state["count"] + 1
        if "first_moment" not in state:
            return {"count": count, "weights": jax.tree.map(partial(_descend, clip), state["weights"], gradients)}
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


@dataclass(frozen=True)
class BuiltStep:
    """A step to lower: `jax.jit(function, donate_argnums=…).lower(*arguments)`.

    Attributes:
        function: (state, batch) → (state, loss).
        arguments: pytrees of `jax.ShapeDtypeStruct` with shardings.
        donate_argnums: the state.
        parameter_count: elements of all weights.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    parameter_count: int


def build_step(model: ModelSpec, training: TrainingSpec, mesh: Mesh) -> BuiltStep:
    """Returns the training step of a model on a mesh whose axes are named by their roles.

    `planning.compile_job.prepare_verify` has checked that the step supports both.
    """
    layout = StepSharding(mesh, MeshAxes.of(dict(mesh.shape)))
    tensors = build_tensors(model, layout.axes, scanned=training.scan_layers)
    forward = _Forward(model, training, layout, tensors)

    def step(state: dict[str, Tree], batch: dict[str, Array]) -> tuple[dict[str, Tree], Array]:
        loss, gradients = _differentiate(forward, state["weights"], batch, training)
        return update_weights(state, gradients), loss

    arguments = (_describe_state(tensors, training, layout), _describe_batch(training, layout))
    return BuiltStep(step, arguments, (0,), sum(math.prod(tensor.shape) for tensor in jax.tree.leaves(tensors)))


def _describe_state(tensors: Tensors, training: TrainingSpec, layout: StepSharding) -> dict[str, Tree]:
    def describe(dtype: str) -> Tree:
        kind = jnp.dtype(dtype)
        return jax.tree.map(
            lambda tensor: jax.ShapeDtypeStruct(tensor.shape, kind, sharding=layout.shard(tensor.stored)), tensors
        )

    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=layout.shard(build_spec()))
    dtypes = zip(("first_moment", "second_moment"), read_moments(training), strict=False)  # plain SGD has none
    moments = {name: describe(dtype) for name, dtype in dtypes}
    return {"count": count, "weights": describe(training.weight_dtype), **moments}


def _describe_batch(training: TrainingSpec, layout: StepSharding) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns tokens and targets [accumulated parts, batch, sequence]."""
    parts = training.gradient_accumulation_steps
    shape = (parts, training.global_batch_size // parts, training.seq_len)
    where = layout.shard(build_spec(None, layout.axes.batch, layout.axes.context))
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=where) for name in ("tokens", "targets")}


def _differentiate(
    forward: _Forward, weights: Tree, batch: dict[str, Array], training: TrainingSpec
) -> tuple[Array, Tree]:
    """Returns loss and gradients, the mean over the parts of the batch."""

    def measure(part: dict[str, Array]) -> tuple[Array, Tree]:
        loss, gradients = jax.value_and_grad(forward.measure_loss)(weights, part)
        return loss, forward.store(gradients)

    if training.gradient_accumulation_steps == 1:
        return measure({name: part[0] for name, part in batch.items()})

    def add(carry: tuple[Array, Tree], part: dict[str, Array]) -> tuple[tuple[Array, Tree], None]:
        return jax.tree.map(jnp.add, carry, measure(part)), None

    zero = (jnp.zeros((), jnp.float32), forward.store(jax.tree.map(jnp.zeros_like, weights)))
    (loss, gradients), _ = jax.lax.scan(add, zero, batch)
    count = training.gradient_accumulation_steps
    return loss / count, jax.tree.map(lambda gradient: gradient / count, gradients)


class _Forward:
    """The forward pass of one model on one mesh."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, layout: StepSharding, tensors: Tensors) -> None:
        self._model = model
        self._training = training
        self._layout = layout
        self._tensors = tensors
        self._decoder = Decoder(model, training, layout, _take_layer(tensors["layers"]))

    def measure_loss(self, weights: Tree, batch: dict[str, Array]) -> Array:
        """Returns the mean loss of one part of the batch."""
        residual = build_residual(batch["tokens"], weights, self._decoder, self._layout, self._tensors)
        residual = self._run_layers(residual, weights["layers"])
        hidden = normalise(residual, weights, "final_norm", self._model)
        return measure_loss(hidden, batch["targets"], self._find_head(weights), self._layout)

    def store(self, values: Tree) -> Tree:
        """Returns values like the weights, each where its weight lies between steps."""
        return jax.tree.map(lambda tensor, value: pin(value, self._layout.shard(tensor.stored)), self._tensors, values)

    def _run_layers(self, residual: Array, layers: Tree) -> Array:
        apply = _remember(self._decoder.apply, self._training)
        if self._training.scan_layers:
            return jax.lax.scan(lambda carry, layer: (apply(carry, layer), None), residual, layers)[0]
        for layer in layers:
            residual = apply(residual, layer)
        return residual

    def _find_head(self, weights: Tree) -> Array:
        if not self._model.tie_word_embeddings:
            return self._layout.gather(weights["head"], self._tensors["head"], self._decoder.dtype)
        axes = self._layout.axes
        table = self._layout.gather(weights["embedding"], self._tensors["embedding"], self._decoder.dtype)
        columns = axes.take_tensor(self._model.hidden_size)
        return self._layout.spread(table, ((), columns), (axes.tensor, ())).T


def _take_layer(layers: Tensors | tuple[Tensors, ...]) -> Tensors:
    """Returns the tensors of one layer, without the dimension that counts layers."""
    if isinstance(layers, tuple):
        return layers[0]
    return {
        name: ShardedTensor(tensor.shape[1:], build_spec(*tensor.stored[1:]), build_spec(*tensor.used[1:]))
        for name, tensor in layers.items()
    }


def _remember(apply: Callable[[Array, Tree], Array], training: TrainingSpec) -> Callable[[Array, Tree], Array]:
    """Returns the layer with its saved activations for the backward pass; gathered weights are never saved."""
    policies = jax.checkpoint_policies
    match training.remat:
        case "none":
            return apply
        case "minimal":
            named = policies.save_only_these_names(EXPERT_MATMUL)
            policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, named)
        case "full":
            policy = policies.nothing_saveable
        case "offload":
            policy = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=[], names_which_can_be_offloaded=[LAYER_INPUT],
                offload_src="device", offload_dst="pinned_host",
            )  # fmt: skip
    return jax.checkpoint(apply, policy=policy, prevent_cse=not training.scan_layers)  # a loop is one already
