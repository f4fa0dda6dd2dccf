"""The scope of a request on given devices: cases, sizes, samples, mesh and time, with every default filled in.

Rule: pure, and equal in the agent (which rejects requests before queueing) and in the worker (which measures). Nothing
is rounded or replaced silently: an unknown mesh or device is rejected. This module does not import jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, get_args

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.spec import MeshSpec
from meshwright.wire.bench import BenchCase, BenchRequest, Dtype
from meshwright.wire.devices import Devices, Platform

CASES: Final[tuple[BenchCase, ...]] = get_args(BenchCase)
COLLECTIVE_CASES: Final[frozenset[BenchCase]] = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"}
)
DEFAULT_AXIS: Final = "x"
ITEM_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True)
class Defaults:
    """Defaults of a suite for fields that the request does not set.

    `memory_bytes`: S of memory_bandwidth, above the last cache of today's chips (H100: 50 MB, NVIDIA H100 datasheet).
    """

    sizes_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    matmul_sizes: tuple[int, ...]
    samples: int
    limit_s: float


DEFAULTS: Final[dict[tuple[str, bool], Defaults]] = {
    ("quick", True): Defaults((4 * MIB,), (64 * MIB,), (1024,), samples=10, limit_s=20.0),
    ("full", True): Defaults(
        (64 * KIB, MIB, 16 * MIB, 64 * MIB), (64 * MIB, 256 * MIB), (512, 1024, 2048), samples=30, limit_s=300.0
    ),
    ("quick", False): Defaults((64 * MIB,), (256 * MIB,), (8192,), samples=10, limit_s=20.0),
    ("full", False): Defaults(
        (64 * KIB, MIB, 16 * MIB, 256 * MIB), (256 * MIB, 1024 * MIB), (4096, 8192, 16384), samples=30, limit_s=300.0
    ),
}
"""Defaults by suite and by whether the platform is CPU. The quick suite's own arrays take
at most 512 MiB of a device; on an H100, XLA's search for kernels took as much again."""


@dataclass(frozen=True)
class Scope:
    """A request with every default filled in.

    Attributes:
        devices: local indices of the measured devices, in the order of the mesh.
        singles, pairs: devices measured alone, and pairs measured from one to the other.
        mesh: that of the collectives. The product of its sizes is the number of devices.
    """

    suite: str
    cases: tuple[BenchCase, ...]
    devices: tuple[int, ...]
    singles: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    mesh: MeshSpec
    axes: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    matmul_sizes: tuple[int, ...]
    dtype: Dtype
    samples: int
    limit_s: float


def build_scope(request: BenchRequest, *, platform: Platform, indices: Sequence[int]) -> Scope:
    """Returns the scope of the request on the devices `indices`.

    Without named devices, the quick suite measures only the first virtual CPU device and the first pair, because CPU
    devices share cores and memory. Otherwise every device is measured. Pairs: each device to the next in quick, all in
    full.

    Raises:
        InvalidMeshError: the mesh is not valid.
        InvalidRequestError: a device, axis or mesh size does not exist.
    """
    devices = _choose_devices(request, indices)
    mesh = _choose_mesh(request, len(devices))
    defaults = DEFAULTS[request.suite, platform == "cpu"]
    one_for_all = platform == "cpu" and request.suite == "quick" and request.devices is None
    pairs = _list_pairs(devices, every=request.suite == "full")
    return Scope(
        suite=request.suite,
        cases=tuple(dict.fromkeys(request.cases or CASES)),
        devices=devices,
        singles=devices[:1] if one_for_all else devices,
        pairs=pairs[:1] if one_for_all else pairs,
        mesh=mesh,
        axes=_choose_axes(request, mesh),
        sizes_bytes=tuple(dict.fromkeys(request.sizes_bytes or defaults.sizes_bytes)),
        memory_bytes=tuple(dict.fromkeys(request.sizes_bytes or defaults.memory_bytes)),
        matmul_sizes=(request.matmul_size,) if request.matmul_size else defaults.matmul_sizes,
        dtype=request.dtype or ("float32" if platform == "cpu" else "bfloat16"),
        samples=request.samples or defaults.samples,
        limit_s=request.max_s or defaults.limit_s,
    )


def build_host_scope(request: BenchRequest, devices: Devices) -> Scope:
    """Returns the scope of the request on a host as `/devices` shows it. Raises as `build_scope`."""
    return build_scope(request, platform=devices.platform, indices=[one.local_index for one in devices.devices])


def _choose_devices(request: BenchRequest, indices: Sequence[int]) -> tuple[int, ...]:
    if request.devices is None:
        return tuple(indices)
    doubled = sorted({index for index in request.devices if request.devices.count(index) > 1})
    if doubled:
        detail = f"device {doubled[0]} is named {request.devices.count(doubled[0])} times; each may stand once"
        raise _refuse("devices", detail, f"use {sorted(set(request.devices))}")
    unknown = [index for index in request.devices if index not in indices]
    if unknown:
        named = ", ".join(str(index) for index in unknown[:8])
        detail = f"device {named} is not there; this host has {_span(indices)} for JAX to measure"
        raise _refuse(
            "devices", detail, f"use local indices of GET /devices, such as [{', '.join(map(str, indices[:2]))}]"
        )
    return tuple(request.devices)


def _span(indices: Sequence[int]) -> str:
    return f"{len(indices)} ({', '.join(str(index) for index in indices[:16])}{', …' if len(indices) > 16 else ''})"


def _choose_mesh(request: BenchRequest, count: int) -> MeshSpec:
    if request.mesh is None:
        return MeshSpec(((DEFAULT_AXIS, count),))
    spec = MeshSpec.parse(request.mesh)
    try:
        mesh = spec.resolve(count)
    except PlanInfeasibleError as error:
        raise _refuse("mesh", error.detail, error.hint) from error
    if mesh.device_count != count:
        detail = f"mesh {spec} has {mesh.device_count} places for {count} devices; a bench has a device in each place"
        raise _refuse("mesh", detail, _suggest(spec, mesh.device_count, count))
    return mesh


def _suggest(spec: MeshSpec, places: int, count: int) -> str:
    if places < count:
        return f"name {places} devices beside it, or make it {spec.names[0]}:{count}"
    return f"use {spec.names[0]}:{count}, or {spec.names[0]}:-1 for all devices"


def _choose_axes(request: BenchRequest, mesh: MeshSpec) -> tuple[str, ...]:
    if request.axis is None:
        return mesh.names
    if request.axis not in mesh.names:
        detail = f"axis {request.axis!r} is not in mesh {mesh}; a collective runs over an axis of the mesh"
        raise _refuse("axis", detail, f'use axis "{mesh.names[0]}", or give a mesh that has it')
    return (request.axis,)


def _list_pairs(devices: tuple[int, ...], *, every: bool) -> tuple[tuple[int, int], ...]:
    if len(devices) < 2:
        return ()
    if every:
        return tuple(permutations(devices, 2))
    return tuple(zip(devices, (*devices[1:], devices[0]), strict=True))


_refuse = InvalidRequestError.of
