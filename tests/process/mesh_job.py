"""One process of a job that builds meshes: steps come in as JSON, what became of each goes out as JSON.

Run as `python mesh_job.py RANK COUNT PORT STEPS`. A step: {"do": "build" | "code" | "fingerprint", "only":
ranks, "unplanned": ranks that make the mesh without the plan, "plan": text or {rank: text}, "devices": indices into
jax.devices() | null, "timeout_s": s}.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from one_rank import answer_and_leave, join

from meshwright.errors import PlanMismatchError
from meshwright.mesh import build_mesh, mesh_fingerprint


def run_step(step: dict[str, Any], rank: int) -> dict[str, Any]:
    chosen = step.get("devices")
    devices = None if chosen is None else [jax.devices()[index] for index in chosen]
    started = time.monotonic()
    try:
        if rank not in step.get("only", range(jax.process_count())):
            return {"skipped": True}
        mesh = make(step, rank, devices)
        answer = {"fingerprint": mesh_fingerprint(mesh, timeout_s=step.get("timeout_s", 60.0))}
    except PlanMismatchError as error:
        took = time.monotonic() - started
        return {"error": str(error), "missing": error.missing, "surplus": error.surplus, "duration_s": took}
    answer["order"] = [[d.process_index, d.id] for d in mesh.devices.flat]
    answer["types"] = [kind.name for kind in mesh.axis_types]
    answer["again"] = mesh_fingerprint(Mesh(mesh.devices, mesh.axis_names, axis_types=mesh.axis_types))
    return answer


def make(step: dict[str, Any], rank: int, devices: list[jax.Device] | None) -> Mesh:
    if step["do"] == "fingerprint" or rank in step.get("unplanned", ()):
        grid = np.array(devices or jax.devices()).reshape(step["shape"])
        return Mesh(grid, tuple(step["names"]), axis_types=(jax.sharding.AxisType.Auto,) * grid.ndim)
    if step["do"] == "code":
        names: dict[str, Any] = {}
        exec(step["plan"], names)
        mesh: Mesh = names["mesh"]
        return mesh
    plan = step["plan"][str(rank)] if isinstance(step["plan"], dict) else step["plan"]
    return build_mesh(plan, devices, timeout_s=step.get("timeout_s", 60.0))


def main() -> None:
    rank, steps, out = join()
    answers = [run_step(step, rank) for step in steps]
    seen = [[d.process_index, d.id] for d in jax.devices()]
    answer_and_leave({"seen": seen, "answers": answers}, out)


if __name__ == "__main__":
    main()
