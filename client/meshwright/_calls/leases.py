"""Builds the calls about leases, and selects the devices of a plan's lease. Sends nothing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Literal

from meshwright._calls import endpoints
from meshwright._calls.building import Call, build_model, write_sequence
from meshwright._calls.options import DeviceNames
from meshwright.errors import InvalidRequestError
from meshwright.wire.leases import LEASE_ID_PATTERN, Lease, Leases
from meshwright.wire.mesh import Plan

LeasedLike = Literal["all"] | DeviceNames | Mapping[str, int] | Plan
"""Local indices or uuids; "all": every device of the host; {"count": 4}: so many that are free; a plan: those that it
uses."""


def put_lease(
    lease_id: str | None, devices: LeasedLike, *, purpose: str, ttl_s: float, preemptible: bool
) -> Call[Lease]:
    """`PUT /leases/{id}`; an id is created here where none is given.

    Raises:
        InvalidRequestError: an argument has the wrong type or is out of range, or the plan is for other hardware.
    """
    names = name_devices(devices) if isinstance(devices, Plan) else write_sequence(devices)
    fields = {"devices": names, "purpose": purpose, "ttl_s": ttl_s, "preemptible": preemptible}
    lease_id = f"lease-{secrets.token_hex(8)}" if lease_id is None else _check_id(lease_id)
    return build_model(endpoints.PUT_LEASE, parts={"lease_id": lease_id}, fields=fields)


def renew_lease(lease: Lease, ttl_s: float) -> Call[Lease]:
    """`PUT /leases/{id}` with all that the lease has, and another time.

    Raises:
        InvalidRequestError: a time that is out of range.
    """
    devices = tuple(each.uuid or each.local_index for each in lease.devices)
    return put_lease(lease.id, devices, purpose=lease.purpose, ttl_s=ttl_s, preemptible=lease.preemptible)


def leases() -> Call[Leases]:
    """`GET /leases`."""
    return build_model(endpoints.LEASES)


def get_lease(lease: Lease | str) -> Call[Lease]:
    """`GET /leases/{id}`."""
    return build_model(endpoints.GET_LEASE, parts={"lease_id": _name_lease(lease)})


def end_lease(lease: Lease) -> Call[Lease]:
    """`DELETE /leases/{id}`."""
    return build_model(endpoints.END_LEASE, parts={"lease_id": lease.id}, gone=lease)


def _name_lease(lease: Lease | str) -> str:
    return lease.id if isinstance(lease, Lease) else lease


def name_devices(plan: Plan) -> tuple[int | str, ...]:
    """Returns the names of a plan's devices on their host, uuids where there are some, the same for any order of them.

    Raises:
        InvalidRequestError: they are a target's or of several hosts, or the plan does not list them.
    """
    if plan.target is not None:
        raise _refuse(
            f"plan {plan.fingerprint} is on the target {plan.target}, hardware that need not be here; a lease reserves "
            "devices of the agent's own host",
            "plan without `target`, on the agent of the host that shall run it",
        )
    if not plan.devices:
        raise _refuse(
            f"plan {plan.fingerprint} does not list its devices, so that none can be reserved",
            "plan with include_devices=True",
        )
    hosts = sorted({device.host for device in plan.devices})
    if len(hosts) > 1:
        raise _refuse(
            f"plan {plan.fingerprint} has devices of {len(hosts)} hosts ({', '.join(hosts[:3])}"
            f"{', …' if len(hosts) > 3 else ''}); an agent leases devices of its own host",
            "ask each host's agent for its own: lease([each.local_index for each in plan.devices if each.host == …])",
        )
    return tuple(each.uuid or each.local_index for each in sorted(plan.devices, key=lambda each: each.local_index))


def _check_id(lease_id: str) -> str:
    if re.fullmatch(LEASE_ID_PATTERN, lease_id) is None:
        raise _refuse(
            f"lease_id {lease_id[:80]!r} is not an id of a lease; it is 1 to 64 letters, digits, dots, hyphens and "
            "underscores, a letter or digit first",
            'name the job, such as "slurm-4711"',
            field="lease_id",
        )
    return lease_id


def _refuse(detail: str, hint: str, *, field: str = "devices") -> InvalidRequestError:
    return InvalidRequestError.of(field, detail, hint, detail.rpartition("; ")[2])
