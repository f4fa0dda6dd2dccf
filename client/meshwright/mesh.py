"""Device meshes for a running job: built here from JAX's devices, or from the agent's plan.

| you have | use | devices | order |
|---|---|---|---|
| a plan of the agent or `plan_mesh` | `build_mesh` | the plan's | the plan's |
| sizes and names | `create_mesh` | all, or those given | the planner's, or with `use_jax` that of `jax.make_mesh` |
| a text such as "dp:2,tp:4" | `parse_mesh_from_string` | all | the planner's |
| a shape that may need fewer devices | `DeviceMeshManager` | the first ones | the planner's |
| a block `trainer.parallelism` | `meshwright.parallelism.build_device_mesh` | the first ranks | by rank |
| work for the CPU | `create_cpu_mesh`, `cpu_context` | this process's CPU devices | as JAX lists them |

`mesh_fingerprint` names any of these meshes as a plan does. Axis types are always stated, since JAX's default differs
between its versions.
"""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, SupportsIndex

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshwright._jax_devices import NO_MESH, Device, check_devices, list_devices
from meshwright._mesh_order import NUM_SLICES, order_devices
from meshwright._planned_mesh import build_mesh, mesh_fingerprint
from meshwright.errors import InvalidMeshError, PlanInfeasibleError
from meshwright.planning.granules import split_axes
from meshwright.planning.parallelism import search_shapes
from meshwright.spec import MeshSpec
from meshwright.wire.devices import parse_platform

__all__ = [
    "DEFAULT_NAMED_SHARDING_STG",
    "DEFAULT_SHARDING_STG",
    "DeviceMeshManager",
    "build_mesh",
    "calculate_host_mesh_shape",
    "cpu_context",
    "create_cpu_mesh",
    "create_mesh",
    "force_cpu",
    "mesh_fingerprint",
    "parse_mesh_from_string",
]

DEFAULT_SHARDING_STG: Final = (1, -1, 1, 1, 1)
"""The default sizes of `create_mesh`; the name is eFormer's."""

DEFAULT_NAMED_SHARDING_STG: Final = ("dp", "fsdp", "ep", "tp", "sp")
"""The axes of these sizes; likewise."""

_AxisTypes = AxisType | str | Sequence[AxisType | str] | None
"""One for all axes (alone, or in a sequence of one), or one an axis; "auto", "explicit", "manual" in any case."""

_MeshShape = Mapping[str, int] | Sequence[tuple[str, int]]


# ---- all devices ----


def create_mesh(
    axis_dims: Sequence[int] = DEFAULT_SHARDING_STG,
    axis_names: Sequence[str] = DEFAULT_NAMED_SHARDING_STG,
    dcn_mesh_dims: Sequence[int] | None = None,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = True,
    backend: str | None = None,
    use_jax: bool = False,
    axis_types: _AxisTypes = None,
    *,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Returns a mesh of all devices, in the planner's order; for equal arguments and devices the same object.

    On one TPU slice, of however many hosts, axes follow the torus; axes whose names imply more traffic (tp > sp, cp >
    ep > fsdp > dp > pp) get the better links. Where a name is unknown, inner axes come before outer ones. Several
    slices, or several processes without a fast network between them (CPU, GPU), are granules. They are spread over the
    outermost axes first, so that inner axes stay inside a granule whenever the sizes allow it. Granules of different
    sizes are cut into equal blocks, with a warning.

    Args:
        axis_dims: sizes, outermost first; one may be -1, the rest of the devices.
        axis_names: one name per axis.
        dcn_mesh_dims: how each axis is split over granules; one entry may be -1. None: outermost axes first, and
            several axes where one alone does not divide. With a single granule it has no effect, with a warning.
        should_sort_granules_by_key: granules in the order of slice or process index, not in the order of the devices.
        allow_split_physical_axes: a dimension of a torus may be shared by several axes.
        backend: "cpu", "gpu", "tpu"; None means JAX's default.
        use_jax: let `jax.make_mesh` choose the order where it can: one slice, one process, no `dcn_mesh_dims`.
        axis_types: one `AxisType` or word for all axes, or one an axis; None means Auto.
        devices: to use instead of all those of the backend; off TPU their order is kept.

    Raises:
        RuntimeError: the backend is not available.
        TypeError: an argument is of a wrong type.
        ValueError: sizes that do not multiply to the number of devices, and any other arguments that do not form a
            mesh.
    """
    spec = _build_spec(axis_dims, axis_names)
    types = _read_axis_types(axis_types, spec.names)
    dcn = None if dcn_mesh_dims is None else tuple(map(operator.index, dcn_mesh_dims))
    chosen = list_devices(backend) if devices is None else check_devices(devices)
    if devices is not None and backend and parse_platform(backend) != parse_platform(chosen[0].platform):
        raise ValueError(
            f"backend is {backend!r} and devices are of {chosen[0].platform}; devices say where the mesh is; leave "
            f"backend out, or leave devices out for all of that backend"
        )
    spec = _fill_in(spec, len(chosen))
    slices = os.environ.get(NUM_SLICES, "").strip()
    if use_jax and dcn is None and slices in {"", "1"}:
        mesh = _make_with_jax(spec, types, chosen, may_split=allow_split_physical_axes)
        if mesh is not None:
            return mesh
    order = order_devices(
        spec, chosen, dcn=dcn, is_sorted=should_sort_granules_by_key, may_split=allow_split_physical_axes, slices=slices
    )
    return _assemble(spec, types, order)


def parse_mesh_from_string(axis_dims: str, names: Sequence[str]) -> Mesh:
    """Returns the mesh of all devices that a text describes.

    Args:
        axis_dims: "dp:2,tp:4" (every name once; the mesh has the order of the text) or "2,4" (in the order of
            `names`); one size may be -1.
        names: the axes.

    Raises:
        ValueError: naming the piece that is wrong; and as `create_mesh`.
    """
    known, text = tuple(names), axis_dims
    example = str(_check_spec(zip(known, _suggest_sizes(len(known)), strict=False), 'use names=("dp", "tp")'))
    if ":" not in text:
        sizes = text.split(",")
        if len(sizes) != len(known):
            raise ValueError(
                f"mesh {axis_dims!r} has {len(sizes)} sizes; the axes are {', '.join(known)}; by position each has "
                f"one; use {','.join(map(str, _suggest_sizes(len(known))))!r}"
            )
        text = ",".join(f"{name}:{size}" for name, size in zip(known, sizes, strict=True))
    try:
        spec = MeshSpec.parse(text)
    except InvalidMeshError as error:
        raise ValueError(f"mesh {axis_dims[:80]!r}: {error.detail}; use {example!r}") from None
    for name in (*spec.names, *known):
        if name not in known or name not in spec.names:
            raise ValueError(
                f"mesh {axis_dims!r}: axis {name!r} is {'missing' if name in known else 'unknown'}; the axes are "
                f"{', '.join(known)}, and each stands once; use {example!r}"
            )
    return create_mesh(spec.sizes, spec.names)


def _build_spec(sizes: Sequence[SupportsIndex], names: Sequence[str]) -> MeshSpec:
    dims, words = tuple(map(operator.index, sizes)), tuple(names)
    is_good = words and len({*words}) == len(words) and all(word.isidentifier() for word in words)
    named = words if is_good else tuple(f"axis{number}" for number in range(len(words) or 1))
    example = f"use axis_dims={_suggest_sizes(len(named))} with axis_names={named}"
    if len(dims) != len(words):
        raise ValueError(
            f"axis_dims {dims} has {len(dims)} sizes, axis_names {words} has {len(words)}; each axis has one of both; "
            f"{example}"
        )
    return _check_spec(zip(words, dims, strict=True), example)


def _check_spec(axes: Iterable[tuple[str, int]], example: str) -> MeshSpec:
    try:
        return MeshSpec(tuple(axes))
    except InvalidMeshError as error:
        raise ValueError(f"{error.detail}; {example}") from None


def _suggest_sizes(count: int) -> tuple[int, ...]:
    return (-1, *[1] * (count - 1))


def _fill_in(spec: MeshSpec, device_count: int) -> MeshSpec:
    """Returns the mesh with its -1 filled in; it has exactly `device_count` places."""
    try:
        filled = spec.resolve(device_count)
    except PlanInfeasibleError as error:
        raise ValueError(f"{error.detail}; {_suggest(spec, device_count)}") from None
    if filled.device_count != device_count:
        raise ValueError(
            f"mesh {spec} needs {spec.device_count} devices; there are {device_count}; a mesh takes each of them once; "
            f"{_suggest(spec, device_count)}"
        )
    return filled


def _suggest(spec: MeshSpec, device_count: int) -> str:
    """Returns how a refusal ends: "use dp:4,tp:2 or dp:2,tp:4"."""
    return f"use {' or '.join(map(str, search_shapes(spec, device_count)))}"


def _read_axis_types(axis_types: _AxisTypes, names: Sequence[str]) -> tuple[AxisType, ...]:
    """Returns one axis type per axis; Auto for None."""
    given = AxisType.Auto if axis_types is None else axis_types
    if not isinstance(given, AxisType | str | Iterable):
        raise TypeError(f"axis_types is {given!r}; it is one axis type or word, or one an axis; use 'auto'")
    types = tuple(map(_read_axis_type, [given] if isinstance(given, AxisType | str) else given))
    if len(types) not in {1, len(names)}:
        raise ValueError(
            f"axis_types has {len(types)} entries, the mesh has {len(names)} axes ({', '.join(names)}); give one for "
            f'all, such as "auto", or {len(names)}'
        )
    return types * len(names) if len(types) == 1 else types


def _read_axis_type(kind: AxisType | str) -> AxisType:
    if isinstance(kind, AxisType):
        return kind
    try:
        return AxisType[str.strip(kind).capitalize()]
    except KeyError:
        words = ", ".join(known.name.lower() for known in AxisType)
        raise ValueError(f"axis_types holds {kind!r}; an axis type is one of {words}; use 'auto'") from None


def _make_with_jax(spec: MeshSpec, types: Sequence[AxisType], devices: list[Device], *, may_split: bool) -> Mesh | None:
    """Returns the mesh of `jax.make_mesh`; None where that is not applicable, or fails."""
    domains = {(device.process_index, getattr(device, "slice_index", None)) for device in devices}
    if len(domains) > 1 or (devices[0].platform == "tpu" and not may_split):  # it would still split dimensions
        return None
    try:
        return jax.make_mesh(spec.sizes, spec.names, axis_types=tuple(types), devices=devices)
    except (NotImplementedError, TypeError, ValueError, AssertionError):  # mesh_utils raises these if it has no order
        return None


def _assemble(spec: MeshSpec, types: Sequence[AxisType], devices: Sequence[Device]) -> Mesh:
    """Returns the mesh with these devices, row-major. JAX returns the same object for equal meshes."""
    return Mesh(np.fromiter(devices, dtype=object).reshape(spec.sizes), spec.names, axis_types=tuple(types))


# ---- the first devices ----


class DeviceMeshManager:
    """Makes meshes of the first devices of a fixed list, in the order of `create_mesh`.

    Args:
        devices: None means `jax.devices()`.

    Raises:
        ValueError: no device, one twice, or several platforms.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self._devices = list_devices() if devices is None else check_devices(devices)

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    @property
    def devices(self) -> list[Device]:
        """The devices, in device order."""
        return list(self._devices)

    def create_device_mesh(self, mesh_shape: _MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
        """Returns a mesh of the first devices, one for each place of the shape.

        Args:
            mesh_shape: {"data": 2, "model": 1} or [("data", 2), ("model", 1)], outermost first; one size may be -1,
                the rest of the devices.
            devices: to use instead of the manager's.

        Raises:
            TypeError: an axis without a name, or a size that is not a whole number.
            ValueError: "Not enough devices", repeated names, sizes below 1, an empty shape, or a rest that the other
                sizes do not divide.
        """
        chosen = self._devices if devices is None else check_devices(devices)
        pairs = mesh_shape.items() if isinstance(mesh_shape, Mapping) else mesh_shape
        try:
            sized = [(name, operator.index(size)) for name, size in pairs]
        except (TypeError, ValueError) as error:
            words = f"mesh_shape is {mesh_shape!r}; it has a name and a whole number for each axis"
            raise TypeError(f'{words}; use {{"data": 2, "model": -1}}') from error
        spec = _check_spec(sized, 'use {"data": 2, "model": -1}')
        if spec.device_count > len(chosen):
            raise ValueError(
                f"Not enough devices: mesh {spec} needs {'at least ' if -1 in spec.sizes else ''}{spec.device_count}, "
                f"there are {len(chosen)}; the product of the sizes cannot be more; {_suggest(spec, len(chosen))}"
            )
        count = len(chosen) if -1 in spec.sizes else spec.device_count
        return create_mesh(spec.sizes, spec.names, devices=chosen[:count])

    def create_data_parallel_mesh(self, num_devices: int | None = None, axis_name: str = "data") -> Mesh:
        """Returns a mesh of one axis.

        Args:
            num_devices: the number of devices, from the first on; None: all.
            axis_name: the name of the axis.

        Raises:
            ValueError: `num_devices` is below 1, or "Not enough devices".
        """
        count = self.num_devices if num_devices is None else num_devices
        if count < 1:
            raise ValueError(f"num_devices is {count}; a mesh has at least 1 device; leave it out to use all")
        return self.create_device_mesh({axis_name: count})

    def create_model_parallel_mesh(self, num_devices: int | None = None, axis_name: str = "model") -> Mesh:
        """Returns a mesh of one axis.

        Args:
            num_devices: the number of devices, from the first on; None: all.
            axis_name: the name of the axis.

        Raises:
            ValueError: `num_devices` is below 1, or "Not enough devices".
        """
        return self.create_data_parallel_mesh(num_devices, axis_name)

    def create_hybrid_mesh(
        self,
        data_parallel_size: int = 1,
        model_parallel_size: int = 1,
        data_axis: str = "data",
        model_axis: str = "model",
    ) -> Mesh:
        """Returns a mesh of two axes, data outermost, so that model neighbors are near each other.

        Args:
            data_parallel_size, model_parallel_size: devices on each axis; one may be -1, the rest of the devices.
            data_axis, model_axis: the names of the axes.

        Raises:
            ValueError: as `create_device_mesh`.
        """
        return self.create_device_mesh([(data_axis, data_parallel_size), (model_axis, model_parallel_size)])

    @staticmethod
    def get_mesh_info(mesh: Mesh) -> dict[str, Any]:
        """Returns {"total_devices": how many, "axes": {name: size}}."""
        return {"total_devices": int(mesh.devices.size), "axes": {str(k): int(v) for k, v in mesh.shape.items()}}


# ---- one host ----


def calculate_host_mesh_shape(
    global_mesh_shape: Sequence[int], total_devices: int | None = None, num_processes: int | None = None
) -> tuple[int, ...]:
    """Returns the part of a global mesh on one host, [axis].

    If any split of the processes over the axes works, one is found; outermost axes are split first. Worked example:
    (3, 4) on 2 hosts of 6 devices is (3, 2) on each.

    Args:
        global_mesh_shape: of the whole job; one size may be -1.
        total_devices: on one host; None means `jax.local_device_count()`.
        num_processes: hosts; None means `jax.process_count()`.

    Raises:
        ValueError: the number of places differs from that of all hosts' devices, so no split exists.
    """
    local = jax.local_device_count() if total_devices is None else operator.index(total_devices)
    hosts = jax.process_count() if num_processes is None else operator.index(num_processes)
    if total_devices is None and num_processes is None and jax.device_count() != local * hosts:
        raise ValueError(
            f"the part of mesh {tuple(global_mesh_shape)} on one host was asked for; this process has {local} of the "
            f"job's {jax.device_count()} devices, and there are {hosts} processes; each must have as many; start the "
            f"job with equal hosts, or give total_devices and num_processes"
        )
    asked, count = tuple(map(operator.index, global_mesh_shape)), local * hosts
    known = math.prod(size for size in asked if size != -1)
    sizes = tuple(count // known if size == -1 and known > 0 else size for size in asked)
    split = split_axes(sizes, hosts) if min(*sizes, hosts, 1) >= 1 else None
    if asked.count(-1) > 1 or math.prod(sizes) != count or not asked or split is None:
        works = _suggest_sizes(len(asked)) if min(local, hosts) > 0 else "1 or more of both"
        raise ValueError(
            f"global_mesh_shape {asked} does not fit; {hosts} processes with {local} devices each have {count}; sizes "
            f"and processes are ≥ 1 (one size may be -1) and multiply to that, so that each host gets an equal box of "
            f"the mesh; use {works}"
        )
    return tuple(size // parts for size, parts in zip(sizes, split, strict=True))


# ---- the CPU ----


def create_cpu_mesh(
    axis_dims: Sequence[int] = DEFAULT_SHARDING_STG, axis_names: Sequence[str] = DEFAULT_NAMED_SHARDING_STG
) -> Mesh:
    """Returns a mesh of this process's CPU devices, whatever accelerators there are.

    Args:
        axis_dims: sizes, outermost first; one may be -1, the rest of the devices.
        axis_names: one name per axis.

    Raises:
        RuntimeError: JAX has no CPU backend, as with JAX_PLATFORMS=cuda.
        ValueError: as `create_mesh`.
    """
    spec, devices = _build_spec(axis_dims, axis_names), _list_cpu_devices()
    return _assemble(_fill_in(spec, len(devices)), _read_axis_types(None, spec.names), devices)


@contextmanager
def force_cpu() -> Iterator[Device]:
    """Yields this process's first CPU device, which is JAX's default device inside.

    Raises:
        RuntimeError: JAX has no CPU backend in this process.
    """
    device = _list_cpu_devices()[0]
    with jax.default_device(device):
        yield device


@contextmanager
def cpu_context() -> Iterator[Mesh]:
    """Yields a mesh of this process's CPU devices, in force like `with force_cpu(), mesh:`.

    A computation without a sharding runs on the first CPU device, and nothing is replicated over the others. A bare
    `PartitionSpec` in `jax.lax.with_sharding_constraint` refers to the mesh; `jax.shard_map` and `NamedSharding` take
    the mesh as an argument. A mesh of an outer `jax.set_mesh` is not in force inside: JAX would place new arrays on all
    of its devices. What was in force before is in force again afterwards, also after an exception.

    Raises:
        RuntimeError: JAX has no CPU backend in this process.
    """
    mesh = create_cpu_mesh()
    with force_cpu(), jax.set_mesh(NO_MESH):
        with warnings.catch_warnings():  # `with mesh:` is deprecated for `jax.set_mesh`, which replicates over the mesh
            warnings.simplefilter("ignore", DeprecationWarning)
            mesh.__enter__()
        try:
            yield mesh
        finally:
            mesh.__exit__(None, None, None)


def _list_cpu_devices() -> list[Device]:
    """Returns this process's CPU devices, so that nothing waits for other hosts."""
    try:
        return list(jax.local_devices(backend="cpu"))
    except (AssertionError, RuntimeError) as error:
        raise RuntimeError(
            f"the CPU was asked for; JAX has no CPU backend ({str(error) or 'it could not start'}); JAX_PLATFORMS must "
            f"name it; use JAX_PLATFORMS=cuda,cpu, or leave the variable unset"
        ) from error
