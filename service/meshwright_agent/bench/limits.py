"""check_bench(): refuses a bench that cannot be done here, before anything is queued. No device is touched.

Rule: what is refused is said with the formula and with a value that works; memory that nobody has told is not assumed.
Knows no jax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.errors import BenchTooLargeError, DeviceBusyError, InvalidRequestError
from meshwright.topology.text import name_place
from meshwright.wire.bench import BenchCase, BenchRequest, Tier
from meshwright.wire.devices import Device, DeviceProcess, Devices
from meshwright_agent.bench.scope import COLLECTIVE_CASES, ITEM_BYTES, Scope, build_host_scope

USABLE_RATIO: Final = 0.9
"""Of the memory that is there: the rest is for compiled programs, buffers of the runtime, and others' growth."""

UNTOLD_BYTES: Final = 512 * 2**20
"""What a bench may take in all where the memory is not known."""

LIGHT_BYTES: Final = 512 * 2**20
LIGHT_S: Final = 60.0
"""What a bench of the light tier takes at most: of each device, and of time."""

CONTEXT_BYTES: Final = 400 * 2**20
"""What a CUDA context takes of a card, beside its arrays: 300 to 400 MB."""


_ALL_ARE_OPENED: Final = "; JAX opens all devices of a host that it sees, also those that are not measured"
_LET_IT_LOOK: Final = (
    "let the agent see all processes (systemd: the drop-in owners.conf; chart: features.hostPID, and ofOthers for TPUs)"
    ', or use "tier": "passive"'
)
_OPEN: Final = frozenset({"ready", "busy"})
_THERE: Final = _OPEN | {"starting", "stopping"}
"""States of the agent's worker in which it has its devices open; in which it may have."""


@dataclass(frozen=True)
class Appetite:
    """Memory of one trial in multiples of its S, arrays that live at the same time counted together.

    `device`: on each device that takes part. `host`: for what is sent and for the check of what comes back.
    """

    device: float
    host: float


APPETITES: Final[dict[BenchCase, Callable[[int], Appetite]]] = {
    "host_to_device": lambda n: Appetite(2, 2),
    "device_to_host": lambda n: Appetite(2, 3),
    "device_to_device": lambda n: Appetite(2, 2),
    "replicate": lambda n: Appetite(2, 2),
    "shard_batch": lambda n: Appetite(2 / n, 2),
    **dict.fromkeys(sorted(COLLECTIVE_CASES), lambda n: Appetite(3, 3)),
    "matmul": lambda n: Appetite(4 / 3, 4 / 3),
    "memory_bandwidth": lambda n: Appetite(1, 1.5),
}
"""By case, for n devices. In and out, the previous result while the next is made, and XLA's temporaries where its
compiled text shows them (all-to-all); of matmul S is three matrices."""


@dataclass(frozen=True)
class Demand:
    """What the largest trial of a case takes."""

    case: BenchCase
    size_bytes: int
    devices: tuple[int, ...]
    appetite: Appetite

    @property
    def device_bytes(self) -> int:
        """On each device."""
        return math.ceil(self.appetite.device * self.size_bytes)

    @property
    def host_bytes(self) -> int:
        """On the host, without devices."""
        return math.ceil(self.appetite.host * self.size_bytes)


def check_bench(request: BenchRequest, devices: Devices) -> None:
    """Does nothing if the bench can be done on this host.

    Raises:
        InvalidMeshError: the mesh is no mesh.
        InvalidRequestError: a device, an axis or a mesh size that is not there.
        BenchTooLargeError: it needs more memory than a device or the host has.
        DeviceBusyError: another process holds a device that it would need for itself, or fills one that it would open,
            or nobody could look whether one does; not while the agent's own worker is what hides that (`is_hidden`).
    """
    scope = build_host_scope(request, devices)
    if request.tier == "light":
        _check_light(scope)
    chosen = _list_chosen(scope, devices)
    for demand in list_demands(scope):
        _check_memory(demand, devices, chosen)
    check_holders(request, devices, minds_unseen=devices.worker.state not in _THERE)
    _check_contexts(request, devices)


def resolve_tier(request: BenchRequest, scope: Scope) -> Tier:
    """Returns the tier that was asked for; else light where the bench keeps to its bounds, else full."""
    if request.tier is not None:
        return request.tier
    most = max((demand.device_bytes for demand in list_demands(scope)), default=0)
    return "light" if scope.suite == "quick" and most <= LIGHT_BYTES and scope.limit_s <= LIGHT_S else "full"


def list_opened(request: BenchRequest, devices: Devices) -> tuple[Device, ...]:
    """Returns the devices that JAX opens for a bench: of accelerators all that it sees, whichever are measured.

    A device that JAX did not show, though it showed others, is hidden from it (CUDA_VISIBLE_DEVICES) and not opened.
    """
    if request.tier == "passive":
        return ()
    if devices.platform == "cpu":
        return tuple(_list_chosen(build_host_scope(request, devices), devices))
    shown = tuple(device for device in devices.devices if device.jax is not None)
    return shown or devices.devices


def find_closed(request: BenchRequest, devices: Devices) -> str:
    """Returns why no bench can open the devices, which is nobody's fault: cases are skipped then; "" if one can.

    A device in prohibited mode takes no context at all, and one in exclusive mode none beside its holder's.
    """
    for device in list_opened(request, devices):
        if device.compute_mode == "prohibited":
            return f"device {device.local_index} ({device.kind}) is in compute mode prohibited: no process may open it"
    return ""


def list_demands(scope: Scope) -> Iterator[Demand]:
    """Yields the largest demand of each case."""
    for case in scope.cases:
        size = max(_list_sizes(case, scope))
        taking_part = _list_devices(case, scope)
        if taking_part:
            yield Demand(case, size, taking_part, APPETITES[case](len(taking_part)))


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
    if devices.platform == "cpu":
        total = demand.host_bytes + demand.device_bytes * len(demand.devices)
        multiple = demand.appetite.host + demand.appetite.device * len(demand.devices)
        _check_room(demand, "the host", total, multiple, _host_room(devices))
        return
    _check_room(demand, "the host", demand.host_bytes, demand.appetite.host, _host_room(devices))
    for device in chosen:
        where = f"device {device.local_index}"
        _check_room(demand, where, demand.device_bytes, demand.appetite.device, _device_room(device))


def _host_room(devices: Devices) -> int | None:
    return devices.cpu.memory_bytes if devices.cpu.available_bytes is None else devices.cpu.available_bytes


def _device_room(device: Device) -> int | None:
    memory = device.memory
    if memory is None:
        return None
    if memory.capacity_bytes is None:
        return memory.limit_bytes
    left = max(0, memory.capacity_bytes - _count_others(device, memory.used_bytes or 0))
    return left if memory.limit_bytes is None else min(left, memory.limit_bytes)


def _count_others(device: Device, used_bytes: int) -> int:
    """Returns what of the memory in use is not the agent's own; beside others, our context is to be added."""
    own_bytes = sum(process.used_bytes or 0 for process in device.processes or () if process.own)
    return max(0, used_bytes - own_bytes) + (CONTEXT_BYTES if _needs_context(device) else 0)


def _needs_context(device: Device) -> bool:
    """Tells whether a bench would add a context to somebody else's, or to what may be somebody's."""
    if device.processes is None:
        return device.platform == "gpu"
    return bool(device.processes) and not any(process.own for process in device.processes)


def _check_contexts(request: BenchRequest, devices: Devices) -> None:
    """Refuses a bench whose context does not fit on a GPU that JAX opens, measured or not."""
    if _is_open(devices):
        return  # the contexts are there
    for device in list_opened(request, devices):
        memory = device.memory
        if device.platform != "gpu" or memory is None or memory.capacity_bytes is None or memory.used_bytes is None:
            continue
        left = max(0, memory.capacity_bytes - memory.used_bytes)
        if _needs_context(device) and left < CONTEXT_BYTES:
            raise _refuse_full(device, left)


def _refuse_full(device: Device, left_bytes: int) -> DeviceBusyError:
    others = _list_others(device)
    who = _name(others) if others else "others, who could not be looked at,"
    until = f"wait for process {others[0].pid} to end" if others else "wait until there is room"
    return DeviceBusyError(
        f"a bench would open device {device.local_index} ({device.kind}) too, of which {who} "
        f"{'leaves' if len(others) == 1 else 'leave'} {left_bytes} bytes; a CUDA context takes up to {CONTEXT_BYTES}",
        hint=f"{until}, or hide the device from the agent (CUDA_VISIBLE_DEVICES){_ALL_ARE_OPENED}",
    )


def _is_open(devices: Devices) -> bool:
    return devices.worker.state in _OPEN


def _check_room(demand: Demand, where: str, need_bytes: int, multiple: float, room_bytes: int | None) -> None:
    usable = UNTOLD_BYTES if room_bytes is None else int(USABLE_RATIO * room_bytes)
    if need_bytes <= usable:
        return
    there = (
        f"its memory is not known, and without that the limit is {usable} bytes"
        if room_bytes is None
        else f"it has {room_bytes} bytes, of which a bench takes at most {USABLE_RATIO:.0%}"
    )
    detail = (
        f"{demand.case} with S = {demand.size_bytes} bytes on {len(demand.devices)} device(s) needs "
        f"{multiple:.3g} × S = {need_bytes} bytes on {where}; {there}"
    )
    field = "matmul_size" if demand.case == "matmul" else "sizes_bytes"
    raise BenchTooLargeError(
        detail, hint=_suggest(demand, usable / multiple), errors=[{"field": field, "message": detail}]
    )


def _suggest(demand: Demand, fits_bytes: float) -> str:
    """Returns a request that fits: S rounded down to a power of two, n to a multiple of 8."""
    if demand.case == "matmul":
        n = 8 * int(math.sqrt(fits_bytes / (3 * 4)) // 8)
        return f'use "matmul_size": {n}' if n >= 8 else "there is not enough memory for any matmul"
    if fits_bytes < 4:
        return "there is not enough memory for any bench"
    return f'use "sizes_bytes": [{2 ** int(math.log2(fits_bytes))}]'


def check_holders(request: BenchRequest, devices: Devices, *, minds_unseen: bool = True) -> None:
    """Does nothing if nobody else is in the way of the bench.

    Holders that could not be looked at may be anybody. Only of a device that one process at a time can use, and that
    the agent's own worker has open, it is known all the same that nobody else is there.

    Args:
        minds_unseen: False where only a holder that is seen counts.

    Raises:
        DeviceBusyError: a process has a device to itself that JAX would open, or the tier needs the devices idle; or
            there may be one, since nobody could look.
    """
    tier = resolve_tier(request, build_host_scope(request, devices))
    for device in _list_needed(request, devices, tier):
        others = _list_others(device)
        if others:
            raise _refuse_busy(tier, device, others, exclusive=is_exclusive(device))
        if minds_unseen and _is_unseen(device, devices):
            raise _refuse_unseen(tier, device)


def is_hidden(request: BenchRequest, devices: Devices) -> bool:
    """Tells whether the agent's own worker may be why nobody can tell who else has a device that must be idle."""
    needed = _list_needed(request, devices, resolve_tier(request, build_host_scope(request, devices)))
    return devices.worker.state in _THERE and any(_is_unseen(device, devices) for device in needed)


def _is_unseen(device: Device, devices: Devices) -> bool:
    return device.processes is None and not (is_exclusive(device) and _is_open(devices))


def _list_needed(request: BenchRequest, devices: Devices, tier: Tier) -> list[Device]:
    """Returns the devices that a bench needs for itself."""
    exclusive = [device for device in list_opened(request, devices) if is_exclusive(device)]
    if tier != "full":
        return exclusive
    chosen = _list_chosen(build_host_scope(request, devices), devices)
    return [*exclusive, *(device for device in chosen if device not in exclusive and device.platform != "cpu")]


def is_exclusive(device: Device) -> bool:
    """Tells whether one process at a time can use a device."""
    return device.platform == "tpu" or device.compute_mode == "exclusive_process"


def _list_others(device: Device) -> list[DeviceProcess]:
    """Returns the processes that are seen to hold a device and are not the agent's; `_is_unseen`: there may be more."""
    return [process for process in device.processes or () if not process.own]


def _list_chosen(scope: Scope, devices: Devices) -> list[Device]:
    return [one for one in devices.devices if one.local_index in scope.devices]


def describe_process(process: DeviceProcess) -> str:
    """Returns a process as a refusal names it: "process 7 (python train.py) in slurm 4711"."""
    place = name_place(process)
    name = process.command or process.name or "name not known"
    return f"process {process.pid} ({name})" + (f" in {place}" if place else "")


def _name(processes: Sequence[DeviceProcess]) -> str:
    more = f" and {len(processes) - 3} more" if len(processes) > 3 else ""
    return ", ".join(map(describe_process, processes[:3])) + more


def _describe_need(*, exclusive: bool) -> str:
    return "one process at a time can use it" if exclusive else "the full tier needs idle devices"


def _refuse_busy(tier: Tier, device: Device, others: Sequence[DeviceProcess], *, exclusive: bool) -> DeviceBusyError:
    hold = "holds" if len(others) == 1 else "hold"
    return DeviceBusyError(
        f"a bench of the {tier} tier would open device {device.local_index} ({device.kind}), which {_name(others)} "
        f"{hold}; {_describe_need(exclusive=exclusive)}",
        hint=f"wait for process {others[0].pid} to end"
        + (_ALL_ARE_OPENED if exclusive else ', or name other devices: "devices": […], or use "tier": "light"'),
    )


def _refuse_unseen(tier: Tier, device: Device) -> DeviceBusyError:
    exclusive = is_exclusive(device)
    return DeviceBusyError(
        f"who holds device {device.local_index} ({device.kind}) could not be looked at, and a bench of the {tier} tier "
        f"would open it; {_describe_need(exclusive=exclusive)}, and a bench opens none unseen",
        hint=_LET_IT_LOOK + (_ALL_ARE_OPENED if exclusive else ', or "tier": "light", which shares a GPU'),
    )


def _check_light(scope: Scope) -> None:
    for demand in list_demands(scope):
        if demand.device_bytes > LIGHT_BYTES:
            detail = (
                f"{demand.case} with S = {demand.size_bytes} bytes takes {demand.device_bytes} bytes of a device; the "
                f"light tier takes at most {LIGHT_BYTES}"
            )
            field = "matmul_size" if demand.case == "matmul" else "sizes_bytes"
            hint = f'{_suggest(demand, LIGHT_BYTES / demand.appetite.device)}, or "tier": "full"'
            raise BenchTooLargeError(detail, hint=hint, errors=[{"field": field, "message": detail}])
    if scope.limit_s > LIGHT_S:
        detail = f"max_s is {scope.limit_s:g}; the light tier takes at most {LIGHT_S:g} s"
        hint = f'use "max_s": {LIGHT_S:g}, or "tier": "full"'
        raise InvalidRequestError(detail, hint=hint, errors=[{"field": "max_s", "message": detail}])
