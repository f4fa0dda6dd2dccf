"""Builds a plan's mesh on the devices of the running job, and returns the fingerprint of a mesh.

A device order is never guessed. The processes of the job exchange their identities and plans, over JAX's coordination
service and before any collective. All continue, or all fail. `meshwright.topology.identity` matches devices with the
plan.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from meshwright._agreement import Agreement, find_agreement, start_backend
from meshwright._jax_devices import check_devices
from meshwright._reference import PlanLike, read_plan
from meshwright.errors import PlanMismatchError
from meshwright.topology.identity import (
    JobDevice,
    Position,
    bind,
    check_plan,
    digest,
    fingerprint,
    number_devices,
    read_axes,
    read_visible_gpus,
)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_lock: Final = threading.Lock()
_places: Final[dict[jax.Device, Position]] = {}
"""The places of the devices of this process's job, from the last `build_mesh`."""


def build_mesh(plan: PlanLike, devices: Sequence[Any] | None = None, *, timeout_s: float = 60.0) -> Mesh:
    """Returns the plan's mesh on the devices of the running job, in the planned order.

    Every process of the job calls it, with the same plan. The job may see all devices that the plan's hosts have, or
    exactly those that the plan uses; ids and order do not matter, and the number of devices of each process does not
    matter. A job that runs on fewer machines than the plan has hosts (agents side by side on one machine) is divided by
    uuid, or by process where whole processes fill the hosts exactly. The axis types are always those of the plan: JAX's
    own default differs between its versions.

    Args:
        plan: from the agent or from `plan_mesh`; or a file that holds it.
        devices: the devices that may be used, in any order; None means `jax.devices()`. Each process reports its own.
        timeout_s: how long to wait for the other processes, including the start of JAX's backend.

    Raises:
        PlanMismatchError: in every process alike: the plan is not valid or contradicts itself, processes hold different
            plans, devices are missing or surplus (`.missing`, `.surplus`), or a process did not join in time or called
            `mesh_fingerprint` instead.
        ValueError: `timeout_s` is not a number of seconds that a wait can have.
    """
    _check_limit(timeout_s)
    deadline_s = time.monotonic() + timeout_s
    if devices is None:
        start_backend(timeout_s, _refuse)
    try:
        here, wanted = _read_arguments(plan, devices)
        message = {"fingerprint": wanted.fingerprint, "digest": digest(wanted), "devices": _describe_own(here)}
    except Exception as error:  # the other processes refuse too
        _exchange({"error": str(error)}, deadline_s - time.monotonic())
        raise
    binding = bind(wanted, _gather_devices(message, deadline_s - time.monotonic()))
    if agreement := _agree():
        agreement.commit()
    client = here[0].client
    found = {(device.process_index, device.id): device for device in client.devices()}
    with _lock:
        for old in [device for device in _places if device.client is not client]:  # of a backend before a restart
            del _places[old]
        _places.update({found[key]: place for key, place in binding.places.items()})
    axes = read_axes(wanted)
    grid = np.fromiter((found[key] for key in binding.order), dtype=object).reshape([size for _, size in axes])
    types = tuple(AxisType[wanted.axis_types[name].capitalize()] for name, _ in axes)
    return Mesh(grid, tuple(name for name, _ in axes), axis_types=types)


def mesh_fingerprint(mesh: Mesh, *, timeout_s: float = 60.0) -> str:
    """Returns the name of a mesh, equal to the plan's `fingerprint` when the mesh is the planned one.

    If `build_mesh` has run in this process, its places of the devices are used, without communication. Otherwise the
    job's devices are assumed to be all devices of their hosts, and every process of the job must call this.

    Raises:
        PlanMismatchError: another process did not call it within `timeout_s`, or called `build_mesh` instead.
        ValueError: the name of an axis is not text, so no plan can have it; or the mesh has devices that are not of
            this job, as a described topology's; or `timeout_s` as for `build_mesh`.
    """
    _check_limit(timeout_s)
    if not all(isinstance(name, str) for name in mesh.axis_names):
        raise ValueError(f'the mesh has the axes {mesh.axis_names}; axes of a plan are named by text, such as "data"')
    devices = list(mesh.devices.flat)
    client = jax.local_devices()[0].client
    foreign = [device for device in devices if getattr(device, "client", None) is not client]
    if foreign or not devices:
        raise ValueError(
            f"the mesh has {f'{foreign[0]}, which is no device of this job' if foreign else 'no device'}; a "
            f"fingerprint names a mesh of running devices, those of jax.devices(); use a mesh of them, as create_mesh "
            f"or build_mesh makes"
        )
    with _lock:
        known = [_places[device] for device in devices if device in _places]
    if len(known) < len(devices):
        message = {"fingerprint": "no plan", "digest": "", "devices": _describe_own(client.devices())}
        job = number_devices(_gather_devices(message, timeout_s))
        known = [job[device.process_index, device.id] for device in devices]
    return fingerprint(list(mesh.shape.items()), [kind.name.lower() for kind in mesh.axis_types], known)


def _check_limit(timeout_s: float) -> None:
    if not 0 <= timeout_s <= threading.TIMEOUT_MAX:
        most = f"0 to {threading.TIMEOUT_MAX:g} seconds"
        raise ValueError(f"timeout_s is {timeout_s}; it limits the wait for other processes; it is {most}, such as 60")


def _read_arguments(plan: PlanLike, devices: Sequence[Any] | None) -> tuple[list[Any], Any]:
    try:
        here = list(jax.devices()) if devices is None else check_devices(devices)
        wanted = read_plan(plan)
    except ValueError as error:
        hint = "give build_mesh the reply of Client().plan(…), or its JSON, and some of jax.devices()"
        raise PlanMismatchError(str(error), hint=hint) from error
    check_plan(wanted)
    return here, wanted


# ---- description of this process ----


def _describe_own(devices: Sequence[jax.Device]) -> list[dict[str, Any]]:
    rank = jax.process_index()
    gpus = (read_visible_gpus(os.environ) or ()) if devices[0].platform == "gpu" else ()
    return [_describe(device, gpus).to_json() for device in devices if device.process_index == rank]


def _describe(device: jax.Device, gpus: Sequence[Any]) -> JobDevice:
    index = device.local_hardware_id
    gpu = gpus[index] if index is not None and index < len(gpus) else None
    is_tpu = device.platform == "tpu"
    coords = getattr(device, "coords", None) if is_tpu else None
    try:
        host = _BOOT_ID.read_text().strip()
    except OSError:
        host = socket.gethostname()
    return JobDevice(
        process=device.process_index,
        id=device.id,
        host=host,
        platform=device.platform,
        uuid=gpu.uuid if gpu else None,
        coords=None if coords is None else tuple(coords),
        core_on_chip=getattr(device, "core_on_chip", None),
        slice_index=getattr(device, "slice_index", None) if is_tpu else None,
        host_position=gpu.host_position if gpu else None,
    )


# ---- exchange between the processes ----


def _agree() -> Agreement | None:
    """Returns the exchange between this job's processes; None for a job of one process."""
    return None if jax.process_count() == 1 else find_agreement("mesh", range(jax.process_count()), _refuse)


def _refuse(what: str) -> PlanMismatchError:
    return PlanMismatchError(
        f"{what}; every process must call build_mesh (or mesh_fingerprint) alike",
        hint="look whether it is still starting or has failed; a larger timeout_s waits longer",
    )


def _exchange(message: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
    agreement, text = _agree(), json.dumps(message)
    return [json.loads(each) for each in (agreement.exchange(text, timeout_s=timeout_s) if agreement else [text])]


def _compare(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises PlanMismatchError unless every process holds the same plan, or none holds one."""
    failed = [f"process {rank}: {each['error']}" for rank, each in enumerate(messages) if "error" in each]
    if failed:
        raise PlanMismatchError(
            f"{len(failed)} of {len(messages)} processes cannot use their plan, so none goes on; {failed[0]}"
        )
    if len({each["digest"] for each in messages}) == 1:
        return
    held = "; ".join(f"process {rank} holds {each['fingerprint']}" for rank, each in enumerate(messages[:8]))
    same = len({each["fingerprint"] for each in messages}) == 1
    raise PlanMismatchError(
        f"the processes of this job hold different plans: {held}{' with other devices' if same else ''}; "
        f"all must give build_mesh the same",
        hint="plan once, and let every process fetch it: "
        f"MESHWRIGHT_PLAN={next(each['fingerprint'] for each in messages if each['digest'])}",
    )


def _gather_devices(message: Mapping[str, Any], timeout_s: float) -> list[JobDevice]:
    messages = _exchange(message, timeout_s)
    _compare(messages)
    return [JobDevice.from_json(data) for each in messages for data in each["devices"]]
