"""`create_mesh` beside `jax.make_mesh`; `python -m tests.bench.mesh`.

Both make the same mesh in turn; the ratio is of medians. The slices are XLA's descriptions (extra compile-tpu); without
it those rows are left out and said so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from tests.bench.rows import Row, run_rows, tell_rows, time_in_turns
from tests.process.slice_environment import SLICE_ENVIRONMENT

ROUND_COUNT = 31
SLICES: list[tuple[str, tuple[int, ...]]] = [("v5e:16x16", (16, 16)), ("v5p:16x16x24", (24, 16, 16))]


def bench_create_mesh() -> list[Row]:
    """Returns the rows of all machines, measured in a process of their own."""
    return run_rows("tests.bench.mesh", {**SLICE_ENVIRONMENT, "JAX_NUM_CPU_DEVICES": "8"})


def measure_rows() -> list[Row]:
    """Returns the rows, measured in this process: one a machine and way."""
    rows = []
    for machine, devices, sizes in list_machines():
        ours, theirs = compare(devices, sizes)
        note = f"{theirs * 1e6:,.0f} µs for jax.make_mesh; {'×'.join(map(str, sizes))} on {machine}"
        rows.append(("create_mesh", f"{ours / theirs:.2f} × jax", f"{ours * 1e6:,.0f} µs beside {note}"))
    if find_spec("libtpu") is None:
        rows.append(("create_mesh on slices", "not measured", "no libtpu: install the extra compile-tpu"))
    return rows


def list_machines() -> Iterator[tuple[str, Sequence[Any], tuple[int, ...]]]:
    """Yields 8 CPU devices, and slices where the compiler that describes them is installed."""
    import jax
    from jax.experimental import topologies

    yield "8 CPU devices", jax.devices(), (2, 4)
    for target, sizes in SLICES if find_spec("libtpu") else ():
        yield target, topologies.get_topology_desc(platform="tpu", topology_name=target).devices, sizes


def compare(devices: Sequence[Any], sizes: tuple[int, ...]) -> tuple[float, float]:
    """Returns median seconds of `create_mesh` and of `jax.make_mesh`, which take turns."""
    import jax
    from jax.sharding import AxisType

    from meshwright.mesh import create_mesh

    types, turns = (AxisType.Auto,) * len(sizes), itertools.count()

    def names() -> tuple[str, ...]:
        """Returns names that no mesh had before: JAX remembers its meshes."""
        turn = next(turns)
        return tuple(f"axis{axis}_{turn}" for axis in range(len(sizes)))

    ours, theirs = time_in_turns(
        (None, lambda: create_mesh(sizes, names(), devices=devices)),
        (None, lambda: jax.make_mesh(sizes, names(), axis_types=types, devices=devices)),
        rounds=ROUND_COUNT,
    )
    return ours, theirs


if __name__ == "__main__":
    tell_rows(measure_rows, bench_create_mesh)
