"""Where the compiled step places its tensors: mesh axes for each dimension, the model's parameters, and array
shardings.

Axes go by what their names mean. Batches are split over data, fsdp and expert axes; sequences over context axes, and
between layers over tensor axes too; weights over fsdp and tensor axes, experts over expert axes. In a mesh with an fsdp
axis weights are split over its context and expert axes too, as far as they divide (as MaxText's `embed` rule and
torchtitan's dp_shard_cp do).

The parameters here, and no others, are trained; their number is the model's parameter count. Layers are stacked, or
listed where they are not scanned. A gather has a scatter as its gradient, so that no device sums whole gradients of
what it keeps a part of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiling import NotCompiledError
from meshwright.planning.axis_names import ROLE_NAMES, Role, find_role
from meshwright.wire.model import ModelSpec

Axes = tuple[str, ...]


@dataclass(frozen=True)
class StepAxes:
    """The axes of a mesh by role, outermost first; those of size 1 are left out.

    Attributes:
        sizes: axis → size.
        by_role: role → axes.
    """

    sizes: Mapping[str, int]
    by_role: Mapping[Role, Axes]

    @classmethod
    def of(cls, shape: Mapping[str, int]) -> StepAxes:
        """Returns the axes of a mesh of this shape.

        Raises:
            NotCompiledError: an axis has a name that says nothing, or is one that the step does not have.
        """
        wide = {name: size for name, size in shape.items() if size > 1}
        roles: dict[Role, list[str]] = {}
        for name in wide:
            roles.setdefault(_read_role(name), []).append(name)
        if "pipeline" in roles:
            name = roles["pipeline"][0]
            raise NotCompiledError(
                f"axis {name} of {wide[name]} is a pipeline, and the step that is compiled has no pipeline stages; "
                f"leave {name} out, and compile one stage by giving the model that many layers fewer"
            )
        return cls(wide, {role: tuple(names) for role, names in roles.items()})

    def find(self, *roles: Role) -> Axes:
        """Returns the axes of these roles, role by role."""
        return tuple(name for role in roles for name in self.by_role.get(role, ()))

    def measure(self, axes: Sequence[str]) -> int:
        """Returns over how many parts these axes divide a dimension."""
        return math.prod(self.sizes[name] for name in axes)

    @property
    def batch(self) -> Axes:
        """Axes that a batch lies over."""
        return self.find("data", "fsdp", "expert")

    @property
    def context(self) -> Axes:
        """Axes that a sequence lies over inside attention."""
        return self.find("context")

    @property
    def tensor(self) -> Axes:
        """Axes that heads, feed-forward columns and the vocabulary lie over."""
        return self.find("tensor")

    @property
    def expert(self) -> Axes:
        """Axes that experts lie over."""
        return self.find("expert")

    def shard_weights(self, size: int, *, without: Axes = ()) -> Axes:
        """Returns the axes that a weight's dimension of `size` lies over, beside those it has already."""
        if not self.find("fsdp"):
            return ()
        chosen: Axes = ()
        for name in self.find("fsdp", "context", "expert"):
            if name not in without and size % self.measure((*chosen, name)) == 0:
                chosen = (*chosen, name)
        return chosen

    def take_tensor(self, size: int) -> Axes:
        """Returns the tensor axes, or none where they do not divide a dimension of `size`."""
        return self.take(self.tensor, size)

    def take(self, axes: Axes, size: int) -> Axes:
        """Returns the axes, or none where they do not divide a dimension of `size`."""
        return axes if size % self.measure(axes) == 0 else ()


def _read_role(name: str) -> Role:
    role = find_role(name)
    if role is None:
        known = ", ".join(names[0] for names in ROLE_NAMES.values())
        raise NotCompiledError(f"axis {name} says nothing of what it is for; the step knows axes by name, as {known}")
    return role


def build_spec(*dimensions: Axes | None) -> PartitionSpec:
    """Returns the spec of an array of which each dimension lies over these axes."""
    return PartitionSpec(*(axes or None for axes in dimensions))


@dataclass(frozen=True)
class Tensor:
    """One trained tensor.

    Attributes:
        shape: of the whole.
        stored: where it lies between its uses.
        used: where it lies in a matmul: gathered over fsdp.
    """

    shape: tuple[int, ...]
    stored: PartitionSpec
    used: PartitionSpec

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


Tensors = dict[str, Any]
"""Name → Tensor, or a dict of them, or for layers that are not scanned a tuple of dicts."""


class TensorTable:
    """The tensors of one model on one mesh."""

    def __init__(self, model: ModelSpec, axes: StepAxes) -> None:
        self._model = model
        self._axes = axes

    def list_outer(self) -> Tensors:
        """Returns the tensors outside the layers."""
        model = self._model
        # Columns of the table are split: a look-up of rows that lie elsewhere would gather all of it.
        over = self._axes.take_tensor(model.hidden_size)
        tensors = {"embedding": self._matrix(model.vocab_size, model.hidden_size, columns=over, fsdp=1)}
        if model.positions == "learned":
            tensors["positions"] = self._plain(model.max_position_embeddings or 1, model.hidden_size)
        if not model.tie_word_embeddings:
            tensors["head"] = self._matrix(model.hidden_size, model.vocab_size, columns=self._axes.tensor, fsdp=0)
        return {**tensors, **self._norm("final_norm", model.hidden_size)}

    def list_layer(self) -> Tensors:
        """Returns the tensors of one layer."""
        hidden = self._model.hidden_size
        block = self._list_experts() if self._model.num_experts else self._list_mlp()
        norms = {**self._norm("attention_norm", hidden), **self._norm("mlp_norm", hidden)}
        return {**norms, **self._list_attention(), **block}

    def _list_attention(self) -> Tensors:
        model, tensor = self._model, self._axes.tensor
        hidden, size = model.hidden_size, model.head_size
        tensors: Tensors = {}
        for name, heads in (("query", model.num_attention_heads), ("key", model.kv_heads), ("value", model.kv_heads)):
            over = self._axes.take_tensor(heads * size)  # also where the axes cut heads: a part of one is a part too
            tensors[name] = self._matrix(hidden, heads * size, columns=over, fsdp=0)
            if model.attention_bias:
                tensors[f"{name}_bias"] = self._plain(heads * size, over=over)
        if model.qk_norm:
            tensors |= {"query_norm": self._plain(size), "key_norm": self._plain(size)}
        tensors["output"] = self._matrix(model.num_attention_heads * size, hidden, rows=tensor, fsdp=1)
        if model.attention_output_bias:
            tensors["output_bias"] = self._plain(hidden)
        return tensors

    def _list_mlp(self) -> Tensors:
        model, tensor = self._model, self._axes.tensor
        hidden, inner = model.hidden_size, model.intermediate_size
        ins = ("gate", "up") if model.gated else ("up",)
        tensors = {name: self._matrix(hidden, inner, columns=tensor, fsdp=0) for name in ins}
        tensors["down"] = self._matrix(inner, hidden, rows=tensor, fsdp=1)
        if model.mlp_bias:
            tensors |= {f"{name}_bias": self._plain(inner, over=tensor) for name in ins}
            tensors["down_bias"] = self._plain(hidden)
        return tensors

    def _list_experts(self) -> Tensors:
        model, hidden = self._model, self._model.hidden_size
        count, inner = model.num_experts or 1, model.expert_size
        ins = ("gate", "up") if model.gated else ("up",)
        tensors = {"router": self._matrix(hidden, count, fsdp=0)}
        tensors |= {name: self._expert(count, hidden, inner, columns=self._axes.tensor) for name in ins}
        tensors["down"] = self._expert(count, inner, hidden, rows=self._axes.tensor)
        if model.num_shared_experts:
            shared = inner * model.num_shared_experts
            tensors |= {f"shared_{n}": self._matrix(hidden, shared, columns=self._axes.tensor, fsdp=0) for n in ins}
            tensors["shared_down"] = self._matrix(shared, hidden, rows=self._axes.tensor, fsdp=1)
        return tensors

    def _matrix(self, rows_: int, columns_: int, *, fsdp: int, rows: Axes = (), columns: Axes = ()) -> Tensor:
        """Returns a matrix [rows, columns] whose dimension `fsdp` is sharded over fsdp too."""
        used, sizes = [rows, columns], (rows_, columns_)
        stored = list(used)
        stored[fsdp] = (*used[fsdp], *self._axes.shard_weights(sizes[fsdp] // self._axes.measure(used[fsdp])))
        return Tensor((rows_, columns_), build_spec(*stored), build_spec(*used))

    def _expert(self, count: int, rows_: int, columns_: int, *, rows: Axes = (), columns: Axes = ()) -> Tensor:
        expert = self._axes.expert
        over = self._axes.shard_weights(columns_ if rows else rows_, without=expert)
        stored = build_spec(expert, rows, over) if rows else build_spec(expert, over, columns)
        return Tensor((count, rows_, columns_), stored, build_spec(expert, rows, columns))

    def _norm(self, name: str, size: int) -> Tensors:
        scale = {name: self._plain(size)}
        return scale if self._model.norm == "rmsnorm" else {**scale, f"{name}_bias": self._plain(size)}

    def _plain(self, *shape: int, over: Axes = ()) -> Tensor:
        """Returns a tensor that every device has whole, but for its last dimension's `over`."""
        spec = build_spec(*(None for _ in shape[:-1]), over)
        return Tensor(shape, spec, spec)


def build_tensors(model: ModelSpec, axes: StepAxes, *, scanned: bool) -> Tensors:
    """Returns all tensors of the model: those outside the layers, and "layers"."""
    table = TensorTable(model, axes)
    layer = table.list_layer()
    if scanned:
        layers: Any = {name: _stack(tensor, model.num_hidden_layers) for name, tensor in layer.items()}
    else:
        layers = tuple(layer for _ in range(model.num_hidden_layers))
    return {**table.list_outer(), "layers": layers}


def _stack(tensor: Tensor, count: int) -> Tensor:
    stored = PartitionSpec(None, *tensor.stored)
    return Tensor((count, *tensor.shape), stored, PartitionSpec(None, *tensor.used))


def walk_tensors(tensors: Tensors | tuple[Tensors, ...] | Tensor) -> Iterator[Tensor]:
    """Yields every tensor."""
    if isinstance(tensors, Tensor):
        yield tensors
        return
    for child in tensors.values() if isinstance(tensors, dict) else tensors:
        yield from walk_tensors(child)


Array = jax.Array
Way = tuple[NamedSharding, ...]
"""Shardings that a gradient goes through, the last of them that of its weight."""

GATHERED: Final = "gathered_weight"
"""The name by which remat knows weights that were gathered: they are gathered again, never kept."""


EXPERT_MATMUL: Final = "expert_matmul"
"""The name of what experts' matmuls give, which remat's own rule for matmuls takes for a batch of small ones."""


@dataclass(frozen=True)
class Layout:
    """A mesh and its axes by role."""

    mesh: Mesh
    axes: StepAxes

    def put(self, value: Array, *dimensions: Axes | None) -> Array:
        """Returns the array, each dimension over these axes."""
        return pin(value, NamedSharding(self.mesh, build_spec(*dimensions)))

    def gather(self, weight: Array, tensor: Tensor, dtype: Any) -> Array:
        """Returns a weight as a matmul takes it: in `dtype`, gathered over fsdp; its gradient is scattered."""
        if tensor.stored == tensor.used:
            return weight.astype(dtype)
        stored, used = NamedSharding(self.mesh, tensor.stored), NamedSharding(self.mesh, tensor.used)
        # Over batch axes first: asked at once for parts over context axes too, the partitioner would split the far
        # larger operands like the gradient, and gather the whole batch for it.
        batched = NamedSharding(self.mesh, _leave_out(tensor.stored, self.axes.context))
        way = (stored,) if batched == stored else (batched, stored)
        return keep(_gather(weight, way, used, dtype), GATHERED)

    def spread(self, value: Array, here: tuple[Axes, ...], there: tuple[Axes, ...]) -> Array:
        """Returns an activation moved from here to there; its gradient is moved back, not summed where it is."""
        return _spread(value, self.shard(build_spec(*here)), self.shard(build_spec(*there)))

    def store(self, tensor: Tensor) -> NamedSharding:
        """Returns where a tensor lies between its uses."""
        return NamedSharding(self.mesh, tensor.stored)

    def shard(self, spec: PartitionSpec) -> NamedSharding:
        """Returns a sharding on this mesh."""
        return NamedSharding(self.mesh, spec)


def _leave_out(spec: PartitionSpec, names: Axes) -> PartitionSpec:
    """Returns a spec without these axes."""
    entries = (() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in spec)
    return build_spec(*(tuple(name for name in entry if name not in names) for entry in entries))


def keep(value: Array, name: str) -> Array:
    """Returns the array under a name that remat knows."""
    named: Array = checkpoint_name(value, name)
    return named


def pin(value: Array, sharding: NamedSharding) -> Array:
    """Returns the array, held to a sharding."""
    held: Array = jax.lax.with_sharding_constraint(value, sharding)
    return held


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(weight: Array, way: Way, used: NamedSharding, dtype: Any) -> Array:
    return pin(pin(weight.astype(dtype), way[-1]), used)  # cast first: half the bytes to gather


def _gather_forward(weight: Array, way: Way, used: NamedSharding, dtype: Any) -> tuple[Array, Array]:
    return _gather(weight, way, used, dtype), weight[:0]


def _gather_backward(way: Way, _used: NamedSharding, _dtype: Any, kept: Array, gradient: Array) -> tuple[Array]:
    for sharding in way:
        gradient = pin(gradient, sharding)
    return (gradient.astype(kept.dtype),)


_gather.defvjp(_gather_forward, _gather_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(value: Array, here: NamedSharding, there: NamedSharding) -> Array:
    return pin(pin(value, here), there)


def _spread_forward(value: Array, here: NamedSharding, there: NamedSharding) -> tuple[Array, None]:
    return _spread(value, here, there), None


def _spread_backward(here: NamedSharding, _there: NamedSharding, _kept: None, gradient: Array) -> tuple[Array]:
    return (pin(gradient, here),)


_spread.defvjp(_spread_forward, _spread_backward)
