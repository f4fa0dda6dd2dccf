"""`meshwright devices`, `devices release` and `env`: the devices, who uses them, and a job's environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import typer
from rich.text import Text

from meshwright.cli.fleet import HostsOption, is_asked, show_fleet
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
from meshwright.environment import format_exports
from meshwright.topology.links import format_links
from meshwright.topology.text import describe_coords, describe_kind, describe_lease, is_declared
from meshwright.wire.devices import Device, DeviceProcess, Devices, HoldersUnknown, Release


def show_devices(
    session: Session,
    topology: Annotated[bool, typer.Option("--topology", help="How devices are joined, as a matrix of links.")] = False,
    hosts: HostsOption = None,
) -> int:
    """Show the host's devices: memory, place, who holds them.

    Each fact has its basis and its age. --topology shows how devices are joined, as nvidia-smi topo -m does, and on
    TPUs how many hops apart they are.
    """
    if is_asked(session, hosts):
        if topology:
            raise typer.BadParameter("it is of one host; ask that one with --url", param_hint="--topology")
        return show_fleet(session, hosts)
    with session.open() as client:
        reply = client.devices()
    if session.as_json:
        shown = {"devices", "links"} if topology else None
        session.print_lines(reply.model_dump_json(include=shown, exclude_unset=True))
        return OK
    if topology:
        session.print_lines(*map(clean, format_links(reply)))  # a matrix that is folded cannot be read
    else:
        for line in describe_host(reply):
            session.out.print(line, soft_wrap=True)
        session.out.print()
        session.out.print(build_table((_name_devices(reply), *COLUMNS), reply.devices))
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
    declared = "declared: none was looked at" if is_declared(reply) else None
    count = f"{len(reply.devices)} {reply.platform} device{'s' * (len(reply.devices) != 1)}"
    lines = [
        Text(_join(host.name, count, declared, host.container), "bold"),
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
    mode = f" [{device.compute_mode}]" if device.compute_mode not in {None, "default"} else ""
    return f"{describe_kind(device)}{' (virtual)' if device.virtual else ''}{mode}"


def _describe_memory(device: Device) -> str:
    memory = device.memory
    if memory is None or memory.capacity_bytes is None:
        return ""
    used = "?" if memory.used_bytes is None else format_bytes(memory.used_bytes)
    return f"{used} / {format_bytes(memory.capacity_bytes)}"


def describe_processes(processes: Iterable[DeviceProcess] | None) -> str:
    """Returns the processes that use a device: "free", "?" where they are unknown, or pid and name of each."""
    if processes is None:
        return "?"
    named = (
        f"{process.pid} {process.name or process.command or ''}".rstrip() + (" (agent)" if process.own else "")
        for process in processes
    )
    return ", ".join(named) or "free"


def describe_holders(device: Device) -> str:
    """Returns the lease of a device and the processes that hold it; "free" where there is neither."""
    lease, processes = describe_lease(device), describe_processes(device.processes)
    return processes if not lease else lease if processes == "free" else f"{processes}; {lease}"


def _name_devices(reply: Devices) -> Column[Device]:
    """Returns the column of the devices' numbers; those of several hosts are named with them."""
    several = len({device.host for device in reply.devices}) > 1
    return Column("#", lambda each: clean(f"{each.host}/" if several else "") + str(each.local_index), "right")


COLUMNS: Final[tuple[Column[Device], ...]] = (
    Column("kind", _describe_kind),
    Column("memory used / total", _describe_memory, "right"),
    Column("place", lambda device: describe_coords(device) or device.pci_bus_id or ""),
    Column("NUMA", lambda device: "" if device.numa_node is None else str(device.numa_node), "right"),
    Column("JAX id", lambda device: "" if device.jax_id is None else str(device.jax_id), "right"),
    Column("held by", describe_holders),
    Column("basis, age", lambda device: f"{device.basis}, {format_time(device.age_s)}"),
)


def release_devices(session: Session) -> int:
    """Make the agent release the devices, so that a job can start.

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
    word = Text("released", "green") if reply.released else Text("not released", "bold red")
    why = [] if reply.released else ["a process of the agent still holds a device"]
    if reply.worker_killed:
        why.append("the agent's worker had to be killed")
    session.out.print(word + Text(f": {'; '.join(why)}" if why else ""))
    for run_id in reply.cancelled_runs:
        session.out.print(f"cancelled {clean(run_id)}")
    if reply.holders is None:
        print_warning(session, f"who else holds the devices is not known: {_HOLDERS_UNKNOWN[reply.holders_unknown]}")
    elif reply.holders:
        session.out.print(build_table(HOLDER_COLUMNS, reply.holders))


_HOLDERS_UNKNOWN: Final[dict[HoldersUnknown | None, str]] = {
    "driver_timeout": "the driver did not answer in time",
    "no_permission": "the agent may not look into all processes of the host (runbook: Rights)",
    None: "the agent did not look",
}
HOLDER_COLUMNS: Final[tuple[Column[DeviceProcess], ...]] = (
    Column("still held by", lambda holder: f"{holder.pid}{' (agent)' if holder.own else ''}"),
    Column("name", lambda holder: holder.name or ""),
    Column("devices", lambda holder: ", ".join(holder.devices)),
    Column("command", lambda holder: holder.command or ""),
)


def show_environment(
    session: Session,
    memory_strategy: Annotated[
        Literal["conservative", "balanced", "aggressive"],
        typer.Option(help="How much of a device's memory the job may take."),
    ] = "balanced",
) -> int:
    """Print the variables that a job should start with.

    As lines for a shell: eval "$(meshwright env)".
    """
    with session.open() as client:
        reply = client.environment(memory_strategy)
    if session.as_json:
        session.print_json(reply)
        return OK
    session.print_lines(*format_exports(reply.variables))
    return OK
