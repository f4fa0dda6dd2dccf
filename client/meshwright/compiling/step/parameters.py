"""The tensors of the model: shape, how each is initialised, and where it lies.

Rule: these and no others are trained; their number is the model's parameter count. Layers are stacked, or listed where
they shall not be scanned. Knows no computation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from meshwright.compiling.step.axes import Axes, StepAxes, build_spec
from meshwright.wire.model import ModelSpec


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
