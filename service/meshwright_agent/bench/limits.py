"""check_bench(): rejects a bench that this host cannot run, before anything is queued. No device is opened.

Rule: an error names the formula and a value that works. Unknown memory is not assumed. This module does not import jax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.errors import DeviceBusyError, InvalidRequestError
from meshwright.wire.bench import BenchCase, BenchRequest
from meshwright.wire.devices import Device, DeviceProcess, Devices
from meshwright_agent.bench.scope import COLLECTIVE_CASES, ITEM_BYTES, Scope, build_host_scope
from meshwright_agent.facts.model import IDLE_BYTES

USABLE_RATIO: Final = 0.9
"""Usable share of the available memory. The rest is for compiled programs, runtime buffers and other processes."""

UNKNOWN_LIMIT_BYTES: Final = 512 * 2**20
"""Total memory limit of a bench if the available memory is not known."""

_SEE_PROCESSES: Final = (
    "let the agent see all processes (systemd: the drop-in owners.conf; chart: features.hostPID, and ofOthers for TPUs)"
)
_WITH_WORKER: Final = frozenset({"starting", "ready", "busy", "stopping"})
"""States in which the agent's own worker may have the devices open."""


MEMORY_MULTIPLES: Final[dict[BenchCase, Callable[[int], tuple[float, float]]]] = {
    "host_to_device": lambda n: (2, 2),
    "device_to_host": lambda n: (2, 3),
    "device_to_device": lambda n: (2, 2),
    "replicate": lambda n: (2, 2),
    "shard_batch": lambda n: (2 / n, 2),
    **dict.fromkeys(sorted(COLLECTIVE_CASES), lambda n: (3, 3)),
    "matmul": lambda n: (3, 4 / 3),
    "memory_bandwidth": lambda n: (1, 1.5),
}
"""Memory of one trial in multiples of its S, summed over arrays that live at the same time, by case, for n devices.

First on each device of the trial: input, output, the previous result during the next call, and XLA's temporaries. The
temporaries are those in the compiled text (all-to-all). S of a matmul is three matrices, of which XLA's search for
kernels makes more: on an H100 the worker held 2.8 × S with n = 8192, and 2.1 × S with n = 16384.

Then on the host: for the data sent and for the check of the result."""


@dataclass(frozen=True)
class Demand:
    """Memory that the largest trial of a case needs; `on_device` and `on_host` as in `MEMORY_MULTIPLES`."""

    case: BenchCase
    size_bytes: int
    devices: tuple[int, ...]
    on_device: float
    on_host: float


def check_bench(request: BenchRequest, devices: Devices) -> None:
    """Raises unless this host can run the bench.

    Raises:
        InvalidMeshError: the mesh is not valid.
        InvalidRequestError: a device, an axis or a mesh size does not exist.
        InvalidRequestError: the bench needs more memory than a device or the host has.
        DeviceBusyError: as `check_idle`.
    """
    scope = build_host_scope(request, devices)
    check_idle(request, devices)
    chosen = _list_chosen(scope, devices)
    for demand in list_demands(scope):
        _check_memory(demand, devices, chosen)


def list_opened(request: BenchRequest, devices: Devices) -> tuple[Device, ...]:
    """Returns the devices that JAX opens for a bench. JAX opens all accelerators that it sees, measured or not.

    If JAX lists only some devices, the others are hidden from it (CUDA_VISIBLE_DEVICES) and not opened, unless one that
    it opens cannot be told apart.
    """
    if devices.platform == "cpu":
        return tuple(_list_chosen(build_host_scope(request, devices), devices))
    shown = tuple(device for device in devices.devices if device.jax_id is not None)
    is_told = all(notice.code != "jax_device_unmatched" for notice in devices.warnings)
    return shown if shown and is_told else devices.devices


def list_demands(scope: Scope) -> Iterator[Demand]:
    """Yields the largest demand of each case."""
    for case in scope.cases:
        size = max(_list_sizes(case, scope))
        taking_part = _list_devices(case, scope)
        if taking_part:
            yield Demand(case, size, taking_part, *MEMORY_MULTIPLES[case](len(taking_part)))


def _list_sizes(case: BenchCase, scope: Scope) -> tuple[int, ...]:
    match case:
        case "matmul":
            return tuple(3 * n * n * ITEM_BYTES[scope.dtype] for n in scope.matmul_sizes)
        case "memory_bandwidth":
            return scope.memory_bytes
        case _:
            return scope.sizes_bytes


def _list_devices(case: BenchCase, scope: Scope) -> tuple[int, ...]:
    match case:
        case "host_to_device" | "device_to_host" | "matmul" | "memory_bandwidth":
            return scope.singles[:1]
        case "device_to_device":
            return scope.pairs[0] if scope.pairs else ()
        case _:
            return scope.devices


def _check_memory(demand: Demand, devices: Devices, chosen: Sequence[Device]) -> None:
    on_host, on_device = demand.on_host, demand.on_device
    if devices.platform == "cpu":  # CPU devices share the host's memory
        on_host, chosen = on_host + on_device * len(demand.devices), ()
    cpu = devices.cpu
    _check_room(demand, "the host", on_host, cpu.memory_bytes if cpu.available_bytes is None else cpu.available_bytes)
    for device in chosen:
        _check_room(demand, f"device {device.local_index}", on_device, _device_room(device))


def _device_room(device: Device) -> int | None:
    memory = device.memory
    if memory is None:
        return None
    if memory.capacity_bytes is None:
        return memory.limit_bytes
    own_bytes = sum(process.used_bytes or 0 for process in device.processes or () if process.own)
    left = memory.capacity_bytes - max(0, (memory.used_bytes or 0) - own_bytes)
    return left if memory.limit_bytes is None else min(left, memory.limit_bytes)


def _check_room(demand: Demand, where: str, multiple: float, room_bytes: int | None) -> None:
    need_bytes = math.ceil(multiple * demand.size_bytes)
    usable = UNKNOWN_LIMIT_BYTES if room_bytes is None else int(USABLE_RATIO * room_bytes)
    if need_bytes <= usable:
        return
    there = (
        f"its memory is not known, and without that the limit is {usable} bytes"
        if room_bytes is None
        else f"it has {room_bytes} bytes, of which a bench takes at most {USABLE_RATIO:.0%}"
    )
    detail = f"{demand.case} with S = {demand.size_bytes} bytes on {len(demand.devices)} device(s) needs "
    detail += f"{multiple:.3g} × S = {need_bytes} bytes on {where}; {there}"
    field = "matmul_size" if demand.case == "matmul" else "sizes_bytes"
    raise InvalidRequestError.of(field, detail, _suggest(demand, usable / multiple), code="bench_too_large")


def _suggest(demand: Demand, fits_bytes: float) -> str:
    """Returns a request that fits: S rounded down to a power of two, n to a multiple of 8."""
    if demand.case == "matmul":
        n = 8 * int(math.sqrt(fits_bytes / (3 * 4)) // 8)
        return f'use "matmul_size": {n}' if n >= 8 else "there is not enough memory for any matmul"
    if fits_bytes < 4:
        return "there is not enough memory for any bench"
    return f'use "sizes_bytes": [{2 ** int(math.log2(fits_bytes))}]'


def check_idle(request: BenchRequest, devices: Devices) -> None:
    """Raises DeviceBusyError unless every device that the bench would open is idle.

    A device is busy if another process computes on it, or if no process may open it. If the processes are unknown, a
    GPU is idle with less than `IDLE_BYTES` in use. The agent's own worker hides other processes. While the worker runs,
    its devices count as idle, because it was started on idle devices.
    """
    has_worker = devices.worker.state in _WITH_WORKER
    for device in list_opened(request, devices):
        others = [process for process in device.processes or () if not process.own]
        if device.compute_mode == "prohibited":
            remedy = f"`nvidia-smi -i {device.pci_bus_id} -c DEFAULT` opens it"
            raise _refuse_busy(device, "is in compute mode prohibited", remedy)
        if others:
            raise _refuse_busy(device, f"is held by {_name(others)}", f"wait for process {others[0].pid} to end")
        if device.processes is None and not has_worker and not _has_little_in_use(device):
            raise _refuse_busy(device, "may be in use: not every process can be seen from here", _SEE_PROCESSES)


def _has_little_in_use(device: Device) -> bool:
    """Returns whether the driver reports little memory in use. JAX reports only its own arrays."""
    memory = device.memory
    if device.platform != "gpu" or memory is None or memory.basis != "passive" or memory.used_bytes is None:
        return False
    return memory.used_bytes < IDLE_BYTES


def _list_chosen(scope: Scope, devices: Devices) -> list[Device]:
    return [one for one in devices.devices if one.local_index in scope.devices]


def _name(processes: Sequence[DeviceProcess]) -> str:
    """Returns processes in the form of error messages: "process 7 (python train.py) in slurm 4711"."""
    named = []
    for process in processes[:3]:
        command = process.command or process.name or "name not known"
        named.append(f"process {process.pid} ({command})" + (f" in {process.job}" if process.job else ""))
    return ", ".join(named) + (f" and {len(processes) - 3} more" if len(processes) > 3 else "")


def _refuse_busy(device: Device, why: str, remedy: str) -> DeviceBusyError:
    return DeviceBusyError(
        f"JAX would open device {device.local_index} ({device.kind}), which {why}; it is measured on idle devices only",
        hint=f"{remedy}; JAX opens every device of the host that it sees, and CUDA_VISIBLE_DEVICES of the agent hides "
        "GPUs from it",
    )
