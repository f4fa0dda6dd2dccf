"""Calls about leases: how each is asked, and which devices a plan's lease means. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from meshwright._calls import endpoints
from meshwright._calls.building import Call, build_model, write_sequence
from meshwright._calls.options import DeviceNames
from meshwright.errors import InvalidRequestError
from meshwright.wire.leases import Lease, Leases
from meshwright.wire.mesh import Plan

LeasedLike = Literal["all"] | DeviceNames | Mapping[str, int] | Plan
"""Local indices or uuids; "all": every device of the host; {"count": 4}: so many that are free; a plan: those that it
uses."""

MAX_KEY_LENGTH: Final = 255
"""Of an Idempotency-Key. Source: the agent's own contract, `POST /leases`."""


def lease(devices: LeasedLike, *, purpose: str, ttl_s: float, preemptible: bool, key: str | None = None) -> Call[Lease]:
    """`POST /leases`, with this Idempotency-Key, or with one made here, once per call.

    Raises:
        InvalidRequestError: an argument has the wrong type or is out of range, or the plan is of other hardware.
    """
    names = name_devices(devices) if isinstance(devices, Plan) else write_sequence(devices)
    fields = {"devices": names, "purpose": purpose, "ttl_s": ttl_s, "preemptible": preemptible}
    return build_model(endpoints.LEASE, fields=fields, key=None if key is None else _check_key(key))


def leases() -> Call[Leases]:
    """`GET /leases`."""
    return build_model(endpoints.LEASES)


def get_lease(lease: Lease | str) -> Call[Lease]:
    """`GET /leases/{id}`."""
    return build_model(endpoints.GET_LEASE, parts={"lease_id": _name_lease(lease)})


def renew_lease(lease: Lease | str, ttl_s: float) -> Call[Lease]:
    """`POST /leases/{id}/renew`.

    Raises:
        InvalidRequestError: a time that is out of range.
    """
    return build_model(endpoints.RENEW_LEASE, parts={"lease_id": _name_lease(lease)}, fields={"ttl_s": ttl_s})


def end_lease(lease: Lease | str) -> Call[Lease]:
    """`DELETE /leases/{id}`."""
    return build_model(endpoints.END_LEASE, parts={"lease_id": _name_lease(lease)})


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
    if plan.devices is None:
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


def _check_key(key: str) -> str:
    if not (0 < len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable()):
        raise _refuse(
            f"key {key[:40]!r} is none: an Idempotency-Key is 1 to {MAX_KEY_LENGTH} printable ASCII characters",
            'name the job, such as key="slurm-4711"',
            field="key",
        )
    return key


def _refuse(detail: str, hint: str, *, field: str = "devices") -> InvalidRequestError:
    return InvalidRequestError(detail, hint=hint, errors=[{"field": field, "message": detail.rpartition("; ")[2]}])
