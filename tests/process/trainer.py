"""A trainer as a user writes it: takes a plan, makes its mesh, multiplies on it. What came of it goes out as JSON.

Run as `python trainer.py MESH [REQUEST]`, or as `python trainer.py` with MESHWRIGHT_PLAN. Knows only the public
client, which has its settings from the environment, and jax.
"""

from __future__ import annotations

import json
import os
import sys

from meshwright import Client, load_plan
from meshwright.wire.mesh import Plan


def take_plan() -> Plan:
    """Asks the agent, as the first process of a job does, or takes what the launcher named."""
    if len(sys.argv) == 1:
        return load_plan()
    with Client() as client:
        return client.plan(sys.argv[1], **json.loads(sys.argv[2] if len(sys.argv) > 2 else "{}"))


plan = take_plan()
os.environ.update(plan.environment)  # before jax is imported

import jax  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from meshwright.mesh import build_mesh, mesh_fingerprint  # noqa: E402


def multiply(mesh: jax.sharding.Mesh) -> bool:
    """Rows over the first axis, the inner dimension over the second: the product needs every device's share."""
    outer, inner = mesh.axis_names
    left = np.arange(48 * 64, dtype=np.float32).reshape(48, 64) % 13
    right = np.arange(64 * 24, dtype=np.float32).reshape(64, 24) % 11
    places = NamedSharding(mesh, PartitionSpec(outer, inner)), NamedSharding(mesh, PartitionSpec(inner, None))
    a, b = (
        jax.make_array_from_callback(x.shape, place, lambda index, x=x: x[index])
        for x, place in zip((left, right), places, strict=True)
    )
    product = jax.jit(lambda x, y: x @ y, out_shardings=NamedSharding(mesh, PartitionSpec(outer, None)))(a, b)
    expected = left @ right
    shards = product.addressable_shards
    return len(shards) > 0 and all(np.array_equal(np.asarray(s.data), expected[s.index]) for s in shards)


def main() -> None:
    mesh = build_mesh(plan)
    report = {
        "plan": plan.fingerprint,
        "mesh": mesh_fingerprint(mesh),
        "shape": dict(mesh.shape),
        "order": [device.id for device in mesh.devices.flat],
        "seen": len(jax.devices()),
        "right": multiply(mesh),
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
