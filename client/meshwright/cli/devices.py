"""`meshwright devices` and `meshwright release`: what is here, and who holds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from meshwright.cli.output import (
    Column,
    build_table,
    clean,
    format_bytes,
    format_time,
    print_notices,
    print_warning,
    style_state,
)
from meshwright.cli.session import FAILED, OK, Session
from meshwright.wire.base import Evidence
from meshwright.wire.devices import Device, DeviceProcess, Devices, Holder, Link, Release

LEGEND: Final = {
    "NV": "NV#: # NVLinks",
    "PIX": "PIX: one PCIe switch",
    "PXB": "PXB: several PCIe switches",
    "PHB": "PHB: the CPU's PCIe host bridge",
    "NODE": "NODE: between host bridges of a NUMA node",
    "SYS": "SYS: between NUMA nodes",
    "ICI": "ICI: a link of the TPU torus",
    "HOST": "HOST: the host's memory",
}
"""What the link kinds mean, as `nvidia-smi topo -m` has them, and ours."""


def show_devices(
    session: Session,
    links: Annotated[bool, typer.Option("--links", help="Also how they are joined.")] = False,
) -> int:
    """Show the host's devices: memory, place, links, who holds them.

    With each fact stands how it is known, and how old it is.
    """
    with session.open() as client:
        reply = client.devices()
    if session.as_json:
        session.print_json(reply)
        return OK
    for line in describe_host(reply):
        session.out.print(line, soft_wrap=True)
    session.out.print()
    session.out.print(build_table(COLUMNS, reply.devices))
    if links:
        session.out.print()
        _print_links(session, reply)
    print_notices(session, reply.warnings)
    return OK


def describe_host(reply: Devices) -> list[Text]:
    """Returns the lines above the table: host, processors, software, worker."""
    host, cpu, software, worker = reply.host, reply.cpu, reply.software, reply.worker
    versions = {
        "agent": software.agent,
        "jax": software.jax,
        "jaxlib": software.jaxlib,
        "libtpu": software.libtpu,
        "driver": software.driver,
        "CUDA": software.cuda_driver,
    }
    threads = f"{cpu.usable_threads} of {cpu.threads} threads usable" if cpu.threads and cpu.usable_threads else ""
    used = f"{format_bytes(cpu.available_bytes)} free of" if cpu.available_bytes is not None else ""
    memory = f"{used} {format_bytes(cpu.memory_bytes)} memory".strip() if cpu.memory_bytes is not None else ""
    state = Text.assemble("worker ", style_state(worker.state), f", generation {worker.generation}")
    lines = [
        Text(_join(host.name, f"{len(reply.devices)} {reply.platform} devices", host.container), "bold"),
        Text(_join(cpu.model or cpu.architecture, threads, memory)),
        Text(_join(*(f"{name} {version}" for name, version in versions.items() if version))),
        state.append(clean(f", pid {worker.pid}") if worker.pid else ""),
    ]
    if worker.last_error:
        lines.append(Text(f"  last error: {clean(worker.last_error)}", "red"))
    return lines


def _join(*parts: str | None) -> str:
    return clean(" · ".join(part for part in parts if part))


def _describe_kind(device: Device) -> str:
    mig = f" MIG {device.mig.profile or ''}".rstrip() if device.mig else ""
    mode = f" [{device.compute_mode}]" if device.compute_mode not in {None, "default"} else ""
    return f"{device.kind}{mig}{' (virtual)' if device.virtual else ''}{mode}"


def _describe_memory(device: Device) -> str:
    memory = device.memory
    if memory is None or memory.capacity_bytes is None:
        return ""
    used = "?" if memory.used_bytes is None else format_bytes(memory.used_bytes)
    return f"{used} / {format_bytes(memory.capacity_bytes)}"


def _describe_place(device: Device) -> str:
    if device.coords is None:
        return device.pci_bus_id or ""
    core = f" core {device.core_on_chip}" if device.core_on_chip else ""
    return f"({','.join(map(str, device.coords))}){core}"


def _describe_basis(fact: Evidence) -> str:
    return f"{fact.basis}, {format_time(fact.age_s)}"


def describe_processes(processes: Iterable[DeviceProcess] | None) -> str:
    """Returns who holds a device: "free", "?" where nobody could look, or pid and name of each."""
    if processes is None:
        return "?"
    return (
        ", ".join(
            f"{process.pid} {process.name or process.command or ''}".rstrip() + (" (agent)" if process.own else "")
            for process in processes
        )
        or "free"
    )


COLUMNS: Final[tuple[Column[Device], ...]] = (
    Column("#", lambda device: str(device.local_index), "right"),
    Column("kind", _describe_kind),
    Column("memory used / total", _describe_memory, "right"),
    Column("place", _describe_place),
    Column("NUMA", lambda device: "" if device.numa_node is None else str(device.numa_node), "right"),
    Column("JAX id", lambda device: "" if device.jax is None else str(device.jax.id), "right"),
    Column("held by", lambda device: describe_processes(device.processes)),
    Column("basis, age", _describe_basis),
)


def _print_links(session: Session, reply: Devices) -> None:
    if not reply.links:
        session.out.print("links: none known")
        return
    session.out.print(build_matrix(reply))
    kinds = {_find_legend(link.kind) for link in reply.links}
    session.out.print("X: itself · " + " · ".join(text for kind, text in LEGEND.items() if kind in kinds))


def _find_legend(kind: str) -> str:
    return "NV" if kind.startswith("NV") else kind


def build_matrix(reply: Devices) -> Table:
    """Returns the kinds of the links between all pairs of devices, as `nvidia-smi topo -m` shows them."""
    by_pair = {frozenset((link.a, link.b)): link for link in reply.links}
    headings = [str(device.local_index) for device in reply.devices]
    columns = [Column[int]("", lambda row: headings[row], "right")]
    columns += [
        Column(headings[column], lambda row, column=column: _name_link(by_pair, row, column))  # type: ignore[misc]
        for column in range(len(headings))
    ]
    return build_table(columns, range(len(headings)))


def _name_link(by_pair: dict[frozenset[int], Link], a: int, b: int) -> str:
    if a == b:
        return "X"
    link = by_pair.get(frozenset((a, b)))
    return link.kind if link else "-"


def release_devices(session: Session) -> int:
    """Make the agent let go of the devices, so that a job can start.

    Running benches are cancelled.

    Exit codes: 0 no process of the agent holds a device any more · 1 one still does · 2 no answer.
    """
    with session.open() as client:
        reply = client.release()
    if session.as_json:
        session.print_json(reply)
    else:
        _print_release(session, reply)
    return OK if reply.released else FAILED


def _print_release(session: Session, reply: Release) -> None:
    how = "its worker had to be killed" if reply.killed else "its worker let go"
    word = Text("released", "green") if reply.released else Text("not released", "bold red")
    session.out.print(word + Text(f" after {format_time(reply.took_s)}: {how}"))
    for run_id in reply.cancelled_runs:
        session.out.print(f"cancelled {clean(run_id)}")
    if reply.held is None:
        print_warning(session, "nobody could look in time who else holds the devices")
    elif reply.held:
        session.out.print(build_table(HOLDER_COLUMNS, reply.held))


HOLDER_COLUMNS: Final[tuple[Column[Holder], ...]] = (
    Column("still held by", lambda holder: f"{holder.pid}{' (agent)' if holder.own else ''}"),
    Column("name", lambda holder: holder.name or ""),
    Column("devices", lambda holder: ", ".join(holder.devices)),
    Column("command", lambda holder: holder.command or ""),
)
