"""A host's devices as text for a terminal: one line a device, as in gpustat, and a matrix as in nvidia-smi topo.

Rule: plain text of at most `WIDTH` columns, the same wherever it is printed; people's units (GiB, minutes) live here.
Prints only facts of the reply.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from meshwright.topology.links import build_cells, count_links, format_granules, format_legend, is_known
from meshwright.wire.devices import Device, DeviceProcess, Devices

WIDTH: Final = 100
MOST_IN_MATRIX: Final = 16
UUID_SHOWN: Final = 12
"""Characters of a GPU's uuid: "GPU-" and the first eight digits."""
CONTAINER_SHOWN: Final = 12
"""Characters of a container's id that `docker ps` shows too."""

Cell = Callable[[Device], str]


def format_devices(devices: Devices, *, links: bool = True) -> str:
    """Returns the host, one line a device, the link matrix (unless `links` is false) and the warnings.

    Columns and lines without known values are left out. Ends with a line feed.
    """
    parts = [_format_head(devices), _format_rows(devices.devices)]
    if links:
        parts += [_format_links(devices), format_granules(devices.granules)]
    parts.append(_format_warnings(devices))
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "".join(f"{clip(line)}\n" for line in lines)


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
    host, cpu, software = devices.host, devices.cpu, devices.software
    driver = software.driver and f"{software.driver} (CUDA {software.cuda_driver or '?'})"
    facts = [
        ("", "declared: no device of these was looked at" if is_declared(devices) else ""),
        ("host", _join(host.name, host.operating_system, _label("kernel", host.kernel), host.container)),
        ("cpu", _join(cpu.model, _format_memory(devices), *_count_processors(devices))),
        ("driver", driver or ""),
        ("jax", _join(software.jax or "not seen yet", _format_worker(devices), _format_seen(devices))),
    ]
    return [f"{name:<8}{text}" for name, text in facts if text]


def _join(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def _label(name: str, value: object) -> str | None:
    return None if value is None else f"{name} {value}"


def _count_processors(devices: Devices) -> Iterable[str | None]:
    cpu = devices.cpu
    yield _count(cpu.sockets, "socket")
    yield _count(cpu.cores, "core")
    yield _count(cpu.threads, "thread")
    if cpu.usable_threads is not None and cpu.usable_threads != cpu.threads:
        yield f"{cpu.usable_threads} usable"


def _count(number: int | None, name: str) -> str | None:
    return None if number is None else f"{number} {name}{'' if number == 1 else 's'}"


def _format_memory(devices: Devices) -> str | None:
    total = devices.cpu.memory_bytes
    return None if total is None else f"{format_gib(total)} GiB"


def _format_worker(devices: Devices) -> str:
    worker = devices.worker
    return f"worker {worker.state}" + (f", generation {worker.generation}" if worker.generation else "")


def _format_seen(devices: Devices) -> str | None:
    seen = next((device.jax for device in devices.devices if device.jax is not None), None)
    return None if seen is None else f"{seen.basis}, seen {format_age(seen.age_s)} ago"


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


def _show_kind(device: Device) -> str:
    return f"{describe_kind(device).removeprefix('NVIDIA ')}{' (virtual)' if device.virtual else ''}"


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


def _show_coords(device: Device) -> str:
    if device.coords is None:
        return ""
    core = f" core {device.core_on_chip}" if device.core_on_chip else ""
    return f"({','.join(map(str, device.coords))}){core}"


def _show_mode(device: Device) -> str:
    return "" if device.compute_mode in {None, "default"} else str(device.compute_mode)


def _show_processes(device: Device) -> str:
    if device.processes is None:
        return "holders unknown"
    return ", ".join(_show_process(process) for process in device.processes)


def _show_process(process: DeviceProcess) -> str:
    used = "" if process.used_bytes is None else f" ({format_gib(process.used_bytes)} GiB)"
    where = name_place(process)
    return f"{'agent' if process.own else process.name or '?'}/{process.pid}{used}{f' in {where}' if where else ''}"


def name_place(process: DeviceProcess) -> str:
    """Returns the batch job, pod or container that a process runs in, the strongest that is known; else ""."""
    if process.job:
        return process.job
    if process.pod_uid:
        return f"pod {process.pod_uid}"
    return f"container {process.container[:CONTAINER_SHOWN]}" if process.container else ""


def describe_lease(device: Device) -> str:
    """Returns the remaining time and purpose of a device's lease: "leased, 58 min left: job 7"; "" where it is not
    leased."""
    lease = device.lease
    if lease is None:
        return ""
    left = "" if lease.expires_in_s is None else f", {format_age(lease.expires_in_s)} left"
    return f"leased{left}: {lease.purpose}"


_CELLS: Final[tuple[Cell, ...]] = (
    _show_kind,
    _show_coords,
    lambda device: device.pci_bus_id or "",
    lambda device: "" if device.numa_node is None else f"NUMA {device.numa_node}",
    _show_memory,
    _show_mode,
    lambda device: "" if device.jax is None else f"jax {device.jax.id}",
    # one cell, so that the lease of one device does not push the processes of the others off the screen
    lambda device: " | ".join(filter(None, (describe_lease(device), _show_processes(device)))),
)


def _format_links(devices: Devices) -> list[str]:
    if len(devices.devices) > MOST_IN_MATRIX:
        return count_links(devices) if devices.links else []
    cells = build_cells(devices)
    if not is_known(cells):
        return []
    return [*_format_matrix(devices, cells), "", *format_legend(devices, cells)]


def _format_matrix(devices: Devices, cells: Sequence[Sequence[str]]) -> list[str]:
    """Returns the narrow matrix: 16 devices by their numbers fit into `WIDTH`."""
    names = [str(device.local_index) for device in devices.devices]
    nodes = ["" if device.numa_node is None else str(device.numa_node) for device in devices.devices]
    width = max(len(text) for row in (names, *cells) for text in row)
    head = " " * 4 + " ".join(f"{name:^{width}}" for name in names) + ("  NUMA" if any(nodes) else "")
    rows = (
        f"{name:>3} " + " ".join(f"{text:^{width}}" for text in row) + f"  {node:^4}"
        for name, row, node in zip(names, cells, nodes, strict=True)
    )
    return [head.rstrip(), *(row.rstrip() for row in rows)]


def _format_warnings(devices: Devices) -> list[str]:
    texts = (f"warning: {_join(notice.message, notice.hint)}" for notice in devices.warnings)
    return [line for text in texts for line in textwrap.wrap(text, WIDTH, subsequent_indent="         ")]
