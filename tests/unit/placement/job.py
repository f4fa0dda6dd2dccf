"""One process of a job that places arrays over processes. Run as `python job.py RANK COUNT PORT STEPS`; no steps.

Its last line is a JSON object: what each function of TASKS returned, or what it raised.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright import _agreement, _batch_comparison
from meshwright.mesh import create_mesh, mesh_fingerprint
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


def split_what_does_not_divide() -> Any:
    return read_parts(distribute_batch({"x": ROWS[:6]}, make_sharding("data")))


def replicate() -> Any:
    data = {"x": ROWS, "key": jax.random.key(5), "small": np.ones(2, jnp.bfloat16), "local": jnp.arange(3)}
    placed = DevicePlacement().replicate_across_devices(data)
    assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(placed))
    return [read_parts(placed["x"]), read_parts(placed["local"]), len(placed["key"].sharding.device_set)]


def replicate_what_differs() -> Any:
    return read_parts(DevicePlacement().replicate_across_devices({"x": ROWS + jax.process_index()}))


def replicate_alone() -> Any:
    """Only this process has devices in it, so the others need not call it, and may hold something else."""
    if jax.process_index() == 0:
        return []
    return read_parts(DevicePlacement().replicate_across_devices(ROWS[1:3], jax.local_devices()))


# ---- what the processes compare ----


def make_rows(count: int, step: int = 0) -> np.ndarray[Any, Any]:
    """Rows of this process, of a shape that no other task has."""
    return np.arange(count * 5, dtype=np.float32).reshape(count, 5) + 1000 * jax.process_index() + step


@contextmanager
def set_limits(**limits: float) -> Iterator[None]:
    before = {name: getattr(_batch_comparison, name) for name in limits}
    for name, value in limits.items():
        setattr(_batch_comparison, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(_batch_comparison, name, value)


def pass_own_rows_twice() -> Any:
    """What was refused is refused again, and then goes as what it is."""
    said = [run(lambda: DevicePlacement().shard_batch_dim(make_rows(8), make_sharding().mesh)) for _ in range(2)]
    placed = DevicePlacement().shard_batch_dim(make_rows(8), make_sharding().mesh, process_local=True)
    return [said, list(placed.shape), read_parts(placed)]


def pass_other_shapes() -> Any:
    """Refused in both, and nothing is left of it afterwards."""
    said = run(lambda: distribute_batch(make_rows(4 + 4 * jax.process_index()), make_sharding("data")))
    distribute_batch(np.ones((8, 5), np.float32), make_sharding("data"))
    return said


def pass_a_number_and_an_array() -> Any:
    return run(lambda: distribute_batch(0.5 if jax.process_index() else np.float32(0.5), make_sharding()))


def prefetch_other_shapes() -> Any:
    rows = make_rows(2 + 2 * jax.process_index())
    return [read_parts(batch) for batch in prefetch_to_device([rows], make_sharding("data"), process_local=True)]


def name_process_local_in_one_only() -> Any:
    local = jax.process_index() == 0
    return read_parts(distribute_batch(ROWS.reshape(8, 1), make_sharding("data"), process_local=local))


def split_own_rows() -> Any:
    """Every kind of leaf as a part of the process, with what is whole beside it."""
    rank = jax.process_index()
    data = {
        "x": make_rows(4).astype(np.float64), "local": jax.device_put(make_rows(4), jax.local_devices()[1]),
        "keys": jax.random.split(jax.random.key(rank), 2), "empty": np.ones((0, 3), np.float32), "step": 7,
        "none": None,
    }  # fmt: skip
    placed = DevicePlacement().shard_batch_dim(data, make_sharding().mesh, process_local=True)
    own = jax.random.key_data(data["keys"])
    return {
        "shapes": {name: list(leaf.shape) for name, leaf in placed.items() if leaf is not None},
        "dtypes": {name: str(leaf.dtype) for name, leaf in placed.items() if leaf is not None},
        "x": read_parts(placed["x"]), "local": read_parts(placed["local"]), "step": read_parts(placed["step"]),
        "keys": [part == own[at].tolist() for at, (part,) in enumerate(read_parts(placed["keys"]))],
        "total": float(jax.jit(jnp.sum)(placed["x"])),
    }  # fmt: skip


def split_own_rows_that_do_not_divide() -> Any:
    return read_parts(distribute_batch({"x": make_rows(3)}, make_sharding("data"), process_local=True))


def pass_other_steps_beside_own_rows() -> Any:
    data = {"x": make_rows(4), "step": jax.process_index()}
    return read_parts(DevicePlacement().shard_batch_dim(data, make_sharding().mesh, process_local=True)["x"])


def pass_other_rows_where_both_cover_the_same() -> Any:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "tp"), axis_types=(AxisType.Auto,) * 2)
    return read_parts(distribute_batch({"x": make_rows(6)}, NamedSharding(mesh, P("data")), process_local=True))


def place_in_this_process_only() -> Any:
    """Nobody else is asked, whatever others do."""
    if jax.process_index() == 0:
        return []
    mesh = Mesh(np.array(jax.local_devices()), ("data",), axis_types=(AxisType.Auto,))
    there = NamedSharding(mesh, P("data"))
    placed = [distribute_batch(ROWS[:2], there, process_local=local) for local in (False, True)]
    batches = [*placed, *prefetch_to_device([ROWS[:2]], there)]
    return [read_parts(batch) for batch in batches]


def place_where_this_process_has_no_device() -> Any:
    there = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",), axis_types=(AxisType.Auto,)), P("data"))
    whole = read_parts(distribute_batch(ROWS[:4] + jax.process_index(), there))
    return [whole, run(lambda: read_parts(distribute_batch(ROWS[:4], there, process_local=True)))]


def count_exchanges() -> Any:
    """The first batch of a kind is compared; of later ones it is the caller's word."""
    there, before, rounds = make_sharding("data"), count_rounds(), []
    for step in range(3):
        distribute_batch(make_rows(12, step), there, process_local=True)
        rounds.append(count_rounds() - before)
    return rounds


def count_rounds() -> int:
    return sum(talk.round for talk in _agreement._agreements.values())


def pass_again_what_the_other_missed() -> Any:
    """A process that came alone has given up; later both come, and nothing of the first time is in the way."""
    with set_limits(COMPARE_TIMEOUT_S=1.0):
        alone = run(lambda: distribute_batch(ROWS[:4], make_sharding("data"))) if jax.process_index() == 0 else ""
    time.sleep(2 * jax.process_index())
    return [alone, read_parts(distribute_batch(ROWS[:4], make_sharding("data")))]


def prefetch_twice_at_once() -> Any:
    """Two prefetchers of the same kind, whose sources are slow in other processes."""

    def read(stream: int) -> Iterator[Any]:
        for step in range(3):
            time.sleep(0.3 if stream == jax.process_index() else 0)
            yield np.full((4 + 4 * step, 7), 10.0 * stream + step, np.float32)

    there = make_sharding("data")
    with ThreadPoolExecutor(2) as pool:
        streams = [prefetch_to_device(read(stream), there) for stream in range(2)]
        return list(pool.map(lambda stream: [read_parts(batch)[0][0][0] for batch in stream], streams))


def pass_in_other_orders_from_threads() -> Any:
    """Other kinds from two threads, which begin in another order in each process, beside a fingerprint."""
    there, order = make_sharding("data"), [0, 1] if jax.process_index() else [1, 0]
    batches = [np.full((4, width), width, np.float32) for width in (8, 9)]
    started = threading.Event()

    def place(at: int) -> Any:
        if at:
            started.wait(10)
        else:
            threading.Timer(0.5, started.set).start()
        return read_parts(distribute_batch(batches[order[at]], there))[0][0][0]

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(place, at) for at in range(2)]
        name = mesh_fingerprint(create_mesh((4,), ("x",)))
        found = dict(zip(order, [future.result() for future in waiting], strict=True))
    return [name[:4], found[0], found[1]]


def close_while_it_waits() -> Any:
    """Closing a prefetcher whose thread waits for a process that never comes is no wait."""
    batches = prefetch_to_device([np.ones((4, 11))], make_sharding("data"))
    if jax.process_index():
        return "never asked"
    taker = threading.Thread(target=lambda: next(batches, None))
    taker.start()
    time.sleep(0.5)
    batches.close()
    taker.join(10)
    return "ended" if not taker.is_alive() else "still waits"


TASKS: list[Callable[[], Any]] = [
    tell_devices, place_by_default, place_on_another_processs_device, split, split_doubles, split_what_does_not_divide,
    replicate, replicate_what_differs, replicate_alone, pass_own_rows_twice, pass_other_shapes, prefetch_other_shapes,
    pass_a_number_and_an_array,
    name_process_local_in_one_only, split_own_rows, split_own_rows_that_do_not_divide,
    pass_other_steps_beside_own_rows, pass_other_rows_where_both_cover_the_same, place_in_this_process_only,
    place_where_this_process_has_no_device, count_exchanges, pass_again_what_the_other_missed, prefetch_twice_at_once,
    pass_in_other_orders_from_threads, close_while_it_waits,
]  # fmt: skip


def run(task: Callable[[], Any]) -> Any:
    try:
        return task()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    faulthandler.dump_traceback_later(120, repeat=True)  # a job that hangs says where
    warnings.simplefilter("error")
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", int(sys.argv[2]), int(sys.argv[1]))
    print(json.dumps({task.__name__: run(task) for task in TASKS}), flush=True)
    jax.distributed.shutdown()
    os._exit(0)  # gloo may hang where JAX is taken down: tests/process/one_rank.py
