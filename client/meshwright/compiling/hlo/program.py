"""Reads a compiled program: its collectives by axis and kind, and on TPU the time of the compiler's own cycles.

Collectives: bytes come from operands, as nccl-tests counts sizes, so that asynchronous forms, whose results hold
operand and result, are counted like the others; -done is not counted. An all-reduce that is fused with taking each
device's part is a reduce-scatter (libtpu writes it so). Transfers to other slices are written as send and recv. They
are reported as the collective that they implement.
Time: each instruction that runs counts once, a fusion by its own estimate and not by its parts. Instructions that run
beside the program (prefetched copies, SparseCores) or have no estimate (collectives, Pallas kernels) add nothing.
Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md (sizes); programs of libtpu 0.0.42 and 0.0.50 and jaxlib.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from meshwright.compiling.hlo.execution import Executed, walk_executed
from meshwright.compiling.hlo.groups import Groups, MeshIds, join_pairs, parse_target, read_groups
from meshwright.compiling.hlo.module import COLLECTIVES, ArrayShape, Instruction, parse_module
from meshwright.topology.identity import shorten
from meshwright.wire.base import Notice
from meshwright.wire.verification import UNKNOWN_AXIS, CollectiveOp, VerifiedCollective

UNKNOWN_COUNT: Final = 5
"""The maximum number of listed unknowns of a program."""

_FIRST_ONLY: Final = frozenset({"ragged-all-to-all", "collective-permute", "send"})
"""Opcodes whose other operands are offsets in buffers, or the buffer of the result."""

_TRANSFERS: Final[Mapping[str, CollectiveOp]] = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
"""libtpu's names for transfers between slices."""

_TPU_KERNEL: Final = "tpu_custom_call"
_CHAIN_START: Final = "AsyncCollectiveStart"
_IDLE_CALLS: Final = ("PrepareAsyncCall", "AllocateBuffer")
_WORK: Final = frozenset({"fusion", "dot", "convolution", "custom-call", "while", "call", "conditional", "sort"})


@dataclass(frozen=True)
class StepEstimate:
    """The compiler's own cycle estimates of fusions, one after the other, at the nominal clock.

    Left out: collectives (as if all were hidden behind compute), waiting for other devices and for input, custom
    kernels without an estimate, and what SparseCores and prefetches do beside.

    Attributes:
        total_s: with the trips of loops.
        attention_s: part of it inside attention.
    """

    total_s: float
    attention_s: float


@dataclass(frozen=True)
class ProgramFacts:
    """The facts of one step on one device.

    Attributes:
        collectives: one entry for each axis, kind and size of group; the most bytes first.
        estimate: the compiler's own time; None except on TPU.
        notices: facts that could not be read, with the assumptions used instead.
    """

    collectives: tuple[VerifiedCollective, ...]
    estimate: StepEstimate | None
    notices: tuple[Notice, ...]


def read_program(
    serialized: bytes,
    *,
    mesh_shape: Mapping[str, int],
    platform: str,
    clock_hz: float | None,
    granules: Sequence[int] = (),
    device_ids: Sequence[int] = (),
) -> ProgramFacts:
    """Returns the facts of a compiled program for a step of one device.

    Args:
        serialized: `compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()`.
        mesh_shape: axis sizes, in the order of the mesh.
        platform: "tpu", "gpu" or "cpu": only TPU programs have estimates.
        clock_hz: of a TensorCore; None gives no estimate.
        granules: the granule of each place of the mesh, row-major: a program for several TPU slices numbers the
            devices of one. Empty: there is one.
        device_ids: JAX's id of the device in each place of the mesh: the ids of devices of other slices in TPU
            programs. Empty where there are no other slices.

    Raises:
        ValueError: `serialized` is not the protobuf of an HLO module.
    """
    module = parse_module(serialized)
    notices: list[Notice] = []
    executed = list(walk_executed(module, notices.append))
    reader = CollectiveReader(MeshIds(mesh_shape, module.device_count, granules, device_ids))
    parts = [part for place in executed if (part := reader.read_collective(place))]
    if unknown := (*module.unknown, *dict.fromkeys(reader.unknown)):
        notices.append(build_incomplete(_describe_unknown(unknown)))
    notices.extend(describe_kernels(executed))
    return ProgramFacts(
        collectives=merge_parts(parts),
        estimate=build_estimate(executed, clock_hz) if platform == "tpu" and clock_hz else None,
        notices=tuple({notice.message: notice for notice in notices}.values()),
    )


def _describe_unknown(unknown: Sequence[str]) -> str:
    found = f"the compiled program has {shorten(unknown, UNKNOWN_COUNT)}, which meshwright does not know"
    return f"{found}; there may be more collectives than the report has"


def build_incomplete(reason: str) -> Notice:
    """Returns the warning of a report that has less than the program."""
    message = f"this report is incomplete: {reason}"
    hint = "a newer version of meshwright may know the output of this compiler"
    return Notice(code="program_incomplete", message=message, hint=hint)


def describe_kernels(executed: Iterable[Executed]) -> Iterator[Notice]:
    """Yields the warning that a TPU program has kernels of its own (Pallas), of which the compiler says little."""
    calls = [place.instruction for place in executed if place.instruction.message.custom_call_target == _TPU_KERNEL]
    silent = [call for call in calls if read_cycles(call) is None]
    sending = [call for call in calls if call.backend_config.get("custom_call_config", {}).get("has_communication")]
    lacks = {"their time": silent, "what they send between devices": sending}
    if said := [f"{what} ({_name_kernels(kernels)})" for what, kernels in lacks.items() if kernels]:
        message = f"the step has custom kernels, and the compiler does not tell {' and '.join(said)}"
        yield Notice(code="custom_kernels", message=message, hint="time the step on the hardware itself")


def _name_kernels(calls: Sequence[Instruction]) -> str:
    return shorten(list(dict.fromkeys(call.name.rpartition(".")[0] or call.name for call in calls)), UNKNOWN_COUNT)


def build_estimate(executed: Iterable[Executed], clock_hz: float) -> StepEstimate | None:
    """Returns the estimate of a program; None where the compiler reports no cycles at all.

    Args:
        clock_hz: of a TensorCore.
    """
    total = attention = 0.0
    for place in executed:
        cycles = None if place.is_fused or place.is_beside else read_cycles(place.instruction)
        if cycles is not None:
            total += cycles * place.times
            attention += cycles * place.times * ("attention" in place.instruction.op_name)
    if not total:
        return None
    return StepEstimate(total_s=total / clock_hz, attention_s=attention / clock_hz)


def read_cycles(instruction: Instruction) -> int | None:
    """Returns the compiler's estimate for one run of an instruction; None where there is no estimate."""
    if b"estimated_cycles" not in instruction.message.backend_config:  # most instructions: their JSON need not be read
        return None
    cycles = str(instruction.backend_config.get("window_config", {}).get("estimated_cycles", ""))
    return int(cycles) if cycles.isdigit() else None


@dataclass(frozen=True)
class CollectiveReader:
    """Reads collectives of one program.

    Attributes:
        ids: the places of the mesh, as the program numbers them.
        unknown: collectives whose groups could not be read, in words.
    """

    ids: MeshIds
    unknown: list[str] = field(default_factory=list)
    _known: dict[bytes, tuple[Groups, str]] = field(default_factory=dict, repr=False)

    def read_collective(self, executed: Executed) -> VerifiedCollective | None:
        """Returns the collective of an instruction; None where it is not a collective, or no device takes part."""
        instruction = executed.instruction
        if instruction.opcode == "send":
            return self._read_send(executed)
        kind = _find_kind(instruction)
        if kind not in COLLECTIVES or _is_continued(executed):
            return None
        return self._read_permute(executed) if kind == "collective-permute" else self._read_grouped(executed, kind)

    def _read_grouped(self, executed: Executed, kind: str) -> VerifiedCollective | None:
        try:
            groups, axis = self._read_groups(executed.instruction)
        except (ValueError, LookupError) as error:
            self.unknown.append(f"unreadable groups of {kind} ({executed.instruction.name}: {error})")
            groups, axis = (tuple(range(self.ids.device_count)),), UNKNOWN_AXIS
        size = max(len(group) for group in groups)
        if size == 1:
            return None
        op = "reduce-scatter" if kind == "all-reduce" and _is_scattered(executed) else kind.removeprefix("ragged-")
        taking_part = sum(len(group) for group in groups if len(group) > 1) / self.ids.device_count
        return self._build(executed, cast("CollectiveOp", op), axis, size, taking_part)

    def _read_groups(self, instruction: Instruction) -> tuple[Groups, str]:
        message = instruction.message
        each = [*message.replica_groups, message.device_list, message.iota, message.mesh]
        key = b"|".join(part.SerializeToString() for part in each)
        if key not in self._known:  # one list of 8,960 ids for each of hundreds of collectives
            groups = read_groups(message, self.ids.device_count)
            self._known[key] = groups, self.ids.name_axes(groups)
        return self._known[key]

    def _read_permute(self, executed: Executed) -> VerifiedCollective | None:
        listed = [(pair.source, pair.target) for pair in executed.instruction.message.source_target_pairs]
        pairs = [(source, target) for source, target in listed if source != target]
        if not pairs:
            return None
        size = max(map(len, join_pairs(pairs)))
        sending = len({source for source, _ in pairs}) / self.ids.device_count
        return self._build(executed, "collective-permute", self.ids.name_axes(pairs, are_moves=True), size, sending)

    def _read_send(self, executed: Executed) -> VerifiedCollective | None:
        attributes = executed.instruction.attributes
        transfer, written = (attributes.get(f"_xla_megascale_{key}") for key in ("transfer_type", "target"))
        if transfer is None or written is None:
            return None
        op = _TRANSFERS.get(transfer, "send")
        groups = parse_target(written)
        if "->" not in written:
            return self._build(executed, op, self.ids.name_axes(groups), max(map(len, groups)), 1.0)
        numbers = [int(number) for number in re.findall(r"\d+", written)]
        pairs = [pair for pair in zip(numbers[::2], numbers[1::2], strict=True) if pair[0] != pair[1]]
        size = max(map(len, join_pairs(pairs)))
        sending = len(pairs) / self.ids.place_count
        return self._build(executed, op, self.ids.name_axes(pairs, are_moves=True), size, sending)

    def _build(
        self, executed: Executed, op: CollectiveOp, axis: str, size: int, taking_part: float
    ) -> VerifiedCollective:
        operands = _list_operands(executed)
        factor = size if op == "all-gather" else 1
        count = executed.times * taking_part
        return VerifiedCollective(
            axis=axis,
            op=op,
            count=count,
            bytes=sum(array.size_bytes for array in operands) * factor * count,
            group_size=size,
            asynchronous_count=count if _is_overlapped(executed) else 0,
        )


def merge_parts(parts: Iterable[VerifiedCollective]) -> tuple[VerifiedCollective, ...]:
    """Returns one entry for each axis, kind and size of group; the most bytes first."""
    merged: dict[tuple[str, str, int], list[VerifiedCollective]] = {}
    for part in parts:
        merged.setdefault((part.axis, part.op, part.group_size), []).append(part)
    entries = [_merge(group) for group in merged.values()]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.axis, entry.op, entry.group_size)))


def _merge(parts: list[VerifiedCollective]) -> VerifiedCollective:
    sums = {name: sum(getattr(part, name) for part in parts) for name in ("count", "bytes", "asynchronous_count")}
    return parts[0].model_copy(update=sums)


def _find_kind(instruction: Instruction) -> str:
    return instruction.opcode.removesuffix("-start")


def _list_operands(executed: Executed) -> list[ArrayShape]:
    operands = executed.instruction.operands
    wanted = operands[:1] if _find_kind(executed.instruction) in _FIRST_ONLY else operands
    found = (executed.computation.instructions.get(operand) for operand in wanted)
    return [array for instruction in found if instruction for array in instruction.arrays if array.size_bytes]


def _is_chained(executed: Executed) -> bool:
    """Returns whether libtpu does a collective in steps: one fusion starts it, others, that compute too, go on with it.

    Each of them repeats the collective, marked with the number of the chain.
    """
    return executed.is_fused and "chain_id" in executed.instruction.attributes


def _is_continued(executed: Executed) -> bool:
    if not _is_chained(executed):
        return False
    return not any(other.message.custom_call_target == _CHAIN_START for other in executed.computation.order)


def _is_scattered(executed: Executed) -> bool:
    """Returns whether the all-reduce of a fusion is done as a reduce-scatter, by its emitter or its name."""
    caller = executed.caller
    if caller is None or caller.instruction.opcode != "fusion":
        return False
    emitter = str(caller.instruction.backend_config.get("collective_algorithm_config", {}).get("emitter", ""))
    return "ReduceScatter" in emitter or "reduce-scatter" in executed.computation.name


def _is_overlapped(executed: Executed) -> bool:
    """Returns whether anything is computed between a collective's start and its end."""
    if _is_chained(executed):
        return True
    started = executed
    while not started.instruction.is_start:
        if started.caller is None:
            return False
        started = started.caller
    computation, key = started.computation, started.instruction.id
    for later in computation.order[computation.places[key] + 1 :]:
        if key in later.operands and later.opcode.endswith("-done"):
            return False
        is_idle = any(name in later.message.custom_call_target for name in _IDLE_CALLS)
        if later.opcode in _WORK and not is_idle:
            return True
    return False
