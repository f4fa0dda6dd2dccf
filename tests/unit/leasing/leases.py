"""Small, valid leases."""

from __future__ import annotations

from typing import Any

from meshwright.wire.leases import Lease, LeasedDevice
from tests.fakes.stored import EPOCH


def build_lease(**fields: Any) -> Lease:
    known: dict[str, Any] = {
        "id": "lease-1",
        "devices": (LeasedDevice(local_index=0),),
        "purpose": "job 7",
        "preemptible": False,
        "created_at": EPOCH,
        "expires_at": EPOCH,
        "expires_in_s": 60.0,
    }
    return Lease.model_validate(known | fields)
