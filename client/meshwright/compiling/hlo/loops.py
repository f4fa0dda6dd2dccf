"""How often a loop of HLO runs: the compiler's word, else counted from its condition, its step and its start.

Rule: counted exactly or not known (None), never guessed. Values are followed through tuples, copies, fusions and the
loops around; whatever is no whole number, or a whole number more than one element of the loop's state, is not known.
TPU texts hold no trip counts; collective matmuls step by 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from meshwright.compiling.hlo.module import Computation, Instruction, Module

_SAME: Final = frozenset(
    {"copy", "bitcast", "convert", "reshape", "broadcast", "opt-barrier", "copy-start", "copy-done", "all-gather-done"}
)
_DEEPEST: Final = 400
"""Instructions that a value is followed through."""

_TURNED: Final[Mapping[str, str]] = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


@dataclass(frozen=True)
class _Number:
    """offset, or offset + the element `index` of a loop's state."""

    offset: int
    index: int | None = None


@dataclass(frozen=True)
class _Tuple:
    """Values that are looked at when somebody asks for one."""

    element: Callable[[int, int], _Value]


_Value = _Number | _Tuple | None


@dataclass(frozen=True)
class Frame:
    """A computation in one place where it runs: what its parameters are."""

    module: Module
    computation: Computation
    parameter: Callable[[int, int], _Value]

    def resolve(self, name: str, depth: int = 0) -> _Value:
        """Returns what an instruction's value is; None where that is not known."""
        instruction = self.computation.instructions.get(name)
        if instruction is None or depth > _DEEPEST:
            return None
        if instruction.opcode in _SAME:
            return self.resolve(instruction.operands[0], depth + 1)
        rule = _RULES.get(instruction.opcode)
        return rule(self, instruction, depth + 1) if rule else None

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
        """The frame of its body, in which elements that do not change are what they were before the loop."""
        return Frame(self.frame.module, self._called("body"), lambda _, __: _Tuple(self._find_kept))

    @cached_property
    def trips(self) -> int | None:
        """How often the body runs; None where that cannot be told."""
        told = self.instruction.backend_config.get("known_trip_count")
        if isinstance(told, dict) and str(told.get("n", "")).isdigit():
            return int(told["n"])
        return self._count()

    def _count(self) -> int | None:
        condition = _find_comparison(Frame(self.frame.module, self._called("condition"), self._give_state))
        if condition is None:
            return None
        left, direction, right = condition
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
        """Returns the number itself, where it is an element that the loop keeps as it was."""
        kept = self._find_kept(number.index, 0) if number.index is not None else None
        return _Number(kept.offset + number.offset) if isinstance(kept, _Number) and kept.index is None else number

    def _find_kept(self, index: int, depth: int) -> _Value:
        return self._start(index, depth) if self._step(index) == 0 else None

    def _step(self, index: int) -> int | None:
        inside = Frame(self.frame.module, self._called("body"), self._give_state)
        root = inside.resolve(inside.computation.root)
        after = root.element(index, 0) if isinstance(root, _Tuple) else None
        return after.offset if isinstance(after, _Number) and after.index == index else None

    def _start(self, index: int, depth: int = 0) -> _Value:
        state = self.frame.resolve(self.instruction.operands[0], depth)
        return state.element(index, depth) if isinstance(state, _Tuple) else None

    def _give_state(self, _: int, __: int) -> _Value:
        return _Tuple(lambda index, _: _Number(0, index))

    def _called(self, key: str) -> Computation:
        return self.frame.module.computations[self.instruction.attributes[key].removeprefix("%")]


def build_main(module: Module) -> Frame:
    """Returns the frame of the whole program, whose arguments nobody knows."""
    return Frame(module, module.main, lambda _, __: None)


def _find_comparison(frame: Frame) -> tuple[_Number, str, _Number] | None:
    """Returns the two sides of a condition's comparison, which a fusion may do."""
    instruction = frame.computation.instructions[frame.computation.root]
    while instruction.opcode in _SAME:
        instruction = frame.computation.instructions[instruction.operands[0]]
    if instruction.opcode in ("fusion", "call"):
        return _find_comparison(frame.enter(instruction, frame.module.computations[instruction.called[0]]))
    if instruction.opcode != "compare":
        return None
    left, right = (frame.resolve(name) for name in instruction.operands)
    if not isinstance(left, _Number) or not isinstance(right, _Number):
        return None
    return left, instruction.attributes.get("direction", ""), right


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


def _resolve_constant(_: Frame, instruction: Instruction, __: int) -> _Value:
    written = instruction.literal.strip("{} ")
    return _Number(int(written)) if written.lstrip("-").isdigit() else None


def _resolve_parameter(frame: Frame, instruction: Instruction, depth: int) -> _Value:
    return frame.parameter(int(instruction.literal), depth)


def _resolve_element(frame: Frame, instruction: Instruction, depth: int) -> _Value:
    whole = frame.resolve(instruction.operands[0], depth)
    return whole.element(int(instruction.attributes["index"]), depth) if isinstance(whole, _Tuple) else None


def _resolve_tuple(frame: Frame, instruction: Instruction, _: int) -> _Value:
    return _Tuple(lambda index, depth: frame.resolve(instruction.operands[index], depth + 1))


def _resolve_sum(frame: Frame, instruction: Instruction, depth: int) -> _Value:
    left, right = (frame.resolve(name, depth) for name in instruction.operands)
    if not isinstance(left, _Number) or not isinstance(right, _Number):
        return None
    if instruction.opcode == "subtract":
        return _Number(left.offset - right.offset, left.index) if right.index is None else None
    if left.index is not None and right.index is not None:
        return None
    return _Number(left.offset + right.offset, left.index if right.index is None else right.index)


def _resolve_call(frame: Frame, instruction: Instruction, depth: int) -> _Value:
    called = frame.module.computations.get(instruction.called[0]) if instruction.called else None
    return frame.enter(instruction, called).resolve(called.root, depth) if called else None


def _resolve_loop(frame: Frame, instruction: Instruction, _: int) -> _Value:
    return _Tuple(Loop(frame, instruction)._find_kept)


_RULES: Final[Mapping[str, Callable[[Frame, Instruction, int], _Value]]] = {
    "constant": _resolve_constant,
    "parameter": _resolve_parameter,
    "get-tuple-element": _resolve_element,
    "tuple": _resolve_tuple,
    "add": _resolve_sum,
    "subtract": _resolve_sum,
    "fusion": _resolve_call,
    "call": _resolve_call,
    "while": _resolve_loop,
}
