"""TPU slices as libtpu describes them, in short: for each case on stdin, what the devices are and a digest of them.

Run as `python described_job.py`, with [{"topology_name": …, …}] as JSON on stdin: the arguments of `get_topology_desc`.
A device is written as "slice x y z core process id"; devices stand by slice, then by jax.Device.id. Opens no device.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any


def describe(case: dict[str, Any]) -> dict[str, Any]:
    from jax.experimental import topologies  # here, so that the test can take `digest` without jax

    devices = topologies.get_topology_desc(platform="tpu", **case).devices
    rows = sorted((getattr(device, "slice_index", None) or 0, device.id, tell(device)) for device in devices)
    return {
        "kind": devices[0].device_kind,
        "count": len(devices),
        "has_slice_index": hasattr(devices[0], "slice_index"),
        "digest": digest(row for *_, row in rows),
    }


def tell(device: Any) -> str:
    place = (getattr(device, "slice_index", None) or 0, *device.coords, device.core_on_chip, device.process_index)
    return " ".join(map(str, place))


def digest(rows: Any) -> str:
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


if __name__ == "__main__":
    print(json.dumps([describe(case) for case in json.load(sys.stdin)]))
