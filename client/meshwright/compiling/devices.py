"""Targets as XLA's compilers describe them: devices that are not attached, and meshes of them.

Rule: the described target has exactly the devices of the mesh. Given a mesh on a part of the target, XLA's TPU compiler
takes the first ids for the whole. It then fails, crashes, or compiles for another place. So a part of a slice is
described again, as a slice of its own. Independent of steps and plans. Opens no device.

Source: libtpu 0.0.42.1 and 0.0.50.1, tested: of v5e:4x4 the corner 2x2 "target has 4 device_id", of 3*v5e:2x2 two
slices SIGILL, of 2*v5e:2x2 the second "Slice is empty".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh

from meshwright.compiling.compilers import COMPILER_OPTIONS, describe_gpus, explain_missing
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileMesh, CompileTarget
from meshwright.targets import write_shape
from meshwright.topology.chips import Chip, find_chip
from meshwright.topology.identity import canonical
from meshwright.topology.systems import HOST_SHAPE
from meshwright.topology.torus import find_wraps

Shape = tuple[int, ...]

_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {"tpu_v4": {"chip_config_name": "megacore"}}
"""Without it v4 has two devices a chip, which no job has."""


@dataclass(frozen=True)
class OpenTarget:
    """A target with an installed compiler.

    Attributes:
        devices: `jax.Device`s by [granule][position], in the order of `meshwright.topology.targets`.
        compiler_options: for `.compile(compiler_options=…)`.
        clock_hz: of TPU cores, for the compiler's cycle estimates; None elsewhere.
    """

    target: CompileTarget
    devices: tuple[tuple[Any, ...], ...]
    compiler_options: dict[str, str | bool | int] = field(default_factory=dict)
    clock_hz: float | None = None


def open_target(target: CompileTarget) -> OpenTarget:
    """Returns the target's devices as its compiler describes them.

    For a CPU target it sets the number of JAX's devices, so call it before JAX's backend starts.

    Raises:
        NotCompiledError: its compiler is not installed, or the compiler does not know such hardware.
    """
    if missing := explain_missing(target.platform, chip=target.chip):
        raise NotCompiledError(missing)
    match target.platform:
        case "tpu":
            return _open_tpu(target)
        case "gpu":
            return _open_gpu(target)
    return _open_cpu(target)


def build_mesh(opened: OpenTarget, mesh: CompileMesh) -> Mesh:
    """Returns the mesh on the target's devices, or on a part of them.

    Raises:
        NotCompiledError: the devices of some granules do not form a box of whole chips, or the boxes differ.
    """
    chosen = [opened.devices[granule][position] for granule, position in mesh.places]
    if opened.target.platform != "cpu" and len(chosen) < sum(map(len, opened.devices)):
        chosen = _describe_part(opened, mesh.places)
    grid = np.empty(len(chosen), dtype=object)
    grid[:] = chosen
    types = tuple(AxisType[mesh.axis_types.get(name, "auto").capitalize()] for name in mesh.shape)
    return Mesh(grid.reshape(tuple(mesh.shape.values())), tuple(mesh.shape), axis_types=types)


DevicePosition = tuple[int, int]
"""A granule, and the position of a device in it."""


def _describe_part(opened: OpenTarget, places: Sequence[DevicePosition]) -> list[Any]:
    """Returns devices for these places, of a target that has no others."""
    part = _find_box if opened.target.platform == "tpu" else _find_hosts
    smaller, seats = part(opened, places)
    devices = open_target(smaller).devices
    return [devices[granule][position] for granule, position in seats]


def _find_hosts(opened: OpenTarget, places: Sequence[DevicePosition]) -> tuple[CompileTarget, list[DevicePosition]]:
    """Returns a target with only the used hosts and GPUs, and the position of each place in it."""
    members = _group(places)
    counts = {len(each) for each in members.values()}
    if len(counts) > 1:
        what = f"{min(counts)} GPUs of one host and {max(counts)} of another"
        raise _refuse_part(opened, what, "for as many GPUs of each host", "as many of each host")
    smaller = opened.target.model_copy(update={"shape": (counts.pop(),), "granules": len(members)})
    return smaller, _count_anew(places, members)


def _group(places: Iterable[DevicePosition]) -> dict[int, list[int]]:
    """Returns the positions that are used of each granule, both rising."""
    members: dict[int, list[int]] = {}
    for granule, position in sorted(places):
        members.setdefault(granule, []).append(position)
    return members


def _count_anew(places: Iterable[DevicePosition], members: Mapping[int, Sequence[int]]) -> list[DevicePosition]:
    """Returns the places numbered among the used granules and their used positions only."""
    granules = {granule: ordinal for ordinal, granule in enumerate(members)}
    positions = {granule: {place: count for count, place in enumerate(used)} for granule, used in members.items()}
    return [(granules[granule], positions[granule][position]) for granule, position in places]


def _find_box(opened: OpenTarget, places: Sequence[DevicePosition]) -> tuple[CompileTarget, list[DevicePosition]]:
    """Returns the slices that the places fill, and the position of each place in them."""
    members, target = _group(places), opened.target
    boxes = {granule: _measure_box(opened, granule, positions) for granule, positions in members.items()}
    if len(set(boxes.values())) > 1:
        what = f"{write_shape(min(boxes.values()))} chips of a slice and {write_shape(max(boxes.values()))} of another"
        raise _refuse_part(opened, what, _BOXES, "the same box of each slice")
    box = next(iter(boxes.values()))
    if target.twisted and box != _extend(target.shape):
        raise _refuse_part(opened, f"{write_shape(box)} chips of a twisted torus", "for all of it", "whole slices")
    wraps = zip(_read_wrap(target), box, _extend(target.shape), strict=True)
    wrap = tuple(ring and size == whole for ring, size, whole in wraps)
    smaller = target.model_copy(update={"shape": box, "granules": len(members), "wrap": wrap})
    return smaller, _count_anew(places, members)


def _measure_box(opened: OpenTarget, granule: int, positions: Sequence[int]) -> Shape:
    """Returns the chips in x, y, z that the positions of one slice fill."""
    columns = list(zip(*(opened.devices[granule][position].coords for position in positions), strict=True))
    box = tuple(max(column) - min(column) + 1 for column in columns)
    cores = len(opened.devices[granule]) // math.prod(opened.target.shape)
    if math.prod(box) * cores != len(positions):
        what = f"{len(positions)} devices that fill no box of whole chips"
        raise _refuse_part(opened, what, _BOXES, "a box such as 2x2 chips")
    return box


_BOXES: Final = "for boxes of whole chips, the same in each slice"


def _refuse_part(opened: OpenTarget, what: str, rule: str, use: str) -> NotCompiledError:
    return NotCompiledError(
        f"the mesh takes of {opened.target.name} {what}; what stands on a part of a target is compiled {rule}; "
        f"take {use}, or plan on a target that has no more than the mesh needs"
    )


def _open_tpu(target: CompileTarget) -> OpenTarget:
    chip, extent = _find_chip(target), _extend(target.shape)
    # libtpu writes x and y of generations that have no z
    written = extent[:2] if chip.topology.startswith("2D") and extent[2] == 1 else extent
    name = f"{chip.aliases[0]}:{write_shape(written)}{'_twisted' if target.twisted else ''}"
    options: dict[str, Any] = {
        "chips_per_host_bounds": tuple(map(math.gcd, extent, HOST_SHAPE)),
        "wrap": _read_wrap(target),
        **_CONFIGS.get(chip.family, {}),
        **({"num_slices": target.granules} if target.granules > 1 else {}),
    }
    try:
        found: list[Any] = list(topologies.get_topology_desc(name, platform="tpu", **options).devices)
    except RuntimeError as error:  # JaxRuntimeError: INVALID_ARGUMENT
        raise NotCompiledError(
            f"libtpu has no slice for {target.name}: {_shorten(error)}; use one that it has, such as v5e:2x2"
        ) from error
    devices = sorted(found, key=lambda d: (getattr(d, "slice_index", None) or 0, *canonical(d.coords, d.core_on_chip)))
    return OpenTarget(target, _split(devices, target), clock_hz=chip.clock_hz)


def _find_chip(target: CompileTarget) -> Chip:
    chip = find_chip(target.chip)
    if chip is None or chip.platform != target.platform:
        raise NotCompiledError(f"{target.name}: no {target.platform} is called {target.chip}; use one like v5e, h100")
    return chip


def _extend(shape: Shape) -> Shape:
    """Returns chips in x, y and z."""
    return (*shape, 1, 1)[:3]


def _read_wrap(target: CompileTarget) -> tuple[bool, ...]:
    if target.wrap is not None:
        return (*target.wrap, False, False)[:3]
    return find_wraps(_find_chip(target).kinds[0], _extend(target.shape))


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _open_gpu(target: CompileTarget) -> OpenTarget:
    described = describe_gpus(target)
    try:
        devices: list[Any] = topologies.get_topology_desc(platform="cuda", **described).devices
    except (NotImplementedError, RuntimeError) as error:
        raise NotCompiledError(f"XLA's CUDA compiler takes no {target.name}: {_shorten(error)}") from error
    return OpenTarget(target, _split(devices, target), dict(COMPILER_OPTIONS))


def _open_cpu(target: CompileTarget) -> OpenTarget:
    count = target.shape[0] * target.granules
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        if len(jax.devices("cpu")) < count:
            raise NotCompiledError(
                f"{target.name} needs {count} CPU devices; JAX has started with {len(jax.devices('cpu'))}; how many "
                f"there are is said before JAX starts; compile in a new process"
            ) from error
    devices = jax.devices("cpu")[:count]
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}  # LLVM's part is half of the time, and none is run
    return OpenTarget(target, _split(devices, target), options)


def _split(devices: Sequence[Any], target: CompileTarget) -> tuple[tuple[Any, ...], ...]:
    """Returns devices by granule."""
    each = len(devices) // target.granules
    return tuple(tuple(devices[first : first + each]) for first in range(0, len(devices), each))
