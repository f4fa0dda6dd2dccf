from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from meshwright.devices import JAXDeviceManager
from tests.fakes.gpu_devices import FakeClient, FakeDevice, build_host
from tests.unit.placement.buffers import make_aligned

GPU_HOST = build_host(gpu=2, cpu=1)
TPU_HOST = build_host(cpu=1, tpu=4)


@pytest.mark.parametrize(("priority", "devices", "expected"), [
    (None, GPU_HOST, "gpu:0"), (None, build_host(cpu=1, gpu=2), "gpu:0"), (None, TPU_HOST, "tpu:0"),
    (None, build_host(cpu=2), "cpu:0"), ([], GPU_HOST, "gpu:0"), (["cpu", "gpu"], GPU_HOST, "cpu:0"),
    (["tpu", "cpu"], GPU_HOST, "cpu:0"), (["tpu"], GPU_HOST, "gpu:0"), (["CUDA"], build_host(cpu=1, gpu=1), "gpu:0"),
    (["no such thing"], TPU_HOST, "tpu:0"), (None, [FakeDevice(0, "METAL")], "METAL:0"),
    (["metal"], [FakeDevice(0, "metal"), *GPU_HOST], "metal:0"),
])  # fmt: skip
def test_the_default_is_of_the_preferred_platform(priority: Any, devices: list[Any], expected: str) -> None:
    assert str(JAXDeviceManager(priority, devices).get_default_device()) == expected


def test_without_devices_there_is_no_default() -> None:
    with pytest.raises(RuntimeError, match="No JAX devices are visible"):
        JAXDeviceManager(devices=[]).get_default_device()


def test_the_default_device_is_one_of_this_process() -> None:
    own = FakeClient(1)
    devices: list[Any] = [FakeDevice(rank, process_index=rank, client=own) for rank in range(2)]
    assert JAXDeviceManager(devices=devices).get_default_device() is devices[1]
    with pytest.raises(RuntimeError, match="No JAX devices are visible"):
        JAXDeviceManager(devices=devices[:1]).get_default_device()


def test_writing_to_the_source_later_does_not_change_the_shards() -> None:
    data = make_aligned(1024)
    (shard,) = JAXDeviceManager().distribute_data(data, jax.devices()[:1])
    shard.block_until_ready()
    data[:] = 7
    assert not np.asarray(shard).any()


@pytest.mark.parametrize(
    ("rows", "count", "sizes"), [(7, 3, [3, 2, 2]), (2, 4, [1, 1, 0, 0]), (0, 2, [0, 0]), (8, 8, [1] * 8)]
)
def test_the_first_shards_are_the_larger_ones(rows: int, count: int, sizes: list[int]) -> None:
    shards = JAXDeviceManager().distribute_data(np.zeros((rows, 2)), jax.devices()[:count])
    assert [len(shard) for shard in shards] == sizes


def test_random_keys_empty_places_and_types_that_numpy_lacks_are_dealt_out_too() -> None:
    data = {"key": jax.random.split(jax.random.key(0), 5), "ones": jnp.ones((5, 2), jnp.bfloat16), "none": None}
    first, _ = JAXDeviceManager().distribute_data(data, jax.devices()[:2])
    assert (first["key"].shape, first["key"].dtype) == ((3,), data["key"].dtype)
    assert (first["ones"].shape, first["ones"].dtype) == ((3, 2), jnp.bfloat16)
    assert first["none"] is None


def test_an_array_over_explicit_axes_is_dealt_out_under_any_mesh() -> None:
    mesh = Mesh(np.array(jax.devices()), ("x",), axis_types=(AxisType.Explicit,))
    data = jax.device_put(np.arange(16), NamedSharding(mesh, PartitionSpec("x")))
    with jax.set_mesh(mesh):
        shards = JAXDeviceManager().distribute_data(data, jax.devices()[:3])
    assert [shard.tolist() for shard in shards] == [list(range(6)), list(range(6, 11)), list(range(11, 16))]


@pytest.mark.parametrize(("data", "words"), [
    ({"x": np.zeros((4, 2)), "y": [np.zeros(3)]}, r"leaf \['x'\] has 4, leaf \['y'\]\[0\] has 3"),
    ({"x": np.zeros(4), "step": 3}, r"leaf \['step'\] has none.*replicate"), (np.float32(1), r"leaf \(data\) has none"),
    ({}, r"no leaf.*numpy\.zeros"),
])  # fmt: skip
def test_data_that_cannot_be_split_is_refused_by_the_leafs_path(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JAXDeviceManager().distribute_data(data)


@pytest.mark.parametrize(("indices", "words"), [((), "target_devices is empty"), ((0, 0), "more than once")])
def test_targets_that_cannot_each_have_a_shard_are_refused(indices: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JAXDeviceManager().distribute_data(np.zeros(4), [jax.devices()[index] for index in indices])
