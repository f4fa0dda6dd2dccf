"""One process of a job on a fleet: builds the planned mesh, and adds up over it. What came of it goes out as JSON.

Run as `python fleet_job.py RANK COUNT PORT STEPS`; a step is {"plan": text, "rows": axis, "columns": axis}.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from one_rank import answer_and_leave, join

from meshwright.errors import PlanMismatchError
from meshwright.mesh import build_mesh, mesh_fingerprint


def run_step(step: dict[str, Any]) -> dict[str, Any]:
    try:
        mesh = build_mesh(step["plan"], timeout_s=30.0)
    except PlanMismatchError as error:
        return {"error": str(error)}
    return {
        "fingerprint": mesh_fingerprint(mesh),
        "order": [[device.process_index, device.id] for device in mesh.devices.flat],
        "all": add_up(mesh, mesh.axis_names),
        "by_axis": {name: add_up(mesh, (name,)) for name in mesh.axis_names},
    }


def add_up(mesh: Mesh, over: tuple[str, ...]) -> list[list[float]]:
    """Each device has 2 to the power of its place in the mesh: a sum says whose shares are in it.

    Returns the sums that this process' devices hold, with their places: [place, sum].
    """
    shares = 2.0 ** np.arange(mesh.size, dtype=np.float32)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    placed = jax.make_array_from_callback(shares.shape, sharding, lambda index: shares[index])
    spec = PartitionSpec(mesh.axis_names)
    reduce = jax.shard_map(
        lambda share: jax.lax.psum(share, over), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    sums = jax.jit(reduce)(placed)
    return [[shard.index[0].start or 0, float(np.asarray(shard.data)[0])] for shard in sums.addressable_shards]


def main() -> None:
    _, steps, out = join()
    answers = [run_step(step) for step in steps]
    answer_and_leave({"answers": answers}, out)


if __name__ == "__main__":
    main()
