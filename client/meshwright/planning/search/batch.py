"""The batch of a step on a mesh: what bounds it, what each bound comes from, and which batch is recommended.

The bounds are rooflines of a feed-forward layer, tokens [B, D] × [D, F] × [F, D], of which compute and communication
overlap wholly; attention, latency and what kernels reach are left out, so that a real bound lies above.

Source: jax-ml/scaling-book, roofline.md and training.md at 0819a7d8, gpus.md at 1a55377a.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from meshwright.planning.cost.collectives import Figure, give_figure, read_figure
from meshwright.planning.cost.layout import Layout, Numbers
from meshwright.planning.cost.spans import Span, Spans
from meshwright.planning.search.candidates import build_execution
from meshwright.planning.search.search import Question, find_largest_batch, read_layout, tell
from meshwright.wire.batch_size import BatchBound, ReckonedBatch
from meshwright.wire.cost import PlanMemory

MATMUL_SOURCE: Final = "jax-ml/scaling-book, roofline.md"
FSDP_SOURCE: Final = "jax-ml/scaling-book, training.md, Fully-Sharded Data Parallelism"
TENSOR_SOURCE: Final = "jax-ml/scaling-book, training.md, Tensor Parallelism"
MIXED_SOURCE: Final = "jax-ml/scaling-book, training.md, Mixed FSDP and Tensor Parallelism"
NETWORK_SOURCE: Final = "jax-ml/scaling-book, training.md, Scaling Between Pods"


def bound_matmul_tokens(flops_per_s: Numbers, memory_bytes_per_s: Numbers, *, weight_bytes: Numbers = 2) -> Figure:
    """Returns from how many tokens a device a matmul is bound by compute, not by reading its weights.

    2·B·D·F FLOP against weight_bytes·D·F bytes: B = weight_bytes · C ÷ (2·M).

    Args:
        flops_per_s: peak of one device, in the matmul's dtype (C).
        memory_bytes_per_s: of its memory (M).
        weight_bytes: of one weight, as it lies in memory.

    Source: roofline.md. For 16-bit weights it is `Chip.critical_batch_tokens`.
    """
    return give_figure(read_figure(weight_bytes) * read_figure(flops_per_s) / (2 * read_figure(memory_bytes_per_s)))


def bound_fsdp_tokens(
    flops_per_s: Numbers,
    bytes_per_s: Numbers,
    *,
    value_bytes: Numbers = 2,
    experts_ratio: Numbers = 1,
) -> Figure:
    """Returns from how many tokens a device FSDP, or plain data parallelism, is bound by compute.

    Forward, a layer does 4·B·D·F FLOP and gathers two matrices of value_bytes·D·F bytes; backward has twice of both.
    So B = value_bytes · C ÷ (2·W): 2,550 on a v5p with one axis, 850 with three.

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: of all axes of the torus that the gather goes over at once, both ways round each ring; of a GPU,
            its links to the switch, or, across nodes, the node's network together: a node gathers each byte once (W).
        value_bytes: of one weight on the wire.
        experts_ratio: experts of a layer ÷ those that a token goes through; 1: dense.

    Source: training.md, Fully-Sharded Data Parallelism; gpus.md, Data Parallelism (experts).
    """
    intensity = read_figure(flops_per_s) / read_figure(bytes_per_s)
    return give_figure(read_figure(value_bytes) / 2 * intensity * read_figure(experts_ratio))


def bound_tensor_size(
    flops_per_s: Numbers, bytes_per_s: Numbers, inner_size: Numbers, *, value_bytes: Numbers = 2
) -> Figure:
    """Returns up to which size, not rounded, a tensor-parallel axis is bound by compute; tokens do not matter.

    Forward, a device does 4·B·D·F ÷ Y FLOP, and gathers and scatters value_bytes·B·D bytes each:
    Y = 2·F·W ÷ (value_bytes·C).

    Args:
        flops_per_s: peak of one device (C).
        bytes_per_s: as in `bound_fsdp_tokens` (W).
        inner_size: of the feed-forward layer (F).
        value_bytes: of one activation on the wire.

    Source: training.md, Tensor Parallelism; gpus.md, Tensor Parallelism.
    """
    reach = read_figure(inner_size) * read_figure(bytes_per_s)
    return give_figure(2 * reach / (read_figure(value_bytes) * read_figure(flops_per_s)))


TPU_TILE: Final = 128
"""Rows and columns of a TPU's matrix unit. Source: jax-ml/scaling-book, tpus.md."""

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
        machine = question.hardware.build_machine(question.training.compute_dtype)
        sizes = {axis: int(_read(getattr(layout, axis))) for axis in ("dp", "fsdp", "ep", "cp", "tp")}
        return cls(
            sizes=sizes,
            spans=spans,
            flops_per_s=machine.flops_per_s,
            memory_bytes_per_s=machine.memory_bytes_per_s,
            value_bytes=build_execution(question.training).value_bytes,
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


Limit = Literal["memory", "roofline", "divisibility", "asked"]


def reckon_batch(
    question: Question,
    mesh_shape: Mapping[str, int],
    *,
    spans: Spans | None = None,
    target: str | None = None,
) -> ReckonedBatch:
    """Returns the batch of a step that is recommended on a mesh, with its limits and what it costs.

    Args:
        question: its training has the passes, and as `global_batch` the greatest to recommend: a multiple of
            data-parallel parts × passes.
        mesh_shape: axis → size; names that say nothing count as data.
        spans: what the axes run over, where an order of devices says it; None: as sizes alone have it.
        target: told as it is.
    """
    return _Reckoning.of(question, mesh_shape, spans).tell(mesh_shape, target)


def find_critical_batch(question: Question, mesh_shape: Mapping[str, int]) -> int:
    """Returns the sequences of a step, a multiple of what the mesh divides, from which all bounds on tokens are met."""
    reckoning = _Reckoning.of(question, mesh_shape, None)
    return _round_up(reckoning.critical, reckoning.unit)


@dataclass(frozen=True)
class _Reckoning:
    """What is known of a mesh before a batch is chosen.

    Attributes:
        layout: of one sequence a part and pass.
        tile_tokens: 1: none is known.
        greatest: that may be recommended.
    """

    question: Question
    layout: Layout
    spans: Spans | None
    bounds: tuple[MeshBound, ...]
    tile_tokens: int
    greatest: int

    @classmethod
    def of(cls, question: Question, mesh_shape: Mapping[str, int], spans: Spans | None) -> _Reckoning:
        hardware, training = question.hardware, question.training
        single = training.model_copy(update={"global_batch": 0})
        layout = replace(read_layout(mesh_shape, single), micro_batch=np.ones(1, dtype=np.int64))
        bounds = list_mesh_bounds(question, layout, hardware.lay(layout) if spans is None else spans)
        tile = TPU_TILE if hardware.platform == "tpu" else 1
        return cls(question, layout.take(0), spans, bounds, tile, training.global_batch)

    @property
    def parts(self) -> int:
        return int(self.layout.data_parts)

    @property
    def unit(self) -> int:
        return self.parts * int(self.layout.passes)

    @property
    def tile_unit(self) -> int:
        """Sequences of a step in whose passes tokens fill whole tiles."""
        tokens = self.question.training.sequence_length // int(self.layout.cp)
        return self.unit * self.tile_tokens // math.gcd(tokens, self.tile_tokens)

    @property
    def critical(self) -> int:
        return math.ceil(max(self.count_sequences(bound.tokens) for bound in self.bounds if bound.tokens is not None))

    def count_sequences(self, tokens: float) -> float:
        """Returns sequences of a step with so many tokens in the matmuls of a device and pass."""
        return tokens * int(self.layout.cp) / self.question.training.sequence_length * self.unit

    def choose(self, largest: int) -> tuple[int, Limit]:
        """Returns the recommended batch and what it comes from, where so many fit."""
        most, least = min(largest, self.greatest), _round_up(self.critical, self.unit)
        if least > most:
            step = self.tile_unit if self.tile_unit <= most else self.unit
            return most // step * step, "asked" if self.greatest < largest else "memory"
        tiled = _round_up(self.critical, self.tile_unit)
        step, chosen = (self.tile_unit, tiled) if tiled <= most else (self.unit, least)
        return chosen, "divisibility" if chosen == step else "roofline"

    def tell(self, mesh_shape: Mapping[str, int], target: str | None) -> ReckonedBatch:
        largest = find_largest_batch(self.question, self.layout, int(self.layout.passes))
        chosen: int | None = None
        limit: Limit = "memory"
        if largest is not None:
            chosen, limit = self.choose(largest)
        told = self._price(chosen or self.unit, mesh_shape)
        memory = told["memory"]
        return ReckonedBatch(
            mesh_shape=dict(mesh_shape),
            target=target,
            unit=self.unit,
            tile_tokens=self.tile_tokens if self.tile_tokens > 1 else None,
            largest=largest,
            critical=self.critical,
            recommended=chosen,
            batch_per_device=chosen and chosen // self.parts,
            limit=limit,
            bounds=tuple(self._tell_bound(bound, chosen or 0) for bound in self.bounds),
            memory=memory,
            measured=told["measured"],
            **({name: told[name] for name in _OF_A_STEP} if chosen else {}),
            message=self._say(chosen, largest, limit, _write_mesh(mesh_shape)) or _say_nothing_fits(self.parts, memory),
        )

    def _price(self, batch: int, mesh_shape: Mapping[str, int]) -> dict[str, Any]:
        question = replace(self.question, training=self.question.training.model_copy(update={"global_batch": batch}))
        layout = read_layout(mesh_shape, question.training)
        return tell(question, question.price(layout, self.spans), 0, mesh_shape)

    def _say(self, chosen: int | None, largest: int | None, limit: Limit, mesh: str) -> str:
        if chosen is None:
            return ""
        waits = max((b for b in self.bounds if b.tokens is not None), key=lambda bound: bound.tokens or 0)
        compute = f"compute takes longer than {_WAITS[waits.name]}"
        why = {
            "roofline": f"about the least from which {compute} (from {self.critical} on); {largest} would fit",
            "divisibility": f"the least that mesh, passes and tiles divide; {compute} from {self.critical} on, and "
            f"{largest} would fit",
            "memory": f"the most that fit; {compute} only from {self.critical} on",
            "asked": f"as many as global_batch allows; {compute} only from {self.critical} on, and {largest} would fit",
        }[limit]
        each = f"{chosen // self.parts} for each of {self.parts} data-parallel part{'s' * (self.parts > 1)}"
        return f"{chosen} sequences a step on {mesh}, {each}: {why}{self._say_tensor()}"

    def _say_tensor(self) -> str:
        """Returns what no batch mends: a tensor axis whose activations take longer than its part of the compute."""
        tensor, size = next((bound.size for bound in self.bounds if bound.size is not None), None), int(self.layout.tp)
        if tensor is None or size <= tensor:
            return ""
        return f"; tp of {size} is more than {tensor:.3g}, so that its activations take longer at any batch"

    def _tell_bound(self, bound: MeshBound, chosen: int) -> BatchBound:
        batch = None if bound.tokens is None else self.count_sequences(bound.tokens)
        is_met = int(self.layout.tp) <= (bound.size or 0) if batch is None else chosen >= batch
        per: Literal["device", "slice", "axis"] = "device" if bound.slice_tokens is None else "slice"
        return BatchBound(
            name=bound.name,
            axis=bound.axis,
            tokens=bound.slice_tokens or bound.tokens,
            per=per if bound.size is None else "axis",
            size=bound.size,
            global_batch=batch,
            met=is_met,
            derivation=bound.derivation,
            source=bound.source,
        )


_OF_A_STEP: Final = ("schedule", "step_time", "tokens_per_s", "mfu_ratio")
"""What is told of a batch that fits."""


_WAITS: Final[Mapping[BoundName, str]] = {
    "memory": "reading the weights from memory",
    "fsdp": "gathering the weights over fsdp",
    "dp": "summing the gradients over dp",
    "mixed": "sending weights over fsdp and activations over tp",
    "network": "the network between slices or hosts",
}
"""What a bound on tokens is about, in words."""


def _say_nothing_fits(parts: int, memory: PlanMemory) -> str:
    needed, there = memory.per_device_bytes / 2**30, (memory.capacity_bytes or 0) / 2**30
    each = f"one sequence for each of {parts} data-parallel part{'s' * (parts > 1)}"
    return f"nothing fits: {each} needs about {needed:.1f} GiB of a device's {there:.1f}"


def _write_mesh(mesh_shape: Mapping[str, int]) -> str:
    return " × ".join(f"{name}:{size}" for name, size in mesh_shape.items())


def _round_up(batch: int, unit: int) -> int:
    return -(-batch // unit) * unit
