"""The training step of a plan: abstract state and batch, each with its sharding, and the function to compile.

Rule: nothing is computed or placed here; the arguments are shapes. The step is what a trainer would run: forward,
backward, clipping, AdamW, over as many parts of the batch as are accumulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from meshwright.compiling.step import optimizer
from meshwright.compiling.step.axes import StepAxes, build_spec
from meshwright.compiling.step.layers import Decoder, build_residual, normalise
from meshwright.compiling.step.loss import measure_loss
from meshwright.compiling.step.parameters import Tensor, Tensors, build_tensors, walk_tensors
from meshwright.compiling.step.sharding import EXPERT_MATMUL, Layout, pin
from meshwright.planning.expressible import check_expressible
from meshwright.wire.model import ModelSpec, TrainingSpec

Array = jax.Array
Tree = Any


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
    """Returns the training step of a model on a mesh whose axes are named by what they are for.

    Raises:
        NotCompiledError: the mesh has an axis that the step does not know, or does not have; or the model has what the
            step has not.
    """
    check_expressible(model, training.sequence_length)
    layout = Layout(mesh, StepAxes.of(dict(mesh.shape)))
    tensors = build_tensors(model, layout.axes, scanned=training.scan_layers)
    forward = _Forward(model, training, layout, tensors)

    def step(state: dict[str, Tree], batch: dict[str, Array]) -> tuple[dict[str, Tree], Array]:
        loss, gradients = _differentiate(forward, state["weights"], batch, training)
        return optimizer.update(state, gradients), loss

    arguments = (_describe_state(tensors, training, layout), _describe_batch(training, layout))
    return BuiltStep(step, arguments, (0,), sum(tensor.size for tensor in walk_tensors(tensors)))


def _describe_state(tensors: Tensors, training: TrainingSpec, layout: Layout) -> dict[str, Tree]:
    def describe(dtype: str | None) -> Tree:
        kind = jnp.dtype(dtype or training.weight_dtype)
        return jax.tree.map(
            lambda tensor: jax.ShapeDtypeStruct(tensor.shape, kind, sharding=layout.store(tensor)), tensors
        )

    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=layout.shard(build_spec()))
    moments = {name: describe(dtype) for name, dtype in optimizer.list_moments(training).items()}
    return {"count": count, "weights": describe(None), **moments}


def _describe_batch(training: TrainingSpec, layout: Layout) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns tokens and targets [accumulated parts, batch, sequence]."""
    parts = training.gradient_accumulation
    shape = (parts, training.global_batch // parts, training.sequence_length)
    where = layout.shard(build_spec(None, layout.axes.batch, layout.axes.context))
    return {name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=where) for name in ("tokens", "targets")}


def _differentiate(
    forward: _Forward, weights: Tree, batch: dict[str, Array], training: TrainingSpec
) -> tuple[Array, Tree]:
    """Returns loss and gradients, the mean over the parts of the batch."""

    def measure(part: dict[str, Array]) -> tuple[Array, Tree]:
        loss, gradients = jax.value_and_grad(forward.measure_loss)(weights, part)
        return loss, forward.store(gradients)

    if training.gradient_accumulation == 1:
        return measure({name: part[0] for name, part in batch.items()})

    def add(carry: tuple[Array, Tree], part: dict[str, Array]) -> tuple[tuple[Array, Tree], None]:
        return jax.tree.map(jnp.add, carry, measure(part)), None

    zero = (jnp.zeros((), jnp.float32), forward.store(jax.tree.map(jnp.zeros_like, weights)))
    (loss, gradients), _ = jax.lax.scan(add, zero, batch)
    count = training.gradient_accumulation
    return loss / count, jax.tree.map(lambda gradient: gradient / count, gradients)


class _Forward:
    """The forward pass of one model on one mesh."""

    def __init__(self, model: ModelSpec, training: TrainingSpec, layout: Layout, tensors: Tensors) -> None:
        self._model = model
        self._training = training
        self._layout = layout
        self._tensors = tensors
        self._layer = _take_layer(tensors["layers"])
        self._decoder = Decoder(model, training, layout, self._layer)

    def measure_loss(self, weights: Tree, batch: dict[str, Array]) -> Array:
        """Returns the mean loss of one part of the batch."""
        residual = build_residual(batch["tokens"], weights, self._decoder, self._layout, self._tensors)
        residual = self._run_layers(residual, weights["layers"])
        hidden = normalise(residual, weights, "final_norm", self._model)
        return measure_loss(hidden, batch["targets"], self._find_head(weights), self._layout)

    def store(self, values: Tree) -> Tree:
        """Returns values like the weights, each where its weight lies between steps."""
        return jax.tree.map(lambda tensor, value: pin(value, self._layout.store(tensor)), self._tensors, values)

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
        name: Tensor(tensor.shape[1:], build_spec(*tensor.stored[1:]), build_spec(*tensor.used[1:]))
        for name, tensor in layers.items()
    }


def _remember(apply: Callable[[Array, Tree], Array], training: TrainingSpec) -> Callable[[Array, Tree], Array]:
    """Returns the layer with what it keeps for the backward pass; gathered weights are never kept."""
    policies = jax.checkpoint_policies
    match training.remat:
        case "none":
            return apply
        case "minimal":
            named = policies.save_only_these_names(EXPERT_MATMUL)
            policy = policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, named)
        case "full":
            policy = policies.nothing_saveable
    return jax.checkpoint(apply, policy=policy, prevent_cse=not training.scan_layers)  # a loop is one already
