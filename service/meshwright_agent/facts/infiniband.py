"""Ports of network adapters with RDMA, from /sys/class/infiniband: InfiniBand, RoCE and EFA.

The kernel lists all of them there, whatever the link layer. Software adapters (rxe, siw) are left out, and so are
virtual and scalable functions, which share the port of their card. In a virtual machine a virtual function is the card.
Drivers answer some files with EINVAL or ENODEV, and EFA and virtual functions lack counters: what cannot be read is
None or absent.

Sources: Linux, Documentation/ABI/stable/sysfs-class-infiniband and testing/sysfs-class-net (carrier_down_count);
drivers/infiniband/core/sysfs.c; NVIDIA, "Understanding mlx5 Linux Counters and Status Parameters".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from meshwright_agent.facts.model import UP, NicFacts
from meshwright_agent.facts.sysfs import list_folder, parse_int, read_int, read_link, read_pci_path, read_text

FLAPS: Final = ("link_downed", "carrier_down_count")
"""How often the link went down: as an InfiniBand port counts, and as the kernel counts for a network interface."""
_COUNTERS: Final = (
    *("link_downed", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors"),
    *("symbol_error", "port_rcv_errors", "port_xmit_discards", "VL15_dropped"),
)
_HW_COUNTERS: Final = (
    *("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "np_cnp_sent", "rp_cnp_handled"),
)
_ATTRIBUTES: Final = ("hca_type", "fw_ver", "board_id", "node_guid")
_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ACCELERATOR_CLASSES: Final = ("0x0302", "0x0380", "0x1200")
"""PCI classes of cards that compute: 3D and display controllers that are no VGA, and processing accelerators."""
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?) Gb/sec\b")


def read_nics(sysfs: Path, accelerators: Iterable[str | None]) -> tuple[NicFacts, ...]:
    """Returns the ports of all adapters, by name, with numbers in their order.

    Args:
        sysfs: the root of the kernel's device facts.
        accelerators: PCI addresses beside those of cards that compute by their class, which need no driver.
    """
    adapters = sorted(list_folder(sysfs / "class/infiniband"), key=lambda path: (len(path.name), path.name))
    bus = list_folder(sysfs / "bus/pci/devices") if adapters else []
    cards = [path.name for path in bus if (read_text(path / "class") or "").startswith(_ACCELERATOR_CLASSES)]
    known = dict.fromkeys(address for address in (*accelerators, *cards) if address)
    paths = {address: read_pci_path(sysfs / "bus/pci/devices" / address) for address in known}
    return tuple(nic for adapter in adapters for nic in _read_adapter(adapter, sysfs, paths))


def _read_adapter(adapter: Path, sysfs: Path, accelerators: Mapping[str, Sequence[str]]) -> Iterable[NicFacts]:
    path = read_pci_path(adapter / "device")
    if not path or not _PCI_ADDRESS.fullmatch(path[-1]) or read_link(adapter / "device/physfn"):
        return
    found = {name: read_text(adapter / name) for name in _ATTRIBUTES}
    card = NicFacts(
        adapter.name,
        path[-1],
        near=find_nearest(path, accelerators),
        attributes={name: text for name, text in found.items() if text},
    )
    ports = [(number, port) for port in list_folder(adapter / "ports") if (number := parse_int(port.name)) is not None]
    for number, port in sorted(ports):
        yield _read_port(card, number, port, sysfs)
    if not ports:
        yield card


def _read_port(card: NicFacts, number: int, port: Path, sysfs: Path) -> NicFacts:
    state, link_layer = parse_state(read_text(port / "state")), read_text(port / "link_layer") or None
    interfaces = list_folder(port.parent.parent / "device/net")
    net_device = read_text(port / "gid_attrs/ndevs/0") or (interfaces[0].name if interfaces else None)
    files = {name: port / "counters" / name for name in _COUNTERS}
    files |= {name: port / "hw_counters" / name for name in _HW_COUNTERS}
    if net_device and link_layer == "Ethernet":
        files["carrier_down_count"] = sysfs / "class/net" / net_device / "carrier_down_count"
    counts = {name: read_int(file) for name, file in files.items()}
    return replace(
        card,
        name=f"{card.name}:{number}",
        link_layer=link_layer,
        state=state,
        physical_state=parse_state(read_text(port / "phys_state")),
        rate_bytes_per_s=parse_rate(read_text(port / "rate")) if state in UP else None,
        net_device=net_device,
        counters={name: count for name, count in counts.items() if count is not None},
    )


def parse_state(text: str | None) -> str | None:
    """Returns the word of a state, "4: ACTIVE" → "ACTIVE"; None without one."""
    return (text or "").rpartition(":")[2].strip() or None


def parse_rate(text: str | None) -> float | None:
    """Returns the bytes per second of "400 Gb/sec (4X NDR)"; None for anything else, and for 0."""
    found = _RATE.match(text or "")
    return (float(found[1]) * 1e9 / 8 or None) if found else None


def find_nearest(path: Sequence[str], accelerators: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Returns the accelerators that share most of a function's way from the root complex; empty: none shares any.

    If all of several accelerators are as near, as below the one root of a virtual machine, this says nothing: empty.
    """
    shared = {
        address: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, way, strict=False)))
        for address, way in accelerators.items()
    }
    most = max(shared.values(), default=0)
    nearest = tuple(address for address, count in shared.items() if count == most)
    return nearest if most and (len(nearest) < len(shared) or len(shared) == 1) else ()
