"""Runs on GPUs as the cost model takes them: what their framework does, and many of them priced in one call.

Rule: facts of a run become an `Execution`, a `Machine` and `Spans` here, by what the run says and by its framework,
never by its name. Runs whose models have blocks of the same kind are stacked: each dimension is an array over runs,
which the formulas take as they take candidates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.cost.gemm import Dtype, find_curve, find_peak_flops_per_s
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.practice import Practice
from meshwright.planning.cost.reached import Operation
from meshwright.planning.cost.spans import Span, Spans, lay_on_hosts
from meshwright.planning.cost.step_time import Execution, Machine, price_step
from meshwright.planning.cost.work import Block, Matmul, Work, build_work
from tests.accuracy.run import Run

Floats = NDArray[np.float64]

DTYPES: Final[dict[str, Dtype]] = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
}
NARROW: Final = ("fp8", "nvfp4")

DOMAINS: Final = {"gb200": 64, "gb300": 64}
"""GPUs that NVLink joins over hosts: 72 in a rack, of which jobs take whole powers of two.

Source: the chip table, "72-GPU NVLink domain"."""

HALF_GRADIENTS: Final = ("megatron-lm-2021", "llm-foundry")
"""Whose gradients are summed in 16 bits.

Source: NVIDIA/Megatron-LM 79a3bb6, `accumulate_allreduce_grads_in_fp32` is off for float16; mosaicml/llm-foundry
8c8dd48, FSDP's `mixed_precision: PURE`."""

HALF_GRADIENT_SETS: Final = ("megatron-bridge",)
"""NVIDIA-NeMo/Megatron-Bridge v0.2.0 to v0.5.1, scripts/performance/configs: `grad_reduce_in_fp32 = False`."""

TENSOR_OVERLAP_SETS: Final = ("megatron-bridge",)
"""Where collectives of the tensor axis run beside matmuls, and interleaved stages send beside compute.

Source: NVIDIA-NeMo/Megatron-Bridge v0.3.0, `tp_comm_overlap` of its recipes (not in nvfp4) and
training/comm_overlap.py."""

PARTLY_LAUNCHED: Final = 0.7
"""Kernels left to the host where attention and router are in CUDA graphs, and dispatch and experts are not."""


@dataclass(frozen=True)
class Batch:
    """Runs that are priced together.

    Attributes:
        places: of its runs, in the sequence that it was made of.
        family: of their chip.
    """

    places: NDArray[np.int64]
    family: str
    work: Work
    layout: Layout
    machine: Machine
    spans: Spans
    execution: Execution

    def price(self, practice: Practice) -> Floats:
        """Returns the seconds of a step of each run."""
        step = price_step(self.work, self.layout, self.machine, self.spans, practice, self.execution)
        return np.broadcast_to(step.total_s, self.places.shape)


def build_batches(runs: Sequence[Run]) -> tuple[Batch, ...]:
    """Returns the runs in as few batches as there are chips, dtypes, frameworks and kinds of models."""
    groups: dict[Any, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(_find_kind(run), []).append(place)
    return tuple(_build_batch(places, [runs[place] for place in places]) for places in groups.values())


def build_execution(runs: Sequence[Run]) -> Execution:
    """Returns what the framework of these runs does; they differ in nothing but graphs, dispatchers and overlap."""
    run = runs[0]
    is_old = run.practice == "megatron-lm-2021"
    has_halves = run.practice in HALF_GRADIENTS or run.set_name in HALF_GRADIENT_SETS
    is_overlapped = run.set_name in TENSOR_OVERLAP_SETS
    launched = {"none": 1.0, "part": PARTLY_LAUNCHED, "whole": 0.0}
    return Execution(
        sequence_parallel=run.sequence_parallel,
        fused_attention=run.attention == "flash",
        repeats_attention=is_old and run.recompute == "selective",
        optimizer_sharded=run.zero_stage >= 1,
        gradient_bytes=2.0 if has_halves else 4.0,
        weights_kept=run.zero_stage == 2,
        launched=np.array([launched[each.graphs] for each in runs]),
        dispatch_waits=np.array([float(each.dispatcher == "alltoall" and not each.drops_tokens) for each in runs]),
        dispatch_once=np.array([float(each.dispatcher in ("deepep", "hybridep")) for each in runs]),
        expert_overlap=np.array([float(each.expert_overlap) for each in runs]),
        tensor_overlap=float(is_overlapped and run.compute_dtype != "nvfp4"),
        send_overlap=np.array([float(is_overlapped and int(each.layout.interleave) > 1) for each in runs]),
    )


def build_machine(run: Run) -> Machine:
    """Returns the figures of one of its GPUs in its compute dtype."""
    chip, dtype = run.find_chip(), DTYPES[run.compute_dtype]
    is_narrow = dtype in NARROW
    return Machine(
        find_peak_flops_per_s(chip, dtype),
        chip.device_memory_bytes_per_s,
        find_curve(chip, dtype),
        find_peak_flops_per_s(chip, "bfloat16") if is_narrow else None,
        find_curve(chip, "bfloat16") if is_narrow else None,
    )


def _find_kind(run: Run) -> Any:
    """Returns what runs of one batch have in common."""
    shape = tuple((len(block.matmuls), block.experts is None) for block in _find_work(run).blocks)
    facts = (run.recompute == "selective", run.sequence_parallel, run.zero_stage, run.attention)
    return shape, run.set_name, run.practice, run.chip, run.compute_dtype, run.network_bytes_per_s, facts


@functools.cache
def _find_work(run: Run) -> Work:
    return build_work(run.model, run.sequence_length)


def _build_batch(places: Sequence[int], runs: Sequence[Run]) -> Batch:
    chip = runs[0].find_chip()
    layout = Layout(**{each.name: _gather(runs, each.name) for each in fields(Layout)})
    inside = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    across = runs[0].network_bytes_per_s or chip.scaleout_bytes_per_s
    assert inside, chip.name
    assert across, chip.name
    domains = np.array([min(DOMAINS.get(run.chip, run.devices // run.hosts), run.devices) for run in runs], float)
    spans = lay_on_hosts(layout, chip.family, domains, inside, across)
    return Batch(
        places=np.asarray(places, np.int64),
        family=chip.family,
        work=stack_works([_find_work(run) for run in runs]),
        layout=layout,
        machine=build_machine(runs[0]),
        spans={axis: KeptSpan.of(span) for axis, span in spans.items()},
        execution=build_execution(runs),
    )


def _gather(runs: Sequence[Run], name: str) -> Floats:
    return np.array([getattr(run.layout, name) for run in runs], float)


class KeptSpan(Span):
    """A span that keeps what it was asked: collectives' own times do not depend on the constants that are fitted."""

    @classmethod
    def of(cls, span: Span) -> KeptSpan:
        """Returns a span like this one that keeps answers."""
        return cls(span.inner, span.outer, span.family, span.platform, span.is_partial)

    def time(self, operation: Operation, byte_count: Any) -> Any:
        """Returns `Span.time`."""
        return self._keep(
            (operation, np.asarray(byte_count).tobytes()), lambda: super(KeptSpan, self).time(operation, byte_count)
        )

    def send(self, byte_count: Any) -> Any:
        """Returns `Span.send`."""
        return self._keep(("send", np.asarray(byte_count).tobytes()), lambda: super(KeptSpan, self).send(byte_count))

    def _keep(self, key: Any, price: Callable[[], Any]) -> Any:
        kept: dict[Any, Any] = self.__dict__.setdefault("kept", {})
        if key not in kept:
            kept[key] = price()
        return kept[key]


def stack_works(works: Sequence[Work]) -> Work:
    """Returns works of the same blocks as one, each figure an array over them."""
    first = works[0]
    blocks = tuple(_stack_blocks([work.blocks[place] for work in works]) for place in range(len(first.blocks)))
    return replace(
        _stack(works, "hidden", "vocabulary", "sequence_length", "embedding_parameters"),
        blocks=blocks,
        head=_stack_matmuls([work.head for work in works]),
    )


def _stack_blocks(blocks: Sequence[Block]) -> Block:
    first = blocks[0]
    experts = [block.experts for block in blocks if block.experts is not None]
    stacked = (
        replace(
            _stack(experts, "count", "chosen", "parameters"), matmuls=_stack_rows([each.matmuls for each in experts])
        )
        if experts
        else None
    )
    attention = _stack([block.attention for block in blocks], *(each.name for each in fields(first.attention)))
    return replace(
        _stack(blocks, "count", "other_parameters", "inner"),
        matmuls=_stack_rows([block.matmuls for block in blocks]),
        attention=attention,
        experts=stacked,
    )


def _stack_rows(rows: Sequence[tuple[Matmul, ...]]) -> tuple[Matmul, ...]:
    return tuple(_stack_matmuls(column) for column in zip(*rows, strict=True))


def _stack_matmuls(matmuls: Sequence[Matmul]) -> Matmul:
    return _stack(matmuls, "inputs", "outputs")


def _stack(each: Sequence[Any], *names: str) -> Any:
    """Returns the first with these fields as arrays over all."""
    return replace(each[0], **{name: np.array([getattr(one, name) for one in each], float) for name in names})
