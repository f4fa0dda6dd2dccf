"""HLO text as computations of instructions.

Rule: one line, one instruction, read once; attributes are split only where somebody asks for them, so that a text of
100,000 lines takes about a second. Attributes that nobody knows are kept as they are written. Knows no meaning of any.
Source: openxla/xla, HloInstruction::ToString; texts of libtpu 0.0.42 and 0.0.50, jaxlib 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from meshwright.compiling.hlo.shapes import ArrayShape, parse_arrays

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},]')
_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
_COMMENT: Final = re.compile(r"/\*[^*]*\*/")
_NAME: Final = re.compile(r"\s+(ROOT )?%?([^\s=]+) = ")
_COMPUTATION: Final = re.compile(r"(ENTRY )?%?([^\s(]+) (?:\(.*)?\{$")
_OPCODE: Final = re.compile(r"\s*([\w\-]+)\(")
_MEMBERS: Final = re.compile(r"[^\s,{}]+")

_CALLED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "fusion": ("calls",),
    "call": ("to_apply",),
    "conditional": ("true_computation", "false_computation", "branch_computations"),
    "while": ("condition", "body"),
    "async-start": ("calls",),
    "call-start": ("to_apply", "calls"),
}
"""Attributes that name computations which run as often as their caller; of others (the sum of an all-reduce, the
comparison of a sort) the work is not counted."""


@dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: without %.
        opcode: such as all-reduce-start.
        shape: as written.
        operands: names of instructions of the same computation.
        literal: what stands in the brackets, as written: the value of a constant, the number of a parameter.
        is_root: the result of its computation.
        rest: attributes, as written.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    literal: str
    is_root: bool
    rest: str = field(repr=False)

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        """Attributes by name, values as written."""
        parts = (part.partition("=") for part in _split(self.rest))
        return {name: value for name, mark, value in parts if mark}

    @cached_property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """The arrays of its result."""
        return parse_arrays(self.shape)

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        """What the platform's compiler noted; empty where it noted nothing that can be read."""
        return _parse_config(self.attributes.get("backend_config", ""))

    @property
    def op_name(self) -> str:
        """The JAX operation that it was made from, or nothing."""
        found = re.search(r'op_name="((?:[^"\\]|\\.)*)"', self.attributes.get("metadata", ""))
        return found.group(1) if found else ""

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs."""
        keys = _CALLED_BY.get(self.opcode, ("calls",) if is_start(self.opcode) else ())
        return tuple(name for key in keys for name in _list_references(self.attributes.get(key, "")))


@dataclass(frozen=True)
class Computation:
    """Instructions in the order of the text, which is that of the schedule where there is one."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    @cached_property
    def order(self) -> tuple[Instruction, ...]:
        """Its instructions in the order of the text."""
        return tuple(self.instructions.values())

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each instruction stands in `order`."""
        return {name: place for place, name in enumerate(self.instructions)}


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        name: such as jit_step.
        entry: the computation that runs.
        computations: by name.
        device_count: devices that its ids number: those of one slice, where a program runs on several.
    """

    name: str
    entry: str
    computations: Mapping[str, Computation]
    device_count: int

    @property
    def main(self) -> Computation:
        """The computation that runs."""
        return self.computations[self.entry]


def parse_module(text: str) -> Module:
    """Returns the program that a text describes.

    Raises:
        ValueError: it is no text of an HLO module, or has no computation to run.
    """
    lines = iter(text.splitlines())
    head = next((line for line in lines if line.startswith("HloModule ")), None)
    if head is None:
        raise ValueError(
            f"a text that begins with {text[:40]!r} is no HLO module: none of its lines begins with HloModule; "
            "give what compiled.as_text() returns"
        )
    computations, entry = _parse_computations(lines)
    if entry is None:
        raise ValueError("the HLO module has no ENTRY computation; give the whole of what compiled.as_text() returns")
    name = head.split(maxsplit=2)[1].rstrip(",")
    return Module(name, entry, computations, _parse_count(head, "num_partitions") * _parse_count(head, "replica_count"))


def is_start(opcode: str) -> bool:
    """Returns whether an operation starts something beside the program: async-start, call-start, all-gather-start."""
    return opcode.endswith("-start")


def _parse_computations(lines: Iterator[str]) -> tuple[dict[str, Computation], str | None]:
    computations: dict[str, Computation] = {}
    entry = None
    for line in lines:
        opening = _COMPUTATION.match(line)
        if opening and not line.startswith(" "):
            computation = _parse_computation(opening.group(2), lines)
            computations[computation.name] = computation
            entry = computation.name if opening.group(1) else entry
    return computations, entry


def _parse_computation(name: str, lines: Iterator[str]) -> Computation:
    instructions: dict[str, Instruction] = {}
    root = ""
    for line in lines:
        if line.startswith("}"):
            break
        if instruction := _parse_instruction(line):
            instructions[instruction.name] = instruction
            root = instruction.name if instruction.is_root or not root else root
    return Computation(name, instructions, root)


def _parse_instruction(line: str) -> Instruction | None:
    named = _NAME.match(line)
    if named is None:
        return None
    start = named.end()
    end = _find_close(line, start) if line.startswith("(", start) else line.find(" ", start)
    opcode = _OPCODE.match(line, end)
    if end < 0 or opcode is None:
        return None
    close = _find_close(line, opcode.end() - 1)
    literal = line[opcode.end() : close - 1]
    operands = () if opcode.group(1) in ("constant", "parameter") else _list_operands(literal)
    return Instruction(
        named.group(2), opcode.group(1), line[start:end], operands, literal, bool(named.group(1)), line[close:]
    )


def _find_close(line: str, opening: int) -> int:
    """Returns the place after the bracket that closes the one at `opening`."""
    depth = 0
    for found in _BRACKET.finditer(line, opening):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0:
            return found.end()
    return len(line)


def _list_operands(inside: str) -> tuple[str, ...]:
    """Returns names; some printers write each operand's shape before it."""
    plain = _COMMENT.sub("", inside) if "/*" in inside else inside
    if "[" not in plain:
        return tuple(part.strip().removeprefix("%") for part in plain.split(",")) if plain.strip() else ()
    return tuple(part.rsplit(maxsplit=1)[-1].removeprefix("%") for part in _split(plain) if part)


def _split(text: str) -> Iterator[str]:
    """Yields the parts between commas that stand in no bracket and in no string."""
    depth = start = 0
    for found in _TOKEN.finditer(text):
        token = found.group()
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
        elif token == "," and depth == 0:
            yield text[start : found.start()].strip()
            start = found.end()
    yield text[start:].strip()


def _parse_config(written: str) -> Mapping[str, Any]:
    try:
        config = json.loads(written) if written else {}
        config = json.loads(config) if isinstance(config, str) else config
    except ValueError:  # Triton kernels note MLIR here
        return {}
    return config if isinstance(config, dict) else {}


def _list_references(written: str) -> list[str]:
    return [name.removeprefix("%") for name in _MEMBERS.findall(written)]


def _parse_count(head: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", head)
    return int(found.group(1)) if found else 1
