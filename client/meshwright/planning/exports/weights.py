"""Where the weights of a transformer lie on a mesh: the trees and shardings of the step that is compiled.

Rule: of a matrix, tensor axes cut the dimension that is not the hidden one, and what a mesh with an fsdp axis shards is
the hidden one; experts lie over expert axes; vectors are whole, but for biases of what tensor axes cut. The same as
`compiling.step.parameters`, which needs jax; a test holds both against each other. Knows no format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meshwright.planning.exports.setting import Axes, Setting

WHOLE: Final[Axes] = ()


@dataclass(frozen=True)
class Weight:
    """One trained tensor.

    Attributes:
        shape: of the whole.
        spec: for each dimension, the axes that it lies over.
    """

    shape: tuple[int, ...]
    spec: tuple[Axes, ...]


def list_outer(setting: Setting) -> dict[str, Weight]:
    """Returns the weights outside the layers, by name."""
    return dict(_Weights(setting).list_outer())


def list_layer(setting: Setting) -> dict[str, Weight]:
    """Returns the weights of one layer, by name."""
    return dict(_Weights(setting).list_layer())


Named = Iterator[tuple[str, Weight]]


class _Weights:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._model = setting.model
        self._tensor = setting.find("tensor")
        self._expert = setting.find("expert")

    def list_outer(self) -> Named:
        model = self._model
        yield "embedding", self._table(model.vocab_size, model.hidden_size)
        if model.positions == "learned":
            yield "positions", _vector(model.max_position_embeddings or 1, model.hidden_size)
        if not model.tie_word_embeddings:
            yield "head", self._matrix(model.vocab_size, leaves_hidden=True)
        yield from self._norm("final_norm")

    def list_layer(self) -> Named:
        yield from self._norm("attention_norm")
        yield from self._norm("mlp_norm")
        yield from self._list_attention()
        yield from self._list_experts() if self._model.num_experts else self._list_feed_forward()

    def _list_attention(self) -> Named:
        model, size = self._model, self._model.head_size
        for name, heads in (("query", model.num_attention_heads), ("key", model.kv_heads), ("value", model.kv_heads)):
            yield name, self._matrix(heads * size, leaves_hidden=True)
            if model.attention_bias:
                yield f"{name}_bias", _vector(heads * size, over=self._cut(heads * size))
        if model.qk_norm:
            yield "query_norm", _vector(size)
            yield "key_norm", _vector(size)
        yield "output", self._matrix(model.num_attention_heads * size, leaves_hidden=False)
        if model.attention_output_bias:
            yield "output_bias", _vector(model.hidden_size)

    @property
    def _ins(self) -> tuple[str, ...]:
        return ("gate", "up") if self._model.gated else ("up",)

    def _list_feed_forward(self) -> Named:
        inner = self._model.intermediate_size
        yield from self._block("", inner)
        if self._model.mlp_bias:
            for name in self._ins:
                yield f"{name}_bias", _vector(inner, over=self._cut(inner))
            yield "down_bias", _vector(self._model.hidden_size)

    def _block(self, prefix: str, inner: int) -> Named:
        for name in self._ins:
            yield f"{prefix}{name}", self._matrix(inner, leaves_hidden=True)
        yield f"{prefix}down", self._matrix(inner, leaves_hidden=False)

    def _list_experts(self) -> Named:
        model = self._model
        hidden, inner = model.hidden_size, model.expert_size
        yield "router", Weight((hidden, model.num_experts or 1), (self._shard(hidden), WHOLE))
        for name in self._ins:
            yield name, self._experts((hidden, inner), (WHOLE, self._cut(inner)))
        yield "down", self._experts((inner, hidden), (self._cut(inner), WHOLE))
        if model.num_shared_experts:
            yield from self._block("shared_", inner * model.num_shared_experts)

    # ---- kinds of weights ------------------------------------------------------------------------------

    def _table(self, rows: int, hidden: int) -> Weight:
        """Returns the table of tokens: its columns are cut, since rows that lie elsewhere would all be gathered."""
        cut = self._cut(hidden)
        return Weight((rows, hidden), (WHOLE, (*cut, *self._shard(hidden // self._setting.measure(cut)))))

    def _matrix(self, other: int, *, leaves_hidden: bool) -> Weight:
        """Returns a matrix between the hidden size and another one, from the hidden one or to it."""
        hidden = self._model.hidden_size
        shape, spec = (hidden, other), (self._shard(hidden), self._cut(other))
        return Weight(shape, spec) if leaves_hidden else Weight(shape[::-1], spec[::-1])

    def _experts(self, shape: tuple[int, int], cut: tuple[Axes, Axes]) -> Weight:
        """Returns a matrix of each expert, sharded in the first dimension that tensor axes leave whole."""
        place = cut.index(WHOLE)
        sharded = self._shard(shape[place], without=self._expert)
        spec = tuple(sharded if index == place else axes for index, axes in enumerate(cut))
        return Weight((self._model.num_experts or 1, *shape), (self._expert, *spec))

    def _norm(self, name: str) -> Named:
        yield name, _vector(self._model.hidden_size)
        if self._model.norm == "layernorm":
            yield f"{name}_bias", _vector(self._model.hidden_size)

    def _cut(self, size: int) -> Axes:
        """Returns the tensor axes, or none where they do not divide a dimension."""
        return self._tensor if size % self._setting.measure(self._tensor) == 0 else WHOLE

    def _shard(self, size: int, *, without: Axes = ()) -> Axes:
        """Returns the axes that a mesh with an fsdp axis shards a dimension over: context and expert axes too, each
        while they divide it."""
        if not self._setting.find("fsdp"):
            return WHOLE
        chosen: Axes = ()
        for name in self._setting.find("fsdp", "context", "expert"):
            if name not in without and size % self._setting.measure((*chosen, name)) == 0:
                chosen = (*chosen, name)
        return chosen


def _vector(*shape: int, over: Axes = WHOLE) -> Weight:
    """Returns a tensor that every device has whole, but for its last dimension."""
    return Weight(shape, (*(WHOLE for _ in shape[:-1]), over))
