"""`DeviceMeshManager`: meshes of the first devices of a fixed list.

Rule: fewer devices than there are is a wish, more is an error. The order on the mesh is `create_mesh`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from meshwright._jax_devices import Device
from meshwright._mesh.create import create_mesh, read_devices
from meshwright._mesh.shapes import MeshShape, check_spec, read_count, read_size, resolve_spec, suggest
from meshwright.spec import MeshSpec


class DeviceMeshManager:
    """Makes meshes of some devices.

    Args:
        devices: None means `jax.devices()`.

    Raises:
        ValueError: no device, one twice, or several platforms.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        self._devices = read_devices(devices, None)

    @property
    def num_devices(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    @property
    def devices(self) -> list[Device]:
        """The devices, in device order."""
        return list(self._devices)

    def create_device_mesh(self, mesh_shape: MeshShape, devices: Sequence[Any] | None = None) -> Mesh:
        """Returns a mesh of the first devices, one for each place of the shape.

        Args:
            mesh_shape: {"data": 2, "model": 1} or [("data", 2), ("model", 1)], outermost first; one size may be -1,
                the rest of the devices.
            devices: to use instead of the manager's.

        Raises:
            ValueError: "Not enough devices", repeated names, sizes below 1, an empty shape, or a rest that the other
                sizes do not divide.
        """
        there = self._devices if devices is None else read_devices(devices, None)
        spec = _read_shape(mesh_shape)
        if spec.device_count > len(there):
            raise ValueError(
                f"Not enough devices: mesh {spec} needs {'at least ' if -1 in spec.sizes else ''}{spec.device_count}, "
                f"there are {len(there)}; the product of the sizes cannot be more; {suggest(spec, len(there))}"
            )
        spec = resolve_spec(spec, len(there))
        return create_mesh(spec.sizes, spec.names, devices=there[: spec.device_count])

    def create_data_parallel_mesh(self, num_devices: int | None = None, axis_name: str = "data") -> Mesh:
        """Returns a mesh of one axis over the first `num_devices` devices; None means all.

        Raises:
            TypeError: `num_devices` is not an integer.
            ValueError: `num_devices` is below 1, or "Not enough devices".
        """
        count = self.num_devices if num_devices is None else read_count(num_devices, "num_devices")
        return self.create_device_mesh({axis_name: count})

    def create_model_parallel_mesh(self, num_devices: int | None = None, axis_name: str = "model") -> Mesh:
        """Returns a mesh of one axis over the first `num_devices` devices; None means all.

        Raises:
            TypeError: `num_devices` is not an integer.
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

        Raises:
            ValueError: as `create_device_mesh`.
        """
        return self.create_device_mesh([(data_axis, data_parallel_size), (model_axis, model_parallel_size)])

    @staticmethod
    def get_mesh_info(mesh: Mesh) -> dict[str, Any]:
        """Returns {"total_devices": how many, "axes": {name: size}}."""
        return {"total_devices": int(mesh.devices.size), "axes": {str(k): int(v) for k, v in mesh.shape.items()}}


def _read_shape(mesh_shape: MeshShape) -> MeshSpec:
    """Returns the shape with sizes of Python's own int.

    Raises:
        TypeError: it is neither a mapping nor a sequence of pairs, or a size is not an integer.
        ValueError: as `MeshSpec`.
    """
    if isinstance(mesh_shape, str) or not isinstance(mesh_shape, Mapping | Sequence):
        raise TypeError(f'mesh_shape is {mesh_shape!r}; it is a dict or a list of pairs, such as {{"data": 2}}')
    pairs = list(mesh_shape.items() if isinstance(mesh_shape, Mapping) else mesh_shape)
    wrong = [pair for pair in pairs if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2]
    if wrong:
        raise TypeError(f'mesh_shape holds {wrong[0]!r}, which is no pair; a pair is a name and a size, ("data", 2)')
    return check_spec(((name, read_size(size, "mesh_shape")) for name, size in pairs), 'use {"data": 2, "model": -1}')
