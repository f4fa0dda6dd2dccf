"""Which instructions of a program run, and how often: loops, calls, branches and fusions multiplied out.

Rule: each place counts as often as it runs. The trips of a loop are the compiler's own count, or are otherwise counted
exactly from its condition, its step and its start; values are followed through tuples, copies, fusions and the loops
around. A loop whose trips are not known counts once, and of a conditional the branch that writes most counts; both are
reported. TPU programs hold no trip counts; collective matmuls step by 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from meshwright.compiling.hlo.module import Computation, Instruction, Module
from meshwright.wire.base import Notice

_MOVES_NOTHING: Final = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional", "after-all"}
)
_SAME: Final = frozenset(
    {"copy", "bitcast", "convert", "reshape", "broadcast", "opt-barrier", "copy-start", "copy-done", "all-gather-done"}
)
_DEEPEST: Final = 400
"""Instructions that a value is followed through."""

_TURNED: Final[Mapping[str, str]] = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class Executed:
    """An instruction in one place where it runs.

    Attributes:
        computation: its computation, with its operands.
        times: how often a step runs it.
        is_fused: it is part of a fusion. The fusion has the estimate for all its parts.
        is_beside: it runs in an asynchronous computation, beside the program.
        caller: the caller of the computation, where that is a fusion or an asynchronous call.
    """

    instruction: Instruction
    computation: Computation
    times: float
    is_fused: bool
    is_beside: bool
    caller: Executed | None


def walk_executed(module: Module, tell: Callable[[Notice], None]) -> Iterator[Executed]:
    """Yields each instruction that a step runs, once for each place that it runs in.

    Args:
        tell: receives the codes of unknowns: `loop_trips_unknown`, `branch_assumed`.
    """

    def visit(
        frame: Frame, times: float, is_fused: bool, is_beside: bool, caller: Executed | None
    ) -> Iterator[Executed]:
        """Yields the instructions that a computation runs, and those that it calls."""
        for instruction in frame.computation.order:
            executed = Executed(instruction, frame.computation, times, is_fused, is_beside, caller)
            yield executed
            if instruction.opcode == "while":
                loop = Loop(frame, instruction)
                if loop.trips is None:
                    tell(_describe_unknown(instruction))
                if runs := times * (1 if loop.trips is None else loop.trips):
                    yield from visit(loop.body, runs, is_fused, is_beside, caller)
                continue
            for called in _choose_called(module, instruction, tell):
                is_fusion, is_start = instruction.opcode == "fusion", instruction.is_start
                parent = executed if is_fusion or is_start else caller
                inside = frame.enter(instruction, called)
                yield from visit(inside, times, is_fused or is_fusion, is_beside or is_start, parent)

    main = Frame(module, module.main, lambda _, __: None)  # the program's arguments are not known
    yield from visit(main, 1.0, False, False, None)


def _choose_called(module: Module, instruction: Instruction, tell: Callable[[Notice], None]) -> list[Computation]:
    called = [module.computations[key] for key in instruction.called]
    if instruction.opcode != "conditional" or len(called) < 2:
        return called
    largest = max(called, key=lambda branch: _weigh(module, branch))
    message = f"the choice {instruction.label} counts as its branch that writes most, {largest.name}, each time"
    hint = "a step that takes another branch does less than is told here"
    tell(Notice(code="branch_assumed", message=message, hint=hint))
    return [largest]


def _weigh(module: Module, branch: Computation) -> float:
    """Returns the bytes that a branch writes: which of two is the larger needs no more."""
    total = 0.0
    for instruction in branch.order:
        if instruction.opcode not in _MOVES_NOTHING:
            total += sum(array.size_bytes for array in instruction.arrays)
        if instruction.opcode in ("while", "call", "conditional"):
            total += sum(_weigh(module, module.computations[key]) for key in instruction.called)
    return total


def _describe_unknown(instruction: Instruction) -> Notice:
    return Notice(
        code="loop_trips_unknown",
        message=f"how often the loop {instruction.label} runs cannot be read from the program; "
        "what it does is counted once",
        hint="lax.scan, or lax.fori_loop with ends that are numbers, has trips that can be counted",
    )


@dataclass(frozen=True)
class _Number:
    """offset, or offset + the element `index` of a loop's state."""

    offset: int
    index: int | None = None


@dataclass(frozen=True)
class _Tuple:
    """Values that are read on first use."""

    element: Callable[[int, int], _Value]


_Value = _Number | _Tuple | None


@dataclass(frozen=True)
class Frame:
    """A computation in one place where it runs, with the values of its parameters."""

    module: Module
    computation: Computation
    parameter: Callable[[int, int], _Value]

    def resolve(self, key: int, depth: int = 0) -> _Value:
        """Returns the value of an instruction; None where it is not known."""
        instruction = self.computation.instructions.get(key)
        if instruction is None or depth > _DEEPEST:
            return None
        if instruction.opcode in _SAME:
            return self.resolve(instruction.operands[0], depth + 1)
        depth, message = depth + 1, instruction.message
        match instruction.opcode:
            case "constant":
                literal = message.literal
                numbers = [*literal.s32s, *literal.s64s, *literal.u32s, *literal.u64s]
                return _Number(numbers[0]) if len(numbers) == 1 else None
            case "parameter":
                return self.parameter(message.parameter_number, depth)
            case "get-tuple-element":
                whole = self.resolve(instruction.operands[0], depth)
                return whole.element(message.tuple_index, depth) if isinstance(whole, _Tuple) else None
            case "tuple":
                return _Tuple(lambda index, depth: self.resolve(instruction.operands[index], depth + 1))
            case "add" | "subtract":
                return self._resolve_sum(instruction, depth)
            case "fusion" | "call" if instruction.called:
                called = self.module.computations.get(instruction.called[0])
                return self.enter(instruction, called).resolve(called.root, depth) if called else None
            case "while":
                return _Tuple(Loop(self, instruction).find_kept)
        return None

    def _resolve_sum(self, instruction: Instruction, depth: int) -> _Value:
        left, right = (self.resolve(operand, depth) for operand in instruction.operands)
        if not isinstance(left, _Number) or not isinstance(right, _Number):
            return None
        if instruction.opcode == "subtract":
            return _Number(left.offset - right.offset, left.index) if right.index is None else None
        if left.index is not None and right.index is not None:
            return None
        return _Number(left.offset + right.offset, left.index if right.index is None else right.index)

    def enter(self, instruction: Instruction, called: Computation) -> Frame:
        """Returns the frame of a computation that an instruction calls with its operands."""

        def parameter(number: int, depth: int) -> _Value:
            return self.resolve(instruction.operands[number], depth) if number < len(instruction.operands) else None

        return Frame(self.module, called, parameter)


@dataclass(frozen=True)
class Loop:
    """A while in one place where it runs."""

    frame: Frame
    instruction: Instruction

    @cached_property
    def body(self) -> Frame:
        """The frame of its body, in which unchanged elements have their values from before the loop."""
        return Frame(self.frame.module, self._body, lambda _, __: _Tuple(self.find_kept))

    @cached_property
    def trips(self) -> int | None:
        """The number of times that the body runs; None where it is not known."""
        told = self.instruction.backend_config.get("known_trip_count")
        if isinstance(told, dict) and str(told.get("n", "")).isdigit():
            return int(told["n"])
        return self._count()

    def _count(self) -> int | None:
        module = self.frame.module
        condition = module.computations[self.instruction.called[1]]
        comparison = _find_comparison(Frame(module, condition, self._give_state))
        if comparison is None:
            return None
        left, direction, right = comparison
        left, right = self._settle(left), self._settle(right)
        if left.index is None and right.index is not None:
            left, direction, right = right, _TURNED.get(direction, ""), left
        if left.index is None or right.index is not None:
            return None
        start, step = self._start(left.index), self._step(left.index)
        if not isinstance(start, _Number) or start.index is not None or not step:
            return None
        return _count_trips(start.offset + left.offset, right.offset, step, direction)

    def _settle(self, number: _Number) -> _Number:
        """Returns the number itself, where it is an element that the loop does not change."""
        kept = self.find_kept(number.index, 0) if number.index is not None else None
        return _Number(kept.offset + number.offset) if isinstance(kept, _Number) and kept.index is None else number

    def find_kept(self, index: int, depth: int) -> _Value:
        """Returns the value from before the loop of an element that the loop does not change."""
        return self._start(index, depth) if self._step(index) == 0 else None

    def _step(self, index: int) -> int | None:
        inside = Frame(self.frame.module, self._body, self._give_state)
        root = inside.resolve(inside.computation.root)
        after = root.element(index, 0) if isinstance(root, _Tuple) else None
        return after.offset if isinstance(after, _Number) and after.index == index else None

    def _start(self, index: int, depth: int = 0) -> _Value:
        state = self.frame.resolve(self.instruction.operands[0], depth)
        return state.element(index, depth) if isinstance(state, _Tuple) else None

    def _give_state(self, _: int, __: int) -> _Value:
        return _Tuple(lambda index, _: _Number(0, index))

    @property
    def _body(self) -> Computation:
        return self.frame.module.computations[self.instruction.called[0]]


def _find_comparison(frame: Frame) -> tuple[_Number, str, _Number] | None:
    """Returns the two sides of a condition's comparison, which a fusion may do."""
    instruction = frame.computation.instructions[frame.computation.root]
    while instruction.opcode in _SAME:
        instruction = frame.computation.instructions[instruction.operands[0]]
    if instruction.opcode in ("fusion", "call"):
        return _find_comparison(frame.enter(instruction, frame.module.computations[instruction.called[0]]))
    if instruction.opcode != "compare":
        return None
    left, right = (frame.resolve(operand) for operand in instruction.operands)
    if not isinstance(left, _Number) or not isinstance(right, _Number):
        return None
    return left, str(instruction.message.comparison_direction), right


def _count_trips(start: int, end: int, step: int, direction: str) -> int | None:
    if direction in ("GT", "GE"):
        start, end, step = -start, -end, -step
        direction = {"GT": "LT", "GE": "LE"}[direction]
    distance = end - start + (direction == "LE")
    if direction == "NE":
        return distance // step if distance % step == 0 and distance // step >= 0 else None
    if direction not in ("LT", "LE") or (distance > 0 > step):
        return None
    return max(0, -(-distance // step)) if distance > 0 else 0
