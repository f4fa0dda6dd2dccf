"""XLA's protobuf of a compiled program as computations of instructions.

The messages are defined here with the fields that are read: field numbers are XLA's wire contract and do not change,
printed text does. Fields that are not defined stay in a message as unknown fields, so `Module.unknown` can name what a
newer compiler added and this reader does not know.
Source: openxla/xla, hlo.proto and xla_data.proto; programs of libtpu 0.0.42 and 0.0.50, jaxlib 0.10.2 and 0.12.0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet


def _read_schema() -> dict[str, list[str]]:
    """Returns the fields of each message, as `schema.txt` beside this file has them."""
    text = (files("meshwright.compiling.hlo") / "schema.txt").read_text(encoding="utf-8")
    lines = re.sub(r"\n  ", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines()
    return {name: fields.split() for name, _, fields in (line.partition(": ") for line in lines)}


_SCHEMA: Final = _read_schema()

_LATEST_FIELD: Final[Mapping[str, int]] = {"Module": 19, "Computation": 8, "Instruction": 98}
"""The highest field number of XLA's messages in November 2026; those below that are not defined here are not needed."""

DTYPES: Final = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64", "f16", "f32", "f64", "tuple", "opaque"),
    *("c64", "bf16", "token", "c128", "f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz"),
    *("s2", "u2", "f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu", "buffer", "f6e3m2fn", "f6e2m3fn"),
)
"""XLA's PrimitiveType, by number."""

_TUPLE: Final = DTYPES.index("tuple")

_CALLERS: Final = frozenset({"fusion", "call", "conditional", "while", "async-start"})
"""Opcodes whose computations run once per run of their caller."""

_APPLIERS: Final = frozenset(
    {"all-reduce", "all-reduce-start", "custom-call", "map", "reduce", "reduce-scatter", "reduce-window", "scatter"}
) | {"select-and-scatter", "sort", "topk", "async-update", "async-done"}
"""Opcodes whose computations are not counted: the sum of an all-reduce, the comparison of a sort."""

COLLECTIVES: Final = frozenset(
    {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute"}
) | {"collective-broadcast"}
_TRANSFERS: Final = frozenset({"send", "recv"})


@dataclass(frozen=True)
class ArrayShape:
    """One array. Sizes are logical: the padding of a layout is not counted.

    Attributes:
        dtype: as HLO names it: bf16, f32, s32, pred; "?" where this reader does not know it.
        dimensions: its sizes; of a bounded dynamic dimension the bound.
    """

    dtype: str
    dimensions: tuple[int, ...]

    @property
    def size_bytes(self) -> float:
        """Bytes of the array; a fraction where its elements are smaller than a byte."""
        return math.prod(self.dimensions) * count_bits(self.dtype) / 8


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction of a computation.

    Attributes:
        id: unique in the module.
        name: such as all-reduce.3.
        opcode: such as all-reduce-start.
        operands: ids of instructions of the same computation.
        called: ids of the computations that it calls, which run equally often; of a `while` body, then condition.
    """

    id: int
    name: str
    opcode: str
    operands: tuple[int, ...]
    called: tuple[int, ...]
    message: Any = field(repr=False)

    @cached_property
    def arrays(self) -> tuple[ArrayShape, ...]:
        """The arrays of its result, those of a tuple in their order however it is nested."""
        return tuple(_list_arrays(self.message.shape))

    @cached_property
    def backend_config(self) -> Mapping[str, Any]:
        """The config of the platform's compiler; empty where there is none that can be read."""
        try:
            config = json.loads(self.message.backend_config or b"{}")
        except ValueError:  # Triton kernels note MLIR here
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def op_name(self) -> str:
        """The JAX operation of its origin, or ""."""
        return str(self.message.metadata.op_name)

    @property
    def label(self) -> str:
        """Its name, and the JAX operation that it was made from."""
        return f"{self.name} ({self.op_name})" if self.op_name else self.name

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes that JAX and the compiler's passes set on it."""
        return {entry.key: entry.value for entry in self.message.frontend_attributes.map}

    @property
    def is_start(self) -> bool:
        """Whether it starts something beside the program: async-start, all-gather-start, send."""
        return self.opcode.endswith("-start") or self.opcode == "send"


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions by id, in the order of the schedule where there is one."""

    name: str
    instructions: Mapping[int, Instruction]
    root: int

    @cached_property
    def order(self) -> tuple[Instruction, ...]:
        """Its instructions in their order."""
        return tuple(self.instructions.values())

    @cached_property
    def places(self) -> Mapping[int, int]:
        """The index of each instruction in `order`."""
        return {key: place for place, key in enumerate(self.instructions)}


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        main: the computation that runs.
        computations: by id.
        device_count: devices that its ids number: those of one slice, where a program runs on several.
        unknown: the parts that this reader does not know, in words.
    """

    main: Computation
    computations: Mapping[int, Computation]
    device_count: int
    unknown: tuple[str, ...]


def parse_module(serialized: bytes) -> Module:
    """Returns the program of an XLA protobuf.

    Args:
        serialized: `HloModule.as_serialized_hlo_module_proto()`.

    Raises:
        ValueError: it is not a protobuf of an HLO module, or has no computation to run.
    """
    message = build_message("Module")
    try:
        message.ParseFromString(serialized)
    except DecodeError as error:
        rule = "give what hlo_modules()[0].as_serialized_hlo_module_proto() returns"
        raise ValueError(f"{len(serialized)} bytes are not the protobuf of an HLO module: {error}; {rule}") from error
    assigned = message.device_assignment
    device_count = assigned.replica_count * assigned.computation_count
    if not device_count:
        raise ValueError("the HLO module has no device assignment, so the number of its devices is not known")
    orders = {entry.key: entry.value.ids for entry in message.schedule.sequences}
    computations = {each.id: _build_computation(each, orders.get(each.id, ())) for each in message.computations}
    main = computations.get(message.entry_computation_id)
    if main is None:
        raise ValueError(
            f"the HLO module has {len(computations)} computations and not the one that runs, "
            f"{message.entry_computation_id}; give what hlo_modules()[0].as_serialized_hlo_module_proto() returns"
        )
    return Module(main, computations, device_count, tuple(dict.fromkeys(_list_unknown(message))))


def build_message(name: str) -> Any:
    """Returns an empty message of `_SCHEMA`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"meshwright.hlo.{name}"))()


def count_bits(dtype: str) -> int:
    """Returns the bits of one element; 0 for a dtype that holds no data or is not known."""
    width = re.search(r"\d+", dtype)
    return 8 if dtype == "pred" else int(width.group()) if width else 0


def list_unknown_fields(message: Any, latest: int = 0) -> list[int]:
    """Returns the numbers of a message's fields that are not defined here and are above `latest`."""
    return sorted({each.field_number for each in UnknownFieldSet(message) if each.field_number > latest})


def _build_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="meshwright/hlo.proto", package="meshwright.hlo", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _SCHEMA.items():
        message = file.message_type.add(name=name)
        for written in fields:
            key, _, rest = written.partition("=")
            number, _, kind = rest.partition(":")
            added = message.field.add(name=key, number=int(number))
            added.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            if kind in _SCHEMA:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".meshwright.hlo.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL: Final = _build_pool()


def _build_computation(message: Any, order: Any) -> Computation:
    read = {each.id: _build_instruction(each) for each in message.instructions}
    if len(order) == len(read) and all(key in read for key in order):
        read = {key: read[key] for key in order}
    return Computation(message.name, read, message.root_id)


def _build_instruction(message: Any) -> Instruction:
    called = tuple(message.called_computation_ids) if message.opcode in _CALLERS else ()
    return Instruction(message.id, message.name, message.opcode, tuple(message.operand_ids), called, message)


def _list_arrays(shape: Any) -> Iterator[ArrayShape]:
    if shape.element_type == _TUPLE:
        for part in shape.tuple_shapes:
            yield from _list_arrays(part)
    else:
        dtype = DTYPES[shape.element_type] if shape.element_type < len(DTYPES) else "?"
        yield ArrayShape(dtype, tuple(shape.dimensions))


def _list_unknown(module: Any) -> Iterator[str]:
    """Yields parts that may be missing in a report: fields, opcodes and data types that this reader does not know."""
    if numbers := list_unknown_fields(module, _LATEST_FIELD["Module"]):
        yield f"fields {numbers} of the module"
    for computation in module.computations:
        if numbers := list_unknown_fields(computation, _LATEST_FIELD["Computation"]):
            yield f"fields {numbers} of computations"
        for instruction in computation.instructions:
            yield from _list_unknown_of(instruction)


def _list_unknown_of(instruction: Any) -> Iterator[str]:
    opcode = instruction.opcode
    kind = opcode.removesuffix("-start").removesuffix("-done")
    listed = any(instruction.HasField(name) for name in ("device_list", "iota", "mesh"))
    sends = listed or bool(instruction.replica_groups or instruction.source_target_pairs)
    calls = bool(instruction.called_computation_ids)
    if calls and opcode not in _CALLERS | _APPLIERS:
        yield f"what {opcode} ({instruction.name}) calls"
    if sends and kind not in COLLECTIVES:
        yield f"what {opcode} ({instruction.name}) sends"
    if not (calls or sends or kind in COLLECTIVES | _TRANSFERS):
        return
    if numbers := list_unknown_fields(instruction, _LATEST_FIELD["Instruction"]):
        yield f"fields {numbers} of {opcode} ({instruction.name})"
    if any(array.dtype == "?" for array in _list_arrays(instruction.shape)):
        yield f"a data type of {opcode} ({instruction.name})"
