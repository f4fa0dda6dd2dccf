"""Builds a plan's mesh on the devices of the running job, and returns the fingerprint of a mesh.

Rule: a device order is never guessed. The processes of the job exchange their identities and plans, over JAX's
coordination service and before any collective. All continue, or all fail. `meshwright.topology.identity` matches
devices with the plan.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import AxisType, Mesh
from pydantic import ValidationError

from meshwright._mesh.agreement import Agreement, find_agreement, start_backend
from meshwright.errors import PlanMismatchError
from meshwright.topology.identity import (
    DeviceKey,
    JobDevice,
    Position,
    VisibleGpu,
    bind,
    check_plan,
    digest,
    fingerprint,
    number_devices,
    read_axes,
    read_visible_gpus,
)
from meshwright.wire.mesh import Plan, Plans

__all__ = ["build_mesh", "mesh_fingerprint"]

PlanLike = Plan | Plans | Mapping[str, Any] | str | bytes
"""A plan, the agent's whole answer (its first plan counts), the same as a mapping, or as JSON."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def build_mesh(
    plan: PlanLike,
    devices: Sequence[Any] | None = None,
    *,
    timeout_s: float = 60.0,
) -> Mesh:
    """Returns the plan's mesh on the devices of the running job, in the planned order.

    Every process of the job calls it, with the same plan. The job may see all devices that the plan's hosts have, or
    exactly those that the plan uses; ids and order do not matter, and the number of devices of each process does not
    matter. A job that runs on fewer machines than the plan has hosts (agents side by side on one machine) is divided by
    uuid, or by process where whole processes fill the hosts exactly. The axis types are always those of the plan: JAX's
    own default differs between its versions.

    Args:
        plan: from the agent or from `plan_mesh`.
        devices: the devices that may be used, in any order; None means `jax.devices()`. Each process reports its own.
        timeout_s: how long to wait for the other processes, including the start of JAX's backend.

    Raises:
        PlanMismatchError: in every process alike: the plan is not valid or contradicts itself, processes hold different
            plans, devices are missing or surplus (`.missing`, `.surplus`), or a process did not join in time.
    """
    deadline = time.monotonic() + timeout_s
    if devices is None:
        start_backend(timeout_s, _refuse)
    try:
        here = _read_job(devices)
        wanted = _read_plan(plan)
        check_plan(wanted)
        message = {
            "fingerprint": wanted.fingerprint,
            "digest": digest(wanted),
            "devices": _describe_own(here),
        }
    except PlanMismatchError as error:
        _exchange({"error": str(error)}, deadline - time.monotonic())
        raise
    messages = _exchange(message, deadline - time.monotonic())
    _compare(messages)
    binding = bind(wanted, _read_devices(messages))
    _commit()
    found = {_key(device): device for device in here[0].client.devices()}
    _places.remember({found[key]: place for key, place in binding.places.items()})
    return _assemble(wanted, [found[key] for key in binding.order])


def mesh_fingerprint(mesh: Mesh, *, timeout_s: float = 60.0) -> str:
    """Returns the name of a mesh, equal to the plan's `fingerprint` when the mesh is the planned one.

    If `build_mesh` has run in this process, its places of the devices are used, without communication. Otherwise the
    job's devices are assumed to be all devices of their hosts, and every process of the job must call this.

    Raises:
        PlanMismatchError: another process did not call it within `timeout_s`.
        TypeError: `mesh` is not a mesh.
        ValueError: the name of an axis is not text, so no plan can have it; or the mesh has devices that are not of
            this job, as a described topology's.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh is a {type(mesh).__name__}; it is a jax.sharding.Mesh, as build_mesh returns")
    strangers = [name for name in mesh.axis_names if not isinstance(name, str)]
    if strangers:
        raise ValueError(
            f"the mesh has an axis called {strangers[0]!r}, a {type(strangers[0]).__name__}; axes of a plan "
            f"are named by text, "
            f'such as "data"'
        )
    flat = list(mesh.devices.flat)
    client = jax.local_devices()[0].client
    foreign = [device for device in flat if getattr(device, "client", None) is not client]
    if foreign or not flat:
        raise ValueError(
            f"the mesh has {f'{foreign[0]}, which is no device of this job' if foreign else 'no device'}; a "
            f"fingerprint names a mesh of running devices, those of jax.devices(); use a mesh of them, as create_mesh "
            f"or build_mesh makes"
        )
    places = _places.find(flat) or _number(flat, timeout_s)
    axes = list(zip(mesh.axis_names, mesh.devices.shape, strict=True))
    return fingerprint(axes, [kind.name.lower() for kind in mesh.axis_types], places)


class _Places:
    """The places of the devices of this process's job, from the last `build_mesh`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[jax.Device, Position] = {}

    def remember(self, places: Mapping[jax.Device, Position]) -> None:
        client = next(iter(places)).client
        with self._lock:
            # A restarted backend has other devices; those of the old one are removed.
            kept = {device: place for device, place in self._known.items() if device.client is client}
            self._known = kept | dict(places)

    def find(self, devices: Sequence[jax.Device]) -> list[Position] | None:
        with self._lock:
            places = [self._known.get(device) for device in devices]
        return [place for place in places if place is not None] if None not in places else None


_places: Final = _Places()


def _read_plan(plan: PlanLike) -> Plan:
    try:
        data = plan if isinstance(plan, Plan | Plans) else _parse(plan)
    except (ValueError, ValidationError) as error:
        raise PlanMismatchError(
            f"this is no plan: {str(error).splitlines()[0]}; a plan is what POST /mesh/plan answers\n"
            f"  hint: give build_mesh the reply of Client().plan(…), or its JSON"
        ) from error
    if isinstance(data, Plan):
        return data
    if not data.plans:
        raise PlanMismatchError(
            "the answer holds no plan, build_mesh needs one; each mesh that was looked at was rejected\n"
            "  hint: see `rejected` in the answer, and ask for another mesh"
        )
    return data.plans[0]


def _parse(plan: object) -> Plan | Plans:
    data = json.loads(plan) if isinstance(plan, str | bytes) else plan
    if not isinstance(data, Mapping):
        raise ValueError(f"it is a {type(data).__name__}")
    return Plans.model_validate(data) if "plans" in data else Plan.model_validate(data)


def _assemble(plan: Plan, devices: Sequence[jax.Device]) -> Mesh:
    axes = read_axes(plan)
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    types = tuple(AxisType[plan.axis_types[name].capitalize()] for name, _ in axes)
    return Mesh(grid.reshape([size for _, size in axes]), tuple(name for name, _ in axes), axis_types=types)


# ---- description of this process ----


def _read_job(devices: Sequence[Any] | None) -> list[Any]:
    """Returns the devices that may be used; any error of them is sent to the other processes too."""
    if devices is None:
        return list(jax.devices())
    given = devices.flat if isinstance(devices, np.ndarray) else devices
    here = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    wrong = [device for device in here if not isinstance(device, jax.Device)]
    if wrong:
        raise PlanMismatchError(
            f"devices holds {wrong[0]!r}, a {type(wrong[0]).__name__}; it holds devices of this job\n"
            f"  hint: leave devices out, or give some of jax.devices()"
        )
    return here


def _describe_own(devices: Sequence[jax.Device]) -> list[dict[str, Any]]:
    if not devices:
        raise PlanMismatchError("devices is empty; a mesh needs some\n  hint: leave it out to use all of jax.devices()")
    doubled = [device for device in devices if devices.count(device) > 1]
    if doubled:
        raise PlanMismatchError(
            f"devices holds {doubled[0]} more than once; each device can stand on a mesh once\n"
            f"  hint: leave devices out, or give each one once",
            surplus=[str(doubled[0])],
        )
    rank = jax.process_index()
    return [_describe(device).to_json() for device in devices if device.process_index == rank]


def _describe(device: jax.Device) -> JobDevice:
    gpu = _find_gpu(device)
    coords = getattr(device, "coords", None)
    return JobDevice(
        process=device.process_index,
        id=device.id,
        host=_read_host(),
        platform=device.platform,
        uuid=gpu.uuid if gpu else None,
        coords=tuple(coords) if coords is not None and device.platform == "tpu" else None,
        core_on_chip=getattr(device, "core_on_chip", None),
        slice_index=getattr(device, "slice_index", None) if device.platform == "tpu" else None,
        host_position=gpu.host_position if gpu else None,
    )


def _find_gpu(device: jax.Device) -> VisibleGpu | None:
    if device.platform != "gpu" or device.local_hardware_id is None:
        return None
    visible = read_visible_gpus(os.environ) or ()
    return visible[device.local_hardware_id] if device.local_hardware_id < len(visible) else None


def _read_host() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


# ---- exchange between the processes ----


def _agree() -> Agreement | None:
    """Returns the exchange between this job's processes; None for a job of one process."""
    if jax.process_count() == 1:
        return None
    return find_agreement("mesh", range(jax.process_count()), _refuse)


def _refuse(what: str) -> PlanMismatchError:
    return PlanMismatchError(
        f"{what}; every process must call build_mesh (or mesh_fingerprint) alike\n  hint: look whether it is still "
        f"starting or has failed; a larger timeout_s waits longer"
    )


def _exchange(message: Mapping[str, Any], timeout_s: float) -> tuple[dict[str, Any], ...]:
    agreement = _agree()
    texts = agreement.exchange(json.dumps(message), timeout_s=timeout_s) if agreement else (json.dumps(message),)
    return tuple(json.loads(text) for text in texts)


def _commit() -> None:
    agreement = _agree()
    if agreement:
        agreement.commit()


def _compare(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuses unless every process holds the same plan."""
    failed = [f"process {rank}: {said['error']}" for rank, said in enumerate(messages) if "error" in said]
    if failed:
        raise PlanMismatchError(
            f"{len(failed)} of {len(messages)} processes cannot use their plan, so none goes on; {failed[0]}"
        )
    if len({said["digest"] for said in messages}) == 1:
        return
    held = "; ".join(f"process {rank} holds {said['fingerprint']}" for rank, said in enumerate(messages[:8]))
    same = len({said["fingerprint"] for said in messages}) == 1
    raise PlanMismatchError(
        f"the processes of this job hold different plans: {held}{' with other devices' if same else ''}; "
        f"all must hold the same\n  hint: plan once, and let every process fetch it: "
        f"MESHWRIGHT_PLAN={messages[0]['fingerprint']}"
    )


def _read_devices(messages: Sequence[Mapping[str, Any]]) -> list[JobDevice]:
    return [JobDevice.from_json(data) for said in messages for data in said["devices"]]


def _number(devices: Sequence[jax.Device], timeout_s: float) -> list[Position]:
    messages = _exchange({"devices": _describe_own(devices[0].client.devices())}, timeout_s)
    places: Mapping[DeviceKey, Position] = number_devices(_read_devices(messages))
    return [places[_key(device)] for device in devices]


def _key(device: jax.Device) -> DeviceKey:
    return device.process_index, device.id
