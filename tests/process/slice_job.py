"""Meshes on TPU slices that nobody has: devices as XLA's TPU compiler describes them, through `create_mesh`.

Run as `python slice_job.py`, with {"target", "slices", "sizes"} cases as JSON on stdin. For each it prints the devices
in mesh order as [slice, x, y, z, core], and those of JAX's own order, or why JAX has none. Opens no device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from jax.experimental import mesh_utils, topologies

from meshwright.mesh import create_mesh


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=case["target"], num_slices=case["slices"], **case.get("options", {})
    )
    names = [f"axis{n}" for n in range(len(case["sizes"]))]
    arguments = {"dcn_mesh_dims": case["dcn"]} if "dcn" in case else {}
    devices = described.devices[::-1] if case.get("turned") else described.devices
    mesh = create_mesh(case["sizes"], names, devices=devices, **arguments)
    return {
        "kind": described.devices[0].device_kind,
        "processes": len({device.process_index for device in described.devices}),
        "ours": [tell(device) for device in mesh.devices.flat],
        "again": mesh is create_mesh(case["sizes"], names, devices=devices, **arguments),
        **ask_jax(case, described.devices),
    }


def ask_jax(case: dict[str, Any], devices: list[Any]) -> dict[str, Any]:
    try:
        if case["slices"] == 1:
            made = mesh_utils.create_device_mesh(case["sizes"], devices, allow_split_physical_axes=True)
        else:
            dcn = case["jax_dcn"]
            inner = [size // parts for size, parts in zip(case["sizes"], dcn, strict=True)]
            made = mesh_utils.create_hybrid_device_mesh(inner, dcn, devices, allow_split_physical_axes=True)
    except Exception as error:
        return {"jax": None, "why": type(error).__name__}
    return {"jax": [tell(device) for device in np.asarray(made).flat], "why": None}


def tell(device: Any) -> list[int]:
    return [getattr(device, "slice_index", None) or 0, *device.coords, device.core_on_chip]


if __name__ == "__main__":
    print(json.dumps([run_case(case) for case in json.load(sys.stdin)]))
