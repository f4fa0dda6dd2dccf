"""Planning explicit meshes on large targets, beside `mesh_utils.create_device_mesh`; `python -m tests.bench.planner`.

Ours and JAX's take turns, the ratio is of medians. "New" is a plan with nothing of its kind remembered, "again" the
same one once more; the target is there already, as in an agent.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from meshwright.planning.mesh_plan import plan_mesh
from meshwright.spec import MeshSpec
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target
from meshwright.wire.mesh import PlanRequest
from tests.bench.rows import Row, run_rows, tell_rows, time_in_turns
from tests.fakes.jax_devices import build_stand_ins

LARGE = "v5p:16x20x28"
MESHES = ("dp:560,tp:16", "dp:70,fsdp:8,tp:16", "dp:28,fsdp:20,tp:16")
HOSTS, HOSTS_MESH = "1024*h100:8", "dp:128,fsdp:8,tp:8"


ROUND_COUNT = 15
SLOW_ROUND_COUNT = 3


def bench_planner() -> list[Row]:
    """Returns the rows, measured in a process of their own."""
    return run_rows("tests.bench.planner", {"JAX_PLATFORMS": "cpu"})


def measure_rows() -> list[Row]:
    """Returns the rows, measured in this process."""
    topology = build_target(LARGE)
    return [
        ("planning: measured on", f"load {os.getloadavg()[0]:.1f}", f"{os.cpu_count()} cores; target {LARGE}"),
        *(compare_plans(mesh, topology) for mesh in MESHES),
        measure_hosts(),
    ]


def compare_plans(mesh: str, topology: Topology) -> Row:
    """Returns what a plan takes, as a part of what `create_device_mesh` with splitting does."""
    from jax.experimental import mesh_utils

    request, sizes, devices = PlanRequest(mesh=mesh), MeshSpec.parse(mesh).sizes, build_stand_ins(topology)

    def ask_jax() -> str | None:
        try:
            mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        except Exception as error:  # jax 0.10 cannot split a dimension of 28
            return type(error).__name__
        return None

    plan = partial(plan_mesh, request, topology)
    new_s, again_s, theirs_s = time_in_turns((forget, plan), (None, plan), (None, ask_jax), rounds=ROUND_COUNT)
    failure = ask_jax()
    told = f"JAX's raises {failure} after" if failure else "JAX's"
    note = (
        f"new {new_s * 1e3:.1f} ms, again {again_s * 1e3:.1f} ms, {told} {theirs_s * 1e3:.1f} ms; "
        f"{len(devices):,} chips; budget 2 × or 50 ms"
    )
    return (f"plan {mesh}", f"{new_s * 1e3:.1f} ms" if failure else f"{new_s / theirs_s:.2f} × jax", note)


def forget() -> None:
    """Empties what the planner and the topologies remember between calls."""
    for name in [name for name in sys.modules if name.startswith(("meshwright.planning", "meshwright.topology"))]:
        for value in vars(sys.modules[name]).values():
            clear = getattr(value, "cache_clear", None)
            if clear is not None:
                clear()


def measure_hosts() -> Row:
    """Returns what a plan over many hosts takes."""
    topology, request = build_target(HOSTS), PlanRequest(mesh=HOSTS_MESH)
    [taken_s] = time_in_turns((forget, lambda: plan_mesh(request, topology)), rounds=SLOW_ROUND_COUNT)
    return (f"plan {HOSTS_MESH}", f"{taken_s * 1e3:.0f} ms", f"new, {HOSTS}, {len(topology.devices):,} devices")


if __name__ == "__main__":
    tell_rows(measure_rows, bench_planner)
