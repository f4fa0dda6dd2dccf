"""The mesh of a parallelism block, on 8 virtual CPU devices of one process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from meshwright import parallelism
from meshwright.parallelism import build_device_mesh, data_parallel_coords, dp_world_size, parse_parallelism_conf

TPU_V5E_4X4 = [(p, i) for p, first in enumerate((0, 2, 8, 10)) for i in (first, first + 1, first + 4, first + 5)]
"""(process, id) of jax.devices() on two rows of two 2×2 hosts, of libtpu by `jax.experimental.topologies`."""


def build(data: str, tensor: int, domain: int, world_size: int | None = None) -> tuple[Mesh | None, dict[str, Mesh]]:
    return build_device_mesh({"data": data, "tensor": tensor, "domain": domain}, "cpu", world_size=world_size)


@pytest.mark.parametrize(("data", "tensor", "domain", "world_size", "shape"),[
    ("fsdp2", 1, 1, None, {"dp": 8}), ("ddp", 2, 1, None, {"dp": 4, "tp": 2}),
    ("fsdp2", 2, 2, None, {"dp": 2, "tp": 2, "domain": 2}), ("fsdp2", 1, 4, None, {"dp": 2, "domain": 4}),
    ("fsdp2", 8, 1, None, {"dp": 1, "tp": 8}), ("fsdp2", 2, 4, None, {"dp": 1, "tp": 2, "domain": 4}),
    ("none", 1, 1, None, {"dp": 8}), ("none", 2, 1, None, {"dp": 4, "tp": 2}), ("none", 8, 1, None, {"tp": 8}),
    ("none", 1, 8, None, {"domain": 8}), ("none", 4, 2, None, {"tp": 4, "domain": 2}),
    ("ddp", 3, 1, 6, {"dp": 2, "tp": 3}), ("none", 5, 1, 5, {"tp": 5}), ("ddp", 2, 1, 2, {"dp": 1, "tp": 2}),
])  # fmt: skip
def test_a_mesh_has_the_axes_that_count(data: str, tensor: int, domain: int, world_size: Any, shape: Any) -> None:
    mesh, lines = build(data, tensor, domain, world_size)
    assert mesh is not None
    assert list(mesh.shape.items()) == list(shape.items())
    assert list(mesh.devices.flat) == jax.devices()[:world_size]
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(lines) == list(shape)
    for axis, name in enumerate(shape):
        line = lines[name]
        through_first = np.moveaxis(mesh.devices, axis, 0).reshape(shape[name], -1)[:, 0]
        assert dict(line.shape) == {name: shape[name]}
        assert list(line.devices.flat) == list(through_first)
        assert line.axis_types == (AxisType.Auto,)


@pytest.mark.parametrize("data", ["fsdp2", "ddp", "none"])
def test_one_rank_needs_no_mesh(data: str) -> None:
    assert build(data, 1, 1, 1) == (None, {})


@pytest.mark.parametrize("world_size", range(1, 9))
def test_the_sampler_and_the_mesh_mean_the_same_ranks(world_size: int) -> None:
    for tensor in range(1, world_size + 1):
        for domain in range(1, world_size + 1):
            if world_size % (tensor * domain):
                continue
            conf = {"trainer": {"parallelism": {"data": "ddp", "tensor": tensor, "domain": domain}}}
            block = parse_parallelism_conf(conf)
            mesh, _ = build_device_mesh(block, "cpu", world_size=world_size)
            parts = [data_parallel_coords(conf, rank=rank, world_size=world_size) for rank in range(world_size)]
            assert [size for _, size in parts] == [dp_world_size(block, world_size)] * world_size
            assert [part for part, _ in parts] == find_coordinates(mesh, world_size)


def find_coordinates(mesh: Mesh | None, world_size: int) -> list[int]:
    """Returns each device's place along dp, the outermost axis."""
    if mesh is None:
        return [0] * world_size
    return [int(np.argwhere(mesh.devices == device)[0][0]) for device in jax.devices()[:world_size]]


@pytest.mark.parametrize("device", ["cuda", "gpu", "tpu", "cuda:0"])
def test_a_backend_that_is_not_here_is_an_error_that_names_those_that_are(device: str) -> None:
    with pytest.raises(RuntimeError, match=rf"{device}.*cpu \(8 devices\)"):
        build_device_mesh({"data": "fsdp2"}, device)


def test_the_backend_is_cuda_unless_another_is_named() -> None:
    with pytest.raises(RuntimeError, match="'cuda'"):
        build_device_mesh({"data": "fsdp2"})


@pytest.mark.parametrize(("block", "world_size", "error", "words"), [
    ({"tensor": 3}, None, ValueError, "world_size 8 is not divisible"),
    ({"tensor": 2, "domain": 2}, 6, ValueError, "world_size 6 is not divisible"),
    ({}, 9, ValueError, "world_size is 9; cpu has 8 devices"), ({}, 0, ValueError, "world_size is 0"),
    ({"tensor": -1}, None, ValueError, "trainer.parallelism.tensor is -1"),
    ({"data": "dpp"}, None, ValueError, "did you mean 'ddp'"),
    ({"tp": 2}, None, ValueError, "trainer.parallelism has the unknown key 'tp'"),
    ({"trainer": {}}, None, ValueError, "parse_parallelism_conf(conf)"),
])  # fmt: skip
def test_what_no_mesh_is_made_of_is_refused(block: Any, world_size: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        build_device_mesh(block, "cpu", world_size=world_size)
    assert words in str(caught.value)


@dataclass(frozen=True)
class TpuDevice:
    process_index: int
    id: int


def test_ranks_go_by_process_where_ids_do_not() -> None:
    listed = [TpuDevice(*names) for names in TPU_V5E_4X4]
    assert sorted(device.id for device in listed) == list(range(16))  # the fake: each chip once
    for seed in range(3):
        turned = random.Random(seed).sample(listed, 16)
        assert parallelism._sort_ranks(turned) == listed
