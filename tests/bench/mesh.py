"""`create_mesh`, remembered and not, beside `jax.make_mesh`: `python -m tests.bench.mesh`, a process of its own.

Both make the same mesh in turn; the ratio is of medians. A mesh that was not made before has names of its own. The
slices are XLA's descriptions (extra compile-tpu); without it those rows are left out and said so.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

os.environ |= {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "8",
}

import jax
from jax.experimental import topologies
from jax.sharding import AxisType

from meshwright.mesh import create_mesh

ROUNDS = 31
SLICES: list[tuple[str, tuple[int, ...]]] = [("v5e:16x16", (16, 16)), ("v5p:16x16x24", (24, 16, 16))]


def main() -> None:
    """Prints one line a machine and way."""
    for machine, devices, sizes in list_machines():
        ours, remembered, theirs = compare(devices, sizes)
        for name, seconds in (("create_mesh, new", ours), ("create_mesh, remembered", remembered)):
            note = f"{theirs * 1e6:,.0f} µs for jax.make_mesh; {'×'.join(map(str, sizes))} on {machine}"
            print(f"{name:<44} {f'{seconds / theirs:.3f} × jax':>18}   {seconds * 1e6:,.0f} µs beside {note}")


def list_machines() -> Iterator[tuple[str, Sequence[Any], tuple[int, ...]]]:
    """Yields 8 CPU devices, and slices where the compiler that describes them is installed."""
    yield "8 CPU devices", jax.devices(), (2, 4)
    if find_spec("libtpu") is None:
        print("no libtpu here: `make test` installs the extra compile-tpu")
        return
    for target, sizes in SLICES:
        yield target, topologies.get_topology_desc(platform="tpu", topology_name=target).devices, sizes


def compare(devices: Sequence[Any], sizes: tuple[int, ...]) -> tuple[float, float, float]:
    """Returns median seconds of a new mesh, of a remembered one, and of `jax.make_mesh`, which take turns."""
    taken: dict[str, list[float]] = {"ours": [], "remembered": [], "jax": []}
    for turn in range(ROUNDS):
        names = tuple(f"axis{axis}_{turn}" for axis in range(len(sizes)))
        types = (AxisType.Auto,) * len(sizes)

        def make(names: tuple[str, ...] = names) -> object:
            return create_mesh(sizes, names, devices=devices)

        def make_with_jax(names: tuple[str, ...] = names, types: tuple[AxisType, ...] = types) -> object:
            return jax.make_mesh(sizes, names, axis_types=types, devices=devices)

        taken["ours"].append(time_s(make))
        taken["remembered"].append(time_s(make))
        taken["jax"].append(time_s(make_with_jax))
    ours, remembered, theirs = (statistics.median(seconds) for seconds in taken.values())
    return ours, remembered, theirs


def time_s(work: Callable[[], object]) -> float:
    """Returns how long one call takes."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
