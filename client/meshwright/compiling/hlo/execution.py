"""Which instructions of a program run, and how often: loops, calls, branches and fusions multiplied out.

Rule: each place is visited as often as it runs. A loop whose trips nobody knows counts once and a choice counts the
branch that writes most; both are told. Knows no prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from meshwright.compiling.hlo.loops import Frame, Loop, build_main
from meshwright.compiling.hlo.module import Computation, Instruction, Module, is_start
from meshwright.wire.base import Notice

_MOVES_NOTHING: Final = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all"}
)


@dataclass(frozen=True)
class Executed:
    """An instruction in one place where it runs.

    Attributes:
        instruction: what runs.
        computation: where it stands, with its operands.
        times: how often a step runs it.
        is_fused: it is part of a fusion, which has the estimate for all its parts.
        is_beside: it runs in an asynchronous computation, beside the program.
        caller: what runs the computation, where that is a fusion or an asynchronous call.
    """

    instruction: Instruction
    computation: Computation
    times: float
    is_fused: bool = False
    is_beside: bool = False
    caller: Executed | None = None


def walk_executed(module: Module, tell: Callable[[Notice], None]) -> Iterator[Executed]:
    """Yields each instruction that a step runs, once for each place that it runs in.

    Args:
        module: the program.
        tell: takes what is not known: `loop_trips_unknown`, `branch_assumed`.
    """
    yield from _Walk(module, tell).visit(build_main(module), _Place(1.0))


@dataclass(frozen=True)
class _Place:
    times: float
    is_fused: bool = False
    is_beside: bool = False
    caller: Executed | None = None

    def put(self, instruction: Instruction, computation: Computation) -> Executed:
        """Returns an instruction in this place."""
        return Executed(instruction, computation, self.times, self.is_fused, self.is_beside, self.caller)


@dataclass(frozen=True)
class _Walk:
    module: Module
    tell: Callable[[Notice], None]

    def visit(self, frame: Frame, place: _Place) -> Iterator[Executed]:
        """Yields what a computation runs, and what that calls."""
        for instruction in frame.computation.instructions.values():
            yield place.put(instruction, frame.computation)
            if instruction.opcode == "while":
                yield from self._visit_loop(frame, instruction, place)
            elif instruction.called:
                yield from self._visit_called(frame, instruction, place)

    def _visit_loop(self, frame: Frame, instruction: Instruction, place: _Place) -> Iterator[Executed]:
        loop = Loop(frame, instruction)
        if loop.trips is None:
            self.tell(_say_unknown(instruction))
        times = place.times * (1 if loop.trips is None else loop.trips)
        if times:
            yield from self.visit(loop.body, replace(place, times=times))

    def _visit_called(self, frame: Frame, instruction: Instruction, place: _Place) -> Iterator[Executed]:
        names = [name for name in instruction.called if name in self.module.computations]
        if instruction.opcode == "conditional" and len(names) > 1:
            largest = max(names, key=lambda name: _weigh(self.module, name))
            self.tell(_say_assumed(instruction, largest))
            names = [largest]
        for name in names:
            inside = frame.enter(instruction, self.module.computations[name])
            yield from self.visit(inside, _enter(instruction, frame.computation, place))


def _enter(instruction: Instruction, computation: Computation, place: _Place) -> _Place:
    if instruction.opcode == "fusion":
        return replace(place, is_fused=True, caller=place.put(instruction, computation))
    if is_start(instruction.opcode):
        return replace(place, is_beside=True, caller=place.put(instruction, computation))
    return place


def _weigh(module: Module, name: str, depth: int = 0) -> float:
    """Returns the bytes that a branch writes: which of two is the larger needs no more."""
    if depth > 50:
        return 0.0
    total = 0.0
    for instruction in module.computations[name].instructions.values():
        if instruction.opcode not in _MOVES_NOTHING:
            total += sum(array.size_bytes for array in instruction.arrays)
        if instruction.opcode in ("while", "call", "conditional"):
            total += sum(_weigh(module, called, depth + 1) for called in instruction.called)
    return total


def _say_unknown(instruction: Instruction) -> Notice:
    where = f" ({instruction.op_name})" if instruction.op_name else ""
    return Notice(
        code="loop_trips_unknown",
        message=f"how often the loop {instruction.name}{where} runs cannot be read from the program; "
        "what it does is counted once",
        hint="lax.scan, or lax.fori_loop with ends that are numbers, has trips that can be counted",
    )


def _say_assumed(instruction: Instruction, largest: str) -> Notice:
    where = f" ({instruction.op_name})" if instruction.op_name else ""
    return Notice(
        code="branch_assumed",
        message=f"the choice {instruction.name}{where} counts as its branch that writes most, {largest}, each time",
        hint="a step that takes another branch does less than is told here",
    )
