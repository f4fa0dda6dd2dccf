"""Meshes on targets, with the CPU devices of this process. Real compilers: test_compile_targets.py."""

from __future__ import annotations

import os

import pytest
from jax.sharding import AxisType

from meshwright.compiling.devices import build_mesh, open_target
from meshwright.compiling.report import read_capacity
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileMesh, CompileTarget

TWO_HOSTS = CompileTarget(platform="cpu", chip="cpu", shape=(4,), granules=2, name="2*cpu:4")


def write_mesh(places: tuple[tuple[int, int], ...], **shape: int) -> CompileMesh:
    return CompileMesh(shape=shape, axis_types={}, places=places)


def test_a_mesh_has_each_place_where_it_stands_row_major() -> None:
    mesh = CompileMesh(
        shape={"dp": 2, "tp": 2}, axis_types={"dp": "explicit", "tp": "manual"}, places=((1, 0), (0, 3), (0, 0), (1, 2))
    )
    made = build_mesh(open_target(TWO_HOSTS), mesh)
    assert [device.id for device in made.devices.flat] == [4, 3, 0, 6]
    assert made.axis_names == ("dp", "tp")
    assert made.axis_types == (AxisType.Explicit, AxisType.Manual)


def test_an_axis_whose_type_is_not_said_is_auto() -> None:
    made = build_mesh(open_target(TWO_HOSTS), write_mesh(((0, 0), (0, 1)), a=2))
    assert made.axis_types == (AxisType.Auto,)


def test_more_cpu_devices_than_have_started_are_not_compiled() -> None:
    with pytest.raises(NotCompiledError, match="needs 16 CPU devices; JAX has started with 8"):
        open_target(TWO_HOSTS.model_copy(update={"granules": 4}))


def test_cpu_devices_share_the_memory_of_the_machine_that_compiles() -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert read_capacity(open_target(TWO_HOSTS)) == whole // 4
