"""From how many tokens on a mesh is bound by compute: the rooflines of its own axes, each as sequences of a step.

Rule: rooflines of the feed-forward layer of `cost.bounds`, at the mesh's sizes and over the wires that its axes run
over, at peak rates. Everything is counted in the tokens of one pass that a device's matmuls have: micro-batch ×
sequence ÷ context axis. Devices of a tensor axis or of a pipeline work on the same tokens, those of other axes on
others. What grows with the tokens (a tensor axis' activations, an expert axis' tokens, a context axis' keys) bounds
sizes, and no batch.

A mixture of experts reads and sends the weights of all experts that a device holds, and computes with the few that a
token goes through, so that it needs held ÷ chosen as many tokens.

Source: jax-ml/scaling-book, roofline.md, training.md and gpus.md, by way of `cost.bounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from meshwright.planning.cost.bounds import (
    FSDP_SOURCE,
    MATMUL_SOURCE,
    MIXED_SOURCE,
    NETWORK_SOURCE,
    TENSOR_SOURCE,
    bound_fsdp_tokens,
    bound_matmul_tokens,
    bound_tensor_size,
)
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import Span, Spans
from meshwright.planning.cost.work import build_work
from meshwright.planning.search.candidates import DTYPES, build_execution
from meshwright.planning.search.search import Question

ON_OTHER_TOKENS: Final = ("dp", "fsdp", "ep", "cp")
"""Axes whose devices work on tokens of their own."""

BoundName = Literal["memory", "fsdp", "dp", "tensor", "mixed", "network"]


@dataclass(frozen=True)
class MeshBound:
    """One bound of a mesh.

    Attributes:
        name: as `wire.batch_size.BatchBound` has it.
        axis: that it is about; None: all devices.
        tokens: in one pass in a device's matmuls, from which compute bounds; None: a bound on a size.
        slice_tokens: the same of all devices of a slice or host together, where the bound is of their network.
        size: up to which compute bounds; None: a bound on tokens.
    """

    name: BoundName
    axis: str | None
    tokens: float | None
    derivation: str
    source: str
    slice_tokens: float | None = None
    size: float | None = None


@dataclass(frozen=True)
class Factor:
    """What a bound is multiplied by, and why; 1: nothing is said."""

    value: float
    words: str


def list_mesh_bounds(question: Question, layout: Layout, spans: Spans) -> tuple[MeshBound, ...]:
    """Returns the bounds that a mesh has: memory's always, of wires those of axes that are larger than 1.

    Args:
        question: model, training and hardware.
        layout: of one candidate.
        spans: what its axes run over.
    """
    return tuple(_Bounding.of(question, layout, spans).list())


def count_held_ratio(question: Question, experts: int) -> float:
    """Returns the weights of a feed-forward layer that a device holds ÷ those that a token goes through; 1: dense.

    Shared experts count as both. With more parts than a token has choices the layer's other matmuls, which are dense,
    need more tokens than the experts: then it is 1.

    Args:
        question: whose model.
        experts: parts of the expert axis.
    """
    model = question.model
    if not model.num_experts:
        return 1.0
    held = model.num_experts / experts * model.expert_size + model.shared_size
    return max(1.0, held / _count_inner(question))


def _count_inner(question: Question) -> int:
    """Returns the inner size of the feed-forward layer that a token goes through."""
    model = question.model
    if not model.num_experts:
        return model.intermediate_size
    return (model.num_experts_per_tok or 1) * model.expert_size + model.shared_size


@dataclass(frozen=True)
class _Bounding:
    sizes: dict[str, int]
    spans: Spans
    flops_per_s: float
    memory_bytes_per_s: float
    value_bytes: float
    held_ratio: float
    inner_size: int

    @classmethod
    def of(cls, question: Question, layout: Layout, spans: Spans) -> _Bounding:
        machine = question.hardware.build_machine(DTYPES[question.training.compute_dtype])
        work = build_work(question.model, question.training.sequence_length)
        sizes = {axis: int(_read(getattr(layout, axis))) for axis in ("dp", "fsdp", "ep", "cp", "tp")}
        return cls(
            sizes=sizes,
            spans=spans,
            flops_per_s=machine.flops_per_s,
            memory_bytes_per_s=machine.memory_bytes_per_s,
            value_bytes=build_execution(work, question.training).weight_bytes,
            held_ratio=count_held_ratio(question, sizes["ep"]),
            inner_size=_count_inner(question),
        )

    def list(self) -> Iterator[MeshBound]:
        yield self._bound_memory()
        inside = [bound for axis in ("fsdp", "dp") for bound in self._bound_inside(axis)]
        yield from inside
        tensor = self._bound_tensor()
        if tensor is not None:
            yield tensor
            fsdp = next((bound for bound in inside if bound.name == "fsdp"), None)
            if fsdp is not None:
                yield from self._bound_mixed(fsdp, tensor)
        for axis in ("fsdp", "dp"):
            yield from self._bound_network(axis)

    @property
    def _common(self) -> tuple[Factor, ...]:
        values = Factor(self.value_bytes / 2, f"a value has {self.value_bytes:g} bytes, not 2")
        return values, Factor(self.held_ratio, "weights held ÷ weights that a token goes through")

    def _bound_memory(self) -> MeshBound:
        tokens = bound_matmul_tokens(self.flops_per_s, self.memory_bytes_per_s, weight_bytes=self.value_bytes)
        rate = f"{self.memory_bytes_per_s:.4g} bytes/s of memory"
        how = self._write(rate, *self._common)
        return MeshBound("memory", None, float(tokens) * self.held_ratio, how, MATMUL_SOURCE)

    def _bound_inside(self, axis: str) -> Iterator[MeshBound]:
        """Yields the bound of a data axis over links inside a slice or host, where a group has several of its devices.

        Plain data parallelism sums the part of the gradients that fsdp leaves a device.
        """
        wire = self.spans[axis].inner
        if _read(wire.size) == 1:
            return
        rate, coming = _read(wire.bytes_per_s), _read(wire.gathered_ratio)
        factors = (Factor(coming, "of the weights come from other devices"), *self._common, self._cut(axis))
        tokens = float(self._bound_data(rate)) * coming / self._parts(axis)
        how = self._write(f"{rate:.4g} bytes/s of {axis}'s links", *factors)
        yield MeshBound("fsdp" if axis == "fsdp" else "dp", axis, tokens, how, FSDP_SOURCE)

    def _bound_network(self, axis: str) -> Iterator[MeshBound]:
        """Yields the bound of a data axis over the network, where it crosses slices or hosts.

        All of a group's devices in a slice share what comes in: 1 − 1 ÷ slices of the weights.
        """
        span = self.spans[axis]
        crossed, inside = _read(span.outer.size), _read(span.inner.size)
        if crossed == 1:
            return
        rate, coming = _read(span.outer.bytes_per_s) * inside, 1 - 1 / crossed
        tokens = float(self._bound_data(rate)) * coming / self._parts(axis)
        together = float(np.prod([_read(self.spans[other].inner.size) for other in ON_OTHER_TOKENS]))
        factors = (
            Factor(coming, f"of the weights come from the other of {crossed:g}"),
            *self._common,
            self._cut(axis),
            Factor(together, "devices of a slice or host that have other tokens"),
        )
        how = self._write(f"{rate:.4g} bytes/s of network of {axis}'s devices in a slice or host", *factors)
        yield MeshBound("network", axis, tokens, how, NETWORK_SOURCE, slice_tokens=tokens * together)

    def _bound_tensor(self) -> MeshBound | None:
        if self.sizes["tp"] == 1:
            return None
        rate = _find_rate(self.spans["tp"])
        size = float(bound_tensor_size(self.flops_per_s, rate, self.inner_size, value_bytes=self.value_bytes))
        how = (
            f"2 × {self.inner_size} inner size × {rate:.4g} bytes/s of activations ÷ ({self.value_bytes:g} bytes × "
            f"{self.flops_per_s:.4g} FLOP/s)"
        )
        return MeshBound("tensor", "tp", None, how, TENSOR_SOURCE, size=size)

    def _bound_mixed(self, fsdp: MeshBound, tensor: MeshBound) -> Iterator[MeshBound]:
        """Yields the bound of fsdp beside tp: both together take no longer than compute.

        With B tokens in a device's matmuls, fsdp's bound B₁ and tp's bound Y₁: B₁ ÷ B + Y ÷ Y₁ ≤ 1, so that
        B = B₁ ÷ (1 − Y ÷ Y₁). At the best size, Y = Y₁ ÷ 2, that is Y times the published bound of both. Where Y is Y₁
        or more no batch is enough, and there is no such bound.
        """
        assert fsdp.tokens is not None
        assert tensor.size is not None
        left = 1 - self.sizes["tp"] / tensor.size
        if left > 0:
            how = f"{fsdp.tokens:.4g} tokens of fsdp ÷ (1 − tp {self.sizes['tp']} ÷ {tensor.size:.4g})"
            yield MeshBound("mixed", "tp", fsdp.tokens / left, how, MIXED_SOURCE)

    def _bound_data(self, rate: float) -> Any:
        return bound_fsdp_tokens(self.flops_per_s, rate, value_bytes=self.value_bytes, experts_ratio=self.held_ratio)

    def _parts(self, axis: str) -> int:
        return self.sizes["fsdp"] if axis == "dp" else 1

    def _cut(self, axis: str) -> Factor:
        return Factor(1 / self._parts(axis), f"of the gradients are a device's, by fsdp {self._parts(axis)}")

    def _write(self, rate: str, *factors: Factor) -> str:
        times = "".join(f" × {each.value:.4g} ({each.words})" for each in factors if each.value != 1)
        return f"{self.flops_per_s:.4g} FLOP/s ÷ {rate}{times}"


def _find_rate(span: Span) -> float:
    """Returns bytes of a whole array that a group gathers in a second, over the slower of links and network."""
    inside, crossed = _read(span.inner.size), _read(span.outer.size)
    rates = []
    if inside > 1:
        rates.append(_read(span.inner.bytes_per_s) / _read(span.inner.gathered_ratio))
    if crossed > 1:
        rates.append(_read(span.outer.bytes_per_s) * inside / (1 - 1 / crossed))
    return min(rates)


def _read(value: Any) -> float:
    """Returns the one figure of a single candidate."""
    return float(np.ravel(np.asarray(value, dtype=np.float64))[0])
