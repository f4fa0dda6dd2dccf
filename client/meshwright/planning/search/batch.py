"""How many sequences a step should have on a mesh: what fits, what its rooflines ask for, and which of both binds.

Rule: no more than fits, no less than the mesh divides; between them the least batch from which compute bounds the step,
since a larger one makes no step more efficient by the roofline. Pure: a question and a mesh in, figures out; nothing is
compiled, and whether the batch trains well is not asked.

From tokens to sequences: each data-parallel part takes `global_batch ÷ parts ÷ passes` sequences at a time, of which a
device's matmuls have 1 ÷ cp of the tokens. Matmuls' tiles: where a chip's curve (`cost.gemm`) rounds contractions up,
it rounds tokens up, since these are what the gradient of a weight contracts over; GPUs' curves show no such tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import Spans
from meshwright.planning.search.batch_bounds import BoundName, MeshBound, list_mesh_bounds
from meshwright.planning.search.candidates import DTYPES
from meshwright.planning.search.search import Question, find_largest_batch, read_layout, tell
from meshwright.wire.batch_size import BatchBound, ReckonedBatch
from meshwright.wire.cost import PlanMemory

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
        tile = hardware.build_machine(DTYPES[training.compute_dtype]).curve.bends.tile_k
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
