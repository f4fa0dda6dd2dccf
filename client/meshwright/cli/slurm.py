"""`meshwright slurm`: lines for Slurm's gres.conf and topology.yaml, from what the agents see.

Rule: only what was seen is written; a host that did not answer, or whose devices Slurm could not name, is an error and
not a shorter file. Writes nothing but stdout.

Source: gres.conf(5) and topology.yaml(5) of Slurm 25 (github.com/SchedMD/slurm, doc/man/man5).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import typer

from meshwright.cli.fleet import HostsOption, open_fleet, read_limit
from meshwright.cli.output import print_warning
from meshwright.cli.session import OK, Session
from meshwright.errors import FleetIncompleteError, PlanInfeasibleError
from meshwright.wire.devices import Device, Devices

What = Literal["gres", "topology"]

SELF: Final = -1
"""In Links=, the device itself; 0 is a device without a connection of its own. Source: gres.conf(5)."""
MINOR: Final = "minor"
"""The attribute of a device that has N of /dev/nvidiaN, named as NVIDIA's DRA driver names it."""
_NVLINK: Final = re.compile(r"NV(\d+)")


def print_slurm(
    session: Session,
    what: Annotated[What, typer.Argument(metavar="gres|topology", help="Which file's lines.")],
    hosts: HostsOption = None,
) -> int:
    """Print lines for Slurm's configuration, from what is seen.

    gres: gres.conf lines of the GPUs of this host, or of --hosts, in the order of their files, with the NVLinks of each
    pair in Links=. N of File=/dev/nvidiaN is the driver's minor number; where the agent does not know it, the device's
    index, which a warning says. Hosts with MIG instances are refused: an instance takes several files, whose numbers
    change when the card is divided anew; AutoDetect=nvml finds them.

    topology: topology.yaml of --hosts, a block for each NVLink domain or TPU slice.

    Exit codes: 0 printed · 1 there is no such line for these devices · 2 usage, or a host did not answer.
    """
    if what == "topology" and hosts is None:
        raise typer.BadParameter("topology.yaml is about many hosts; name them", param_hint="--hosts")
    seen = _see(session, hosts)
    if what == "gres":
        for devices in seen:
            _warn_of_guess(session, devices)
        session.print_lines(*(line for devices in seen for line in format_gres(devices)))
    else:
        session.print_lines(*format_topology(seen))
    return OK


def _see(session: Session, hosts: str | None) -> Sequence[Devices]:
    if hosts is None:
        with session.open() as client:
            return [client.devices()]
    with open_fleet(session, hosts) as fleet:
        state = fleet.devices(timeout_s=read_limit(session))
    if state.failed:
        missing = "; ".join(str(host) for host in state.hosts if host.devices is None)
        raise FleetIncompleteError(
            f"{len(state.failed)} of {len(state.hosts)} hosts did not answer: {missing}; Slurm needs them all"
        )
    return [host.devices for host in state.hosts if host.devices is not None]


def _warn_of_guess(session: Session, devices: Devices) -> None:
    unknown = [str(device.local_index) for device in devices.devices if MINOR not in device.attributes]
    if unknown and devices.platform == "gpu":
        detail = (
            f"{devices.host.name}: the driver tells no minor number of device {', '.join(unknown)}; File= is a guess"
        )
        print_warning(session, detail, "hold it against `nvidia-smi -q` (Minor Number)")


def format_gres(devices: Devices) -> list[str]:
    """Returns one line a GPU, in the order of their files, which is that of Links= too.

    Raises:
        PlanInfeasibleError: the host has no whole GPUs.
    """
    name, gpus = devices.host.name, devices.devices
    if devices.platform != "gpu":
        raise PlanInfeasibleError(f"{name} has {devices.platform} devices; gres.conf lines with Links= are of GPUs")
    if any(device.mig for device in gpus):
        raise PlanInfeasibleError(
            f"{name} has MIG instances, whose files Slurm must find itself",
            hint="write AutoDetect=nvml in gres.conf for this host",
        )
    counts = _count_links(devices)
    numbers = _number_files(devices)
    ordered = sorted(gpus, key=lambda device: numbers[device.local_index])
    return [
        f"NodeName={name} Name=gpu Type={format_type(device)} File=/dev/nvidia{numbers[device.local_index]} "
        f"Links={','.join(str(counts.get((device.local_index, other.local_index), 0)) for other in ordered)}"
        for device in ordered
    ]


def _number_files(devices: Devices) -> dict[int, int]:
    """Returns local index → N of /dev/nvidiaN: of all as the driver says, or of all the index."""
    told = {device.local_index: device.attributes.get(MINOR) for device in devices.devices}
    numbers = {index: minor for index, minor in told.items() if isinstance(minor, int)}
    return numbers if len(numbers) == len(told) else {index: index for index in told}


def format_type(device: Device) -> str:
    """Returns the GPU's kind as AutoDetect=nvml writes it: in small letters, words joined by _."""
    return re.sub(r"[^a-z0-9]+", "_", device.kind.lower()).strip("_")


def _count_links(devices: Devices) -> dict[tuple[int, int], int]:
    counts = {(device.local_index, device.local_index): SELF for device in devices.devices}
    for link in devices.links:
        if match := _NVLINK.fullmatch(link.kind):
            counts[link.a, link.b] = counts[link.b, link.a] = link.count or int(match[1])
    return counts


def format_topology(seen: Sequence[Devices]) -> list[str]:
    """Returns topology.yaml: the hosts of each NVLink domain or slice are a block.

    Raises:
        PlanInfeasibleError: a host belongs to neither.
    """
    blocks: dict[str, list[str]] = {}
    for devices in seen:
        granule = devices.granules[0] if devices.granules else None
        name = granule and (granule.domain or (granule.name if granule.kind == "slice" else None))
        if not name:
            raise PlanInfeasibleError(
                f"{devices.host.name} belongs to no NVLink domain and no TPU slice",
                hint="leave it out of --hosts; a tree of switches is not something that a host sees",
            )
        blocks.setdefault(name, []).append(devices.host.name)
    smallest = min(len(nodes) for nodes in blocks.values())
    lines = ["- topology: meshwright", "  cluster_default: true", "  block:"]
    lines += [f"    block_sizes: [{smallest}]", "    blocks:"]
    for name, nodes in blocks.items():
        lines += [f"      - block: {re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}", f"        nodes: {','.join(nodes)}"]
    return lines
