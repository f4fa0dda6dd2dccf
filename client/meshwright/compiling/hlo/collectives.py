"""The collectives of a program, by axis and kind: how often, how many bytes, how the compiler does them.

Rule: bytes come from operands, as nccl-tests counts sizes, so that asynchronous forms, whose results hold operand and
result, are counted like the others; -done is not counted. An all-reduce that is fused with taking each device's part
is a reduce-scatter (libtpu writes it so). What goes to other slices is written as send and recv and is told as the
collective that it stands for, with the strategy "Megascale". Knows no speeds.
Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md (sizes); texts of libtpu 0.0.42 and 0.0.50 and jaxlib.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meshwright.compiling.hlo.axes import SLICE_IDS, MeshIds
from meshwright.compiling.hlo.execution import Executed
from meshwright.compiling.hlo.groups import Groups, join_pairs, parse_groups, parse_pairs
from meshwright.compiling.hlo.module import Instruction, is_start
from meshwright.compiling.hlo.shapes import ArrayShape
from meshwright.wire.verification import CollectiveOp, VerifiedCollective

GROUPS_CHARS: Final = 256
"""Of written groups that are told: thousands of devices one by one would be most of an answer."""

_OPS: Final[Mapping[str, CollectiveOp]] = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "ragged-all-to-all": "all-to-all",
    "collective-permute": "collective-permute",
    "collective-broadcast": "collective-broadcast",
}
_FIRST_ONLY: Final = frozenset({"ragged-all-to-all", "collective-permute"})
"""Whose other operands are places in buffers, or the buffer of the result."""

_TRANSFERS: Final[Mapping[str, CollectiveOp]] = {
    "ALL_REDUCE": "all-reduce",
    "ALL_GATHER": "all-gather",
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
"""libtpu's names for what goes between slices."""

_TRANSFER: Final = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET: Final = re.compile(r'_xla_megascale_target=("[^"]*"|\{(?:[^{}]|\{[^{}]*\})*\})')
_CROSS: Final = re.compile(r"\{([\d,]+)\}x\{(\d+):(\d+)\}")
_CHAIN_START: Final = 'custom_call_target="AsyncCollectiveStart"'
_IDLE_CALLS: Final = ("PrepareAsyncCall", "AllocateBuffer")
_WORK: Final = frozenset({"fusion", "dot", "convolution", "custom-call", "while", "call", "conditional", "sort"})


@dataclass(frozen=True)
class _Part:
    """One collective in one place."""

    op: CollectiveOp
    axis: str
    groups: str
    group_size: int
    count: float
    size_bytes: float
    dtypes: tuple[str, ...]
    strategy: str | None
    colours: int | None
    phases: int | None
    is_asynchronous: bool


@dataclass(frozen=True)
class CollectiveReader:
    """Reads collectives of one program.

    Attributes:
        ids: the places of the mesh, as the program numbers them.
    """

    ids: MeshIds
    _known: dict[str, tuple[Groups, str]] = field(default_factory=dict, repr=False)

    def read_collective(self, executed: Executed) -> _Part | None:
        """Returns the collective that an instruction is; None where it is none, or where nobody takes part.

        Raises:
            ValueError: its groups are of no known form.
        """
        instruction = executed.instruction
        if instruction.opcode == "send":
            return self._read_send(executed)
        kind = instruction.opcode.removesuffix("-start")
        if kind not in _OPS or instruction.called or _is_continued(executed):  # what it calls is read in its turn
            return None
        if kind == "collective-permute":
            return self._read_permute(executed)
        return self._read_grouped(executed, kind)

    def _read_grouped(self, executed: Executed, kind: str) -> _Part | None:
        written = _read_groups(executed.instruction)
        if written not in self._known:  # one text of 8,960 ids for each of hundreds of collectives
            groups = parse_groups(written, self.ids.device_count)
            self._known[written] = groups, self.ids.name_axes(groups)
        groups, axis = self._known[written]
        size = max(len(group) for group in groups)
        if size == 1:
            return None
        op = "reduce-scatter" if kind == "all-reduce" and _is_scattered(executed) else _OPS[kind]
        taking_part = sum(len(group) for group in groups if len(group) > 1) / self.ids.device_count
        return self._build(executed, op, axis, written, size, taking_part)

    def _read_permute(self, executed: Executed) -> _Part | None:
        written = executed.instruction.attributes.get("source_target_pairs", "{}")
        pairs = parse_pairs(written)
        if not pairs:
            return None
        size = max(map(len, join_pairs(pairs)))
        sending = len({source for source, _ in pairs}) / self.ids.device_count
        return self._build(executed, "collective-permute", self.ids.name_moves(pairs), written, size, sending)

    def _read_send(self, executed: Executed) -> _Part | None:
        attributes = executed.instruction.attributes.get("frontend_attributes", "")
        transfer, target = _TRANSFER.search(attributes), _TARGET.search(attributes)
        if transfer is None or target is None:
            return None
        op = _TRANSFERS.get(transfer.group(1), "send")
        written = target.group(1).strip('"')
        groups = _parse_target(written)
        if "->" not in written:
            return self._build(executed, op, self.ids.name_axes(groups), written, max(map(len, groups)), 1.0)
        pairs = parse_pairs(written)
        size = max(map(len, join_pairs(pairs)))
        return self._build(executed, op, self.ids.name_moves(pairs), written, size, len(pairs) / self.ids.place_count)

    def _build(
        self, executed: Executed, op: CollectiveOp, axis: str, written: str, size: int, taking_part: float
    ) -> _Part:
        operands = _list_operands(executed)
        factor = size if op == "all-gather" else 1
        strategy, colours, phases = _read_algorithm(executed)
        count = executed.times * taking_part
        return _Part(
            op=op,
            axis=axis,
            groups=written,
            group_size=size,
            count=count,
            size_bytes=sum(array.size_bytes for array in operands) * factor * count,
            dtypes=tuple(dict.fromkeys(array.dtype for array in operands)),
            strategy=strategy,
            colours=colours,
            phases=phases,
            is_asynchronous=_is_overlapped(executed),
        )


def merge_parts(parts: Iterable[_Part]) -> tuple[VerifiedCollective, ...]:
    """Returns one entry for each axis, kind and size of group; the most bytes first."""
    merged: dict[tuple[str, str, int], list[_Part]] = {}
    for part in parts:
        # groups of no axis are kept apart: their pairs or groups are all that is known of them
        key = (part.axis if part.axis != "?" else part.groups, part.op, part.group_size)
        merged.setdefault(key, []).append(part)
    entries = [_merge(group) for group in merged.values()]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.axis, entry.op, entry.group_size)))


def _merge(parts: list[_Part]) -> VerifiedCollective:
    first = parts[0]
    return VerifiedCollective(
        axis=first.axis,
        op=first.op,
        count=sum(part.count for part in parts),
        bytes=sum(part.size_bytes for part in parts),
        group_size=first.group_size,
        groups=first.groups if len(first.groups) <= GROUPS_CHARS else f"{first.groups[:GROUPS_CHARS]}…",
        dtypes=tuple(dict.fromkeys(dtype for part in parts for dtype in part.dtypes)),
        strategies=tuple(dict.fromkeys(part.strategy for part in parts if part.strategy)),
        colours=min((part.colours for part in parts if part.colours is not None), default=None),
        phases=max((part.phases for part in parts if part.phases is not None), default=None),
        asynchronous_count=sum(part.count for part in parts if part.is_asynchronous),
    )


def _read_groups(instruction: Instruction) -> str:
    """Returns the replica groups as they are written; XLA puts a comma in the middle of a mesh with an order."""
    attributes = instruction.attributes
    written = attributes.get("replica_groups", "{}")
    order = attributes.get("device_ids")
    return f"{written}, device_ids={order}" if order and written.startswith("mesh") else written


def _list_operands(executed: Executed) -> list[ArrayShape]:
    names = executed.instruction.operands
    kind = executed.instruction.opcode.removesuffix("-start")
    wanted = names[:1] if kind in _FIRST_ONLY or kind == "send" else names
    found = (executed.computation.instructions.get(name) for name in wanted)
    return [array for instruction in found if instruction for array in instruction.arrays if array.size_bytes]


def _is_chained(executed: Executed) -> bool:
    """Returns whether libtpu does a collective in steps: one fusion starts it, others, that compute too, go on with it.

    Each of them repeats the collective, marked with the number of the chain.
    """
    return executed.is_fused and "chain_id=" in executed.instruction.attributes.get("frontend_attributes", "")


def _is_continued(executed: Executed) -> bool:
    if not _is_chained(executed):
        return False
    return not any(_CHAIN_START in other.rest for other in executed.computation.order if other.opcode == "custom-call")


def _is_scattered(executed: Executed) -> bool:
    """Returns whether the all-reduce of a fusion is done as a reduce-scatter, as its emitter or its name says."""
    caller = executed.caller
    if caller is None or caller.instruction.opcode != "fusion":
        return False
    emitter = str(caller.instruction.backend_config.get("collective_algorithm_config", {}).get("emitter", ""))
    return "ReduceScatter" in emitter or any("reduce-scatter" in name for name in caller.instruction.called)


def _is_overlapped(executed: Executed) -> bool:
    """Returns whether anything is computed between a collective's start and its end."""
    if _is_chained(executed):
        return True
    started = executed
    while not _is_started(started.instruction):
        if started.caller is None:
            return False
        started = started.caller
    computation, name = started.computation, started.instruction.name
    for later in computation.order[computation.places[name] + 1 :]:
        if name in later.operands and later.opcode.endswith("-done"):
            return False
        if later.opcode in _WORK and not _is_idle(later):
            return True
    return False


def _is_started(instruction: Instruction) -> bool:
    return is_start(instruction.opcode) or instruction.opcode == "send"


def _is_idle(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and any(name in instruction.rest for name in _IDLE_CALLS)


def _read_algorithm(executed: Executed) -> tuple[str | None, int | None, int | None]:
    """Returns (strategy, colours, phases), each None where the compiler tells none."""
    if executed.instruction.opcode == "send":
        return "Megascale", None, None
    for place in (executed, executed.caller):
        config: Mapping[str, Any] = place.instruction.backend_config if place else {}
        if told := config.get("collective_algorithm_config"):
            return _read_told(told)
        if offload := config.get("collective_offload_config"):
            return _read_offload(offload)
    return None, None, None


def _read_told(told: Mapping[str, Any]) -> tuple[str | None, int | None, int | None]:
    """Reads what a TensorCore does; where it names no strategy, its emitter."""
    debug = str(told.get("debug", ""))
    strategy = str(told.get("strategy") or told.get("emitter") or "")
    return strategy or None, _choose_count(debug, r"\bcolors:(\d+)", min), _choose_count(debug, r"\bphases:(\d+)", max)


def _choose_count(debug: str, pattern: str, choose: Callable[[Iterable[int]], int]) -> int | None:
    found = [int(number) for number in re.findall(pattern, debug)]
    return choose(found) if found else None


def _read_offload(offload: Mapping[str, Any]) -> tuple[str | None, int | None, int | None]:
    """Reads what the SparseCores do (tpu7x): a colour has a ring for every phase."""
    told = next((config for config in offload.values() if isinstance(config, dict)), {})
    colours = told.get("ici_strategy_config", {}).get("color_strategies", [])
    phases = max((len(colour.get("phase_rings", ())) for colour in colours), default=None)
    return "SparseCoreND" if told.get("use_n_dimension_strategy") else "SparseCoreRing", len(colours) or None, phases


def _parse_target(written: str) -> Groups:
    """Returns the groups of a transfer between slices: {1,2}x{0:3} is each device with those of its number."""
    if cross := _CROSS.search(written):
        slices = [int(number) for number in cross.group(1).split(",")]
        numbers = range(int(cross.group(2)), int(cross.group(3)) + 1)
        return tuple(tuple(slice_ * SLICE_IDS + number for slice_ in slices) for number in numbers)
    inside = re.findall(r"\{([^{}]*)\}", written)
    return tuple(tuple(int(number) for number in re.findall(r"\d+", group)) for group in inside)
