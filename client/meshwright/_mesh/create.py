"""`create_mesh`: a mesh of this job's devices in the planner's order, and the same object for the same devices.

Rule: the cache is keyed by the devices themselves, so that a restarted backend gets its own mesh. Axis types are always
stated: JAX's default differs between its versions.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshwright._jax_devices import list_devices
from meshwright._mesh.granules import NUM_SLICES, Layout, order_devices
from meshwright._mesh.shapes import (
    AxisTypesLike,
    build_spec,
    check_count,
    parse_named_sizes,
    read_axis_types,
    read_sizes,
    resolve_spec,
)
from meshwright.spec import MeshSpec
from meshwright.wire.devices import parse_platform

DEFAULT_SHARDING_STG: Final = (1, -1, 1, 1, 1)
"""The default sizes of `create_mesh`; the name is eFormer's."""

DEFAULT_NAMED_SHARDING_STG: Final = ("dp", "fsdp", "ep", "tp", "sp")
"""The axes of these sizes; likewise."""


def create_mesh(
    axis_dims: Sequence[int] = DEFAULT_SHARDING_STG,
    axis_names: Sequence[str] = DEFAULT_NAMED_SHARDING_STG,
    dcn_mesh_dims: Sequence[int] | None = None,
    should_sort_granules_by_key: bool = True,
    allow_split_physical_axes: bool = True,
    backend: str | None = None,
    use_jax: bool = False,
    axis_types: AxisTypesLike = None,
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
    spec = build_spec(axis_dims, axis_names)
    types = read_axis_types(axis_types, spec.names)
    dcn = None if dcn_mesh_dims is None else read_sizes(dcn_mesh_dims, "dcn_mesh_dims")
    chosen = read_devices(devices, backend)
    layout = Layout(dcn, should_sort_granules_by_key, allow_split_physical_axes)
    slices = os.environ.get(NUM_SLICES, "").strip()
    return find_mesh(MeshRecipe(spec, types, layout, bool(use_jax), tuple(chosen), slices))


def parse_mesh_from_string(axis_dims: str, names: Sequence[str]) -> Mesh:
    """Returns the mesh of all devices that a text describes.

    Args:
        axis_dims: "dp:2,tp:4" (every name once; the mesh has the order of the text) or "2,4" (in the order of
            `names`); one size may be -1.
        names: the axes.

    Raises:
        TypeError: `axis_dims` is not text.
        ValueError: naming the piece that is wrong; and as `create_mesh`.
    """
    spec = parse_named_sizes(axis_dims, names)
    return create_mesh(spec.sizes, spec.names)


@dataclass(frozen=True)
class MeshRecipe:
    """Everything that a mesh depends on.

    Attributes:
        spec: may have a -1.
        types: one an axis.
        layout: how devices are laid out.
        use_jax: `jax.make_mesh` first.
        devices: `jax.Device`s, which compare by identity.
        slices: their number from the environment; "" where it is not set.
    """

    spec: MeshSpec
    types: tuple[AxisType, ...]
    layout: Layout
    use_jax: bool
    devices: tuple[Any, ...]
    slices: str = ""


def read_devices(devices: Sequence[Any] | None, backend: str | None) -> list[Any]:
    """Returns the devices of a requested mesh.

    Raises:
        RuntimeError: the backend is not available.
        TypeError: the argument does not hold devices.
        ValueError: no device, one twice, several platforms, or another than `backend`.
    """
    if devices is None:
        return list_devices(backend)
    if not isinstance(backend, str | None):
        raise TypeError(f"backend is {backend!r}, a {type(backend).__name__}; it is a word, such as 'cpu', or None")
    chosen = _list_given(devices)
    if not chosen:
        raise ValueError("devices is empty; a mesh needs at least one; leave it out to use all of jax.devices()")
    doubled = len(chosen) - len(set(chosen))
    if doubled:
        twice = next(device for device in chosen if chosen.count(device) > 1)
        raise ValueError(f"devices holds {twice} more than once; a device stands on a mesh once; give each once")
    platforms = sorted({device.platform for device in chosen})
    if len(platforms) > 1:
        raise ValueError(
            f"devices are of {len(platforms)} platforms ({', '.join(platforms)}); a mesh is of one; give those of one, "
            f"such as jax.devices({platforms[0]!r})"
        )
    if backend and parse_platform(backend) != parse_platform(platforms[0]):
        raise ValueError(
            f"backend is {backend!r} and devices are of {platforms[0]}; devices say where the mesh is; leave backend "
            f"out, or leave devices out for all of that backend"
        )
    return chosen


def _list_given(devices: Any) -> list[Any]:
    """Returns the devices of a sequence, or of an array of any shape such as `mesh.devices`."""
    given = devices.flat if isinstance(devices, np.ndarray) else devices
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"devices is {devices!r}; it is a sequence of devices, such as jax.devices()[:4]")
    chosen = list(given)
    wrong = [device for device in chosen if not hasattr(device, "device_kind")]
    if wrong:
        raise TypeError(f"devices holds {wrong[0]!r}, a {type(wrong[0]).__name__}; it holds devices, as jax.devices()")
    return chosen


def build_from_recipe(recipe: MeshRecipe) -> Mesh:
    """Returns a new mesh.

    Raises:
        ValueError: as `create_mesh`.
    """
    spec = resolve_spec(recipe.spec, len(recipe.devices))
    check_count(spec, len(recipe.devices))
    if recipe.use_jax and (made := _make_with_jax(spec, recipe)) is not None:
        return made
    return assemble(spec, recipe.types, order_devices(spec, recipe.devices, recipe.layout, recipe.slices))


def assemble(spec: MeshSpec, types: Sequence[AxisType], devices: Sequence[Any]) -> Mesh:
    """Returns the mesh with these devices, row-major."""
    grid = np.fromiter(devices, dtype=object, count=len(devices))
    return Mesh(grid.reshape(spec.sizes), spec.names, axis_types=tuple(types))


def _make_with_jax(spec: MeshSpec, recipe: MeshRecipe) -> Mesh | None:
    """Returns the mesh of `jax.make_mesh`; None where that is not applicable, or fails."""
    processes = {device.process_index for device in recipe.devices}
    slices = {getattr(device, "slice_index", None) for device in recipe.devices}
    if not recipe.layout.split and recipe.devices[0].platform == "tpu":
        return None  # it would still split dimensions
    if recipe.layout.dcn is not None or recipe.slices not in {"", "1"} or len(processes) > 1 or len(slices) > 1:
        return None
    try:
        return jax.make_mesh(spec.sizes, spec.names, axis_types=recipe.types, devices=recipe.devices)
    except (NotImplementedError, TypeError, ValueError, AssertionError):  # mesh_utils raises these if it has no order
        return None


class _Meshes:
    """The last meshes, by their recipes."""

    MOST: Final = 64

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[MeshRecipe, Mesh] = OrderedDict()

    def find(self, recipe: MeshRecipe) -> Mesh:
        """Returns the cached mesh of an equal recipe, or builds it. Other threads do not wait for the build."""
        with self._lock:
            if recipe in self._known:
                self._known.move_to_end(recipe)
                return self._known[recipe]
        made = build_from_recipe(recipe)
        with self._lock:
            self._forget_gone(recipe)
            return self._known.setdefault(recipe, made)

    def _forget_gone(self, recipe: MeshRecipe) -> None:
        """Removes entries that keep devices of a replaced backend alive, and the oldest entries."""
        for old in [old for old in self._known if _is_replaced(old.devices[0], recipe.devices[0])]:
            del self._known[old]
        while len(self._known) >= self.MOST:
            self._known.popitem(last=False)


def _is_replaced(old: Any, new: Any) -> bool:
    """Whether two devices are of one platform and of different backends, of which only one can be running.

    Descriptions of topologies have a compile-only backend each, and any number of them at a time.
    """
    before, after = getattr(old, "client", None), getattr(new, "client", None)
    is_described = any("CompileOnly" in type(client).__name__ for client in (before, after))
    return bool(old.platform == new.platform and before is not after and not is_described)


_meshes: Final = _Meshes()


def find_mesh(recipe: MeshRecipe) -> Mesh:
    """Returns the mesh that was made for an equal recipe, or makes it.

    Raises:
        ValueError: as `create_mesh`.
    """
    return _meshes.find(recipe)
