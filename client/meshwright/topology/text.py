"""A host's devices as text for a terminal: one line a device, as in gpustat, and a matrix as in nvidia-smi topo.

Rule: plain text of at most `WIDTH` columns, the same wherever it is printed; people's units (GiB, minutes) live here.
Prints only facts of the reply.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Final

from meshwright.topology.links import format_granules, format_pairs, join_parts
from meshwright.wire.devices import Device, DeviceProcess, Devices

WIDTH: Final = 100
MAX_LISTED_DEVICES: Final = 16
UUID_SHOWN: Final = 12
"""Characters of a GPU's uuid: "GPU-" and the first eight digits."""

Cell = Callable[[Device], str]


def format_devices(devices: Devices) -> str:
    """Returns the host, one line a device, the link matrix and the warnings.

    Columns and lines without known values are left out. Lines but for the matrix are cut at `WIDTH`. Ends with a line
    feed.
    """
    is_shown = devices.links or len(devices.devices) <= MAX_LISTED_DEVICES
    pairs = format_pairs(devices, MAX_LISTED_DEVICES) if is_shown else []
    others = (_format_head(devices), _format_rows(devices.devices), format_granules(devices.granules))
    head, rows, granules = (list(map(clip, lines)) for lines in others)
    lines = join_parts(head, rows, pairs, granules, _format_warnings(devices))
    return "".join(f"{line}\n" for line in lines)


def clip(line: str) -> str:
    """Returns a line cut to `WIDTH` columns, with an ellipsis for the lost part."""
    line = line.rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def format_gib(count_bytes: int | None) -> str:
    """Returns bytes in GiB with one decimal; "?" for an unknown value."""
    return "?" if count_bytes is None else f"{count_bytes / 2**30:.1f}"


def format_age(age_s: float) -> str:
    """Returns an age in readable form: "3 s", "12 min", "5 h", "4 d"."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * length_s:
            return f"{age_s / length_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def _format_head(devices: Devices) -> list[str]:
    host, cpu, software, worker = devices.host, devices.cpu, devices.software, devices.worker
    counts = {"socket": cpu.sockets, "core": cpu.cores, "thread": cpu.threads}
    parts = [f"{number} {name}{'s' * (number != 1)}" for name, number in counts.items() if number is not None]
    if cpu.usable_threads not in (None, cpu.threads):
        parts.append(f"{cpu.usable_threads} usable")
    memory = None if cpu.memory_bytes is None else f"{format_gib(cpu.memory_bytes)} GiB"
    state = f"worker {worker.state}" + (f", generation {worker.generation}" if worker.generation else "")
    is_seen = any(device.jax_id is not None for device in devices.devices)
    seen = f"{software.basis}, seen {format_age(software.age_s)} ago" if is_seen else None
    facts = {
        "": "declared: no device of these was looked at" if is_declared(devices) else "",
        "host": _join(host.name, host.operating_system, host.kernel and f"kernel {host.kernel}", host.container),
        "cpu": _join(cpu.model, memory, *parts),
        "driver": software.driver and f"{software.driver} (CUDA {software.cuda_driver or '?'})",
        "jax": _join(software.jax or "not seen yet", state, seen),
    }
    return [f"{name:<8}{text}" for name, text in facts.items() if text]


def _join(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def _format_rows(devices: Sequence[Device]) -> list[str]:
    columns = [[cell(device) for device in devices] for cell in _CELLS]
    kept = [column for column in columns if any(column)]
    widths = [max(map(len, column)) for column in kept]
    names = name_devices(devices)
    name_width = max(map(len, names), default=0)
    return [
        f"[{names[row]:>{name_width}}] "
        + " | ".join(f"{column[row]:<{width}}" for column, width in zip(kept, widths, strict=True)).rstrip(" |")
        for row, device in enumerate(devices)
    ]


def name_devices(devices: Sequence[Device]) -> list[str]:
    """Returns the short name of each device: its local index; for several hosts "host-3/0"."""
    if len({device.host for device in devices}) < 2:
        return [str(device.local_index) for device in devices]
    return [f"{device.host}/{device.local_index}" for device in devices]


def is_declared(devices: Devices) -> bool:
    """Returns whether all devices are declared, so that none was inspected."""
    return bool(devices.devices) and all(device.basis == "declared" for device in devices.devices)


def describe_kind(device: Device) -> str:
    """Returns the product's name; of a MIG instance with its profile and the card that it is a part of."""
    if device.mig is None:
        return device.kind
    profile = f" MIG {device.mig.profile or ''}".rstrip() if " MIG " not in device.kind else ""
    return f"{device.kind}{profile} of {device.mig.parent_uuid[:UUID_SHOWN]}"


def _show_memory(device: Device) -> str:
    memory = device.memory
    if memory is None:
        return ""
    total = memory.capacity_bytes if memory.capacity_bytes is not None else memory.limit_bytes
    used = "" if memory.used_bytes is None else f"{format_gib(memory.used_bytes):>5} / "
    return f"{used}{format_gib(total):>5} GiB"


def describe_coords(device: Device) -> str:
    """Returns the place of a TPU core: "(0,1,2) core 1"; empty where there is none."""
    if device.coords is None:
        return ""
    core = f" core {device.core_on_chip}" if device.core_on_chip else ""
    return f"({','.join(map(str, device.coords))}){core}"


def _show_processes(device: Device) -> str:
    if device.processes is None:
        return "holders unknown"
    return ", ".join(_show_process(process) for process in device.processes)


def _show_process(process: DeviceProcess) -> str:
    used = "" if process.used_bytes is None else f" ({format_gib(process.used_bytes)} GiB)"
    where = f" in {process.job}" if process.job else ""
    return f"{'agent' if process.own else process.name or '?'}/{process.pid}{used}{where}"


def describe_lease(device: Device) -> str:
    """Returns the remaining time and purpose of a device's lease: "leased, 58 min left: job 7"; "" where it is not
    leased."""
    lease = device.lease
    if lease is None:
        return ""
    return f"leased, {format_age(lease.expires_in_s)} left: {lease.purpose}"


_CELLS: Final[tuple[Cell, ...]] = (
    lambda device: f"{describe_kind(device).removeprefix('NVIDIA ')}{' (virtual)' * device.virtual}",
    describe_coords,
    lambda device: device.pci_bus_id or "",
    lambda device: "" if device.numa_node is None else f"NUMA {device.numa_node}",
    _show_memory,
    lambda device: "" if device.compute_mode in {None, "default"} else str(device.compute_mode),
    lambda device: "" if device.jax_id is None else f"jax {device.jax_id}",
    # one cell, so that the lease of one device does not push the processes of the others off the screen
    lambda device: " | ".join(filter(None, (describe_lease(device), _show_processes(device)))),
)


def _format_warnings(devices: Devices) -> list[str]:
    texts = (f"warning: {_join(notice.message, notice.hint)}" for notice in devices.warnings)
    return [line for text in texts for line in textwrap.wrap(text, WIDTH, subsequent_indent="         ")]
