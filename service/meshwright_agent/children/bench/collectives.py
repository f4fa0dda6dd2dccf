"""Collectives over one axis of a mesh: `shard_map` in `jit` with explicit shardings of input and output.

Each device starts with its own numbers. Every element of every result is compared with NumPy's result. The compiled
program must contain the collective (an asynchronous pair counts once). With several axes all groups run at once, as in
training.

S and busbw are nccl-tests' (doc/PERFORMANCE.md): S is a rank's buffer for all-reduce, all-to-all and send/recv, its
result for all-gather, and its input for reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from meshwright.compiling.hlo.module import Module, parse_module
from meshwright.wire.bench import BenchCase
from meshwright_agent.bench.scope import Scope
from meshwright_agent.children.bench.measure import (
    Array,
    JaxCall,
    Outcome,
    Stage,
    Trial,
    build_tile,
    choose_modulus,
    count_wrong,
    expand_tile,
)
from meshwright_agent.children.bench.transfers import round_sizes


@dataclass(frozen=True)
class Group:
    """The inputs of a group, from which the expected result of one device is computed.

    Attributes:
        tiles: the pattern of each member, by its rank in the group.
        count: number of input elements of each member.
    """

    tiles: Sequence[Array]
    rank: int
    count: int
    dtype: np.dtype[np.generic]

    def begin(self, member: int, start: int = 0, count: int | None = None) -> Array:
        """Returns a part of a member's input."""
        return expand_tile(self.tiles[member], self.count if count is None else count, self.dtype, start=start)

    def total(self, start: int = 0, count: int | None = None) -> Array:
        """Returns a part of the sum over all members."""
        total: Array = np.sum(self.tiles, axis=0)
        return expand_tile(total, self.count if count is None else count, self.dtype, start=start)

    def chunk(self) -> tuple[int, int]:
        """Returns (start, count) of this device's part of a member's numbers."""
        size = self.count // len(self.tiles)
        return self.rank * size, size


Axes = str | tuple[str, ...]


def _permute(block: jax.Array, axis: Axes, count: int) -> jax.Array:
    moved: jax.Array = jax.lax.ppermute(block, axis, [(rank, (rank + 1) % count) for rank in range(count)])
    return moved


@dataclass(frozen=True)
class Kind:
    """One collective.

    Attributes:
        ops: HLO names of the collective in the compiled text; the first is the usual one. XLA for TPU fuses a
            reduce-scatter, or replaces it by an all-reduce and a slice.
        run: block `[1, elements]`, axis or axes, their size → block.
        factor: busbw ÷ algbw for n ranks.
        begins_with_part: each rank begins with S/n instead of S.
    """

    ops: tuple[str, ...]
    run: Callable[[jax.Array, Axes, int], jax.Array]
    expect: Callable[[Group], Array]
    factor: Callable[[int], float]
    begins_with_part: bool = False


def _most(count: int) -> float:
    return (count - 1) / count


KINDS: Final[dict[BenchCase, Kind]] = {
    "all_reduce": Kind(
        ops=("all-reduce",),
        run=lambda block, axis, _: jax.lax.psum(block, axis),
        expect=lambda group: group.total(),
        factor=lambda count: 2 * _most(count),
    ),
    "all_gather": Kind(
        ops=("all-gather",),
        run=lambda block, axis, _: jax.lax.all_gather(block, axis, axis=1, tiled=True),
        expect=lambda group: np.concatenate([group.begin(member) for member in range(len(group.tiles))]),
        factor=_most,
        begins_with_part=True,
    ),
    "reduce_scatter": Kind(
        ops=("reduce-scatter", "all-reduce-scatter", "all-reduce"),
        run=lambda block, axis, _: jax.lax.psum_scatter(block, axis, scatter_dimension=1, tiled=True),
        expect=lambda group: group.total(*group.chunk()),
        factor=_most,
    ),
    "all_to_all": Kind(
        ops=("all-to-all",),
        run=lambda block, axis, _: jax.lax.all_to_all(block, axis, split_axis=1, concat_axis=1, tiled=True),
        expect=lambda group: np.concatenate(
            [group.begin(member, *group.chunk()) for member in range(len(group.tiles))]
        ),
        factor=_most,
    ),
    "permute": Kind(
        ops=("collective-permute",),
        run=_permute,
        expect=lambda group: group.begin((group.rank - 1) % len(group.tiles)),
        factor=lambda _: 1.0,
    ),
}


def list_collective(case: BenchCase, scope: Scope, stage: Stage) -> Iterator[Trial]:
    """Yields one trial per axis and size, except for axes of size 1."""
    kind, sizes = KINDS[case], dict(scope.mesh.axes)
    for axis in (axis for axis in scope.axes if sizes[axis] > 1):
        for size in round_sizes(scope.sizes_bytes, sizes[axis] * stage.item_bytes):
            yield Trial(
                case=case,
                device_indices=scope.devices,
                dtype=stage.dtype,
                size_bytes=size,
                axis=axis,
                axis_size=sizes[axis],
                busbw_factor=kind.factor(sizes[axis]),
                prepare=partial(CollectiveRun, stage, kind, axis, scope, size),
            )


@dataclass
class CollectiveRun(JaxCall):
    """A compiled collective and its input: row r of `[rank, elements]` is on rank r's device."""

    kind: Kind
    axis: str
    scope: Scope
    size_bytes: int

    def __post_init__(self) -> None:
        ranks = np.arange(self.scope.mesh.device_count).reshape(self.scope.mesh.sizes)
        place = self.scope.mesh.names.index(self.axis)
        self.groups = np.moveaxis(ranks, place, -1).reshape(-1, ranks.shape[place])
        parts = self.groups.shape[1] if self.kind.begins_with_part else 1
        self.count = self.size_bytes // self.stage.item_bytes // parts
        self.sharding = self._build_sharding()
        self.compiled = self._compile()
        self.input = self._place_input()

    def _build_sharding(self) -> NamedSharding:
        mesh = self.scope.mesh
        devices = np.array([self.stage.devices[index] for index in self.scope.devices]).reshape(mesh.sizes)
        made = Mesh(devices, mesh.names, axis_types=(AxisType.Auto,) * len(mesh.names))
        return NamedSharding(made, PartitionSpec(mesh.names))

    def _compile(self) -> jax.stages.Compiled:
        spec, size = self.sharding.spec, self.groups.shape[1]
        block = jax.shard_map(
            lambda block: self.kind.run(block, self.axis, size),
            mesh=self.sharding.mesh,
            in_specs=spec,
            out_specs=spec,
            check_vma=False,
        )
        whole = jax.jit(block, in_shardings=self.sharding, out_shardings=self.sharding)
        shape = (self.groups.size, self.count)
        return whole.lower(jax.ShapeDtypeStruct(shape, self.stage.numpy_dtype, sharding=self.sharding)).compile()

    def _tile(self, rank: int) -> Array:
        return build_tile(rank, choose_modulus(self.stage.dtype, self.groups.shape[1]))

    def _place_input(self) -> jax.Array:
        rows = [
            jax.device_put(expand_tile(self._tile(rank), self.count, self.stage.numpy_dtype)[None], device)
            for rank, device in enumerate(self.sharding.mesh.devices.flat)
        ]
        shape = (self.groups.size, self.count)
        placed = jax.make_array_from_single_device_arrays(shape, self.sharding, rows)
        placed.block_until_ready()
        return placed

    def call(self) -> jax.Array:
        """Runs the collective once on all groups."""
        result: jax.Array = self.compiled(self.input)
        return result

    def verify(self) -> Outcome:
        """Compares every device's result, and reads the compiled program."""
        shards = {shard.device: np.asarray(shard.data)[0] for shard in self.last.addressable_shards}
        wrong = sum(
            count_wrong(shards[device], self._expect(rank))
            for rank, device in enumerate(self.sharding.mesh.devices.flat)
        )
        program: Any = self.compiled.runtime_executable()
        module = parse_module(program.hlo_modules()[0].as_serialized_hlo_module_proto())
        return Outcome(wrong, is_compiled=has_collective(self.kind, module))

    def _expect(self, rank: int) -> Array:
        members = next(group for group in self.groups if rank in group)
        tiles = [self._tile(int(member)) for member in members]
        place = int(np.flatnonzero(members == rank)[0])
        return self.kind.expect(Group(tiles, place, self.count, self.stage.numpy_dtype))


def has_collective(kind: Kind, module: Module) -> bool:
    """Returns whether the compiled program contains the collective: proof that it was not optimized away."""
    opcodes = {instruction.opcode for part in module.computations.values() for instruction in part.order}
    return not opcodes.isdisjoint({*kind.ops, *(f"{op}-start" for op in kind.ops)})
