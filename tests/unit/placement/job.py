"""One process of a job that places arrays over processes. Run as `python job.py RANK COUNT PORT STEPS`; no steps.

Its last line is a JSON object: what each function of TASKS returned, or what it raised.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.placement import DevicePlacement, distribute_batch, place_on_device, prefetch_to_device

ROWS = np.array([np.nan, 1, 2, 3, 4, 5, 6, 7], np.float32)


def make_sharding(*spec: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,)), P(*spec))


def read_parts(array: jax.Array) -> list[Any]:
    """This process's parts, as JSON: NaN as null."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    parts = [np.asarray(shard.data, np.float64) for shard in array.addressable_shards]
    return [json.loads(json.dumps(part.tolist()).replace("NaN", "null")) for part in parts]


def tell_devices() -> Any:
    placement = DevicePlacement()
    return [placement.default_device.process_index, placement.num_devices, placement.get_device_info()]


def place_by_default() -> Any:
    return read_parts(place_on_device(ROWS))


def place_on_another_processs_device() -> Any:
    other = next(device for device in jax.devices() if device.process_index != jax.process_index())
    return read_parts(place_on_device(ROWS, other))


def split() -> Any:
    return read_parts(distribute_batch(ROWS, make_sharding("data")))


def split_doubles() -> Any:
    placed = distribute_batch(
        {"x": ROWS.astype(np.float64), "n": 3}, {"x": make_sharding("data"), "n": make_sharding()}
    )
    return [str(placed["x"].dtype), read_parts(placed["x"]), str(placed["n"].dtype), read_parts(placed["n"])]


def split_a_local_array() -> Any:
    return read_parts(distribute_batch(jax.device_put(ROWS, jax.local_devices()[1]), make_sharding("data")))


def split_keys() -> Any:
    keys = jax.random.split(jax.random.key(0), 4)
    placed = distribute_batch(keys, make_sharding("data"))
    rank, own = jax.process_index(), np.asarray(jax.random.key_data(keys), np.float64)
    return read_parts(placed) == [[own[2 * rank + part].tolist()] for part in range(2)]


def split_what_does_not_divide() -> Any:
    return read_parts(distribute_batch({"x": ROWS[:6]}, make_sharding("data")))


def split_under_a_transfer_guard() -> Any:
    with jax.transfer_guard("disallow"):
        placed = distribute_batch(ROWS, make_sharding("data"))
    return read_parts(placed)


def split_a_batch() -> Any:
    batch = {"x": ROWS.reshape(2, 4), "step": 7}
    placed = DevicePlacement().shard_batch_dim(batch, make_sharding().mesh, batch_axis=-1)
    return [read_parts(placed["x"]), read_parts(placed["step"]), float(jax.jit(jnp.nansum)(placed["x"]))]


def replicate() -> Any:
    data = {"x": ROWS, "key": jax.random.key(5), "small": np.ones(2, jnp.bfloat16), "local": jnp.arange(3)}
    placed = DevicePlacement().replicate_across_devices(data)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(placed))
    return [read_parts(placed["x"]), read_parts(placed["local"]), len(placed["key"].sharding.device_set)]


def replicate_again_what_is_global() -> Any:
    return read_parts(DevicePlacement().replicate_across_devices(distribute_batch(ROWS, make_sharding("data"))))


def replicate_what_differs() -> Any:
    return read_parts(DevicePlacement().replicate_across_devices({"x": ROWS + jax.process_index()}))


def replicate_what_has_other_names() -> Any:
    return read_parts(DevicePlacement().replicate_across_devices({f"x{jax.process_index()}": ROWS}))


def replicate_alone() -> Any:
    """Only this process has devices in it, so the others need not call it, and may hold something else."""
    if jax.process_index() == 0:
        return []
    return read_parts(DevicePlacement().replicate_across_devices(ROWS[1:3], jax.local_devices()))


def prefetch() -> Any:
    batches = ({"x": ROWS + number} for number in range(3))
    total = jax.jit(jnp.nansum)
    return [float(total(batch["x"])) for batch in prefetch_to_device(batches, make_sharding("data"))]


TASKS: list[Callable[[], Any]] = [
    tell_devices, place_by_default, place_on_another_processs_device, split, split_doubles, split_a_local_array,
    split_keys, split_what_does_not_divide, split_under_a_transfer_guard, split_a_batch, replicate,
    replicate_again_what_is_global, replicate_what_differs, replicate_what_has_other_names, replicate_alone, prefetch,
]  # fmt: skip


def run(task: Callable[[], Any]) -> Any:
    try:
        return task()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    warnings.simplefilter("error")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", int(sys.argv[2]), int(sys.argv[1]))
    print(json.dumps({task.__name__: run(task) for task in TASKS}), flush=True)
    jax.distributed.shutdown()
    os._exit(0)  # gloo may hang where JAX is taken down: tests/process/one_rank.py
