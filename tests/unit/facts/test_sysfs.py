from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts.sysfs import (
    parse_pci_address,
    read_numa_node,
    read_numa_nodes,
    read_pci_devices,
    read_pcie_root,
    read_text,
)
from tests.fakes.tree import plant

CARD = """
== sys/devices/pci0000:17/0000:18:00.0/0000:19:00.0/vendor
0x10de
== sys/devices/pci0000:17/0000:18:00.0/0000:19:00.0/device
0x2330
== sys/devices/pci0000:17/0000:18:00.0/0000:19:00.0/class
0x030200
== sys/devices/pci0000:17/0000:18:00.0/0000:19:00.0/numa_node
1
=> sys/bus/pci/devices/0000:19:00.0 -> ../../../devices/pci0000:17/0000:18:00.0/0000:19:00.0
== sys/devices/pci0000:00/0000:00:01.0/vendor
0x8086
== sys/devices/pci0000:00/0000:00:01.0/device
0x0d57
== sys/devices/pci0000:00/0000:00:01.0/numa_node
-1
=> sys/bus/pci/devices/0000:00:01.0 -> ../../../devices/pci0000:00/0000:00:01.0
=/ sys/bus/pci/devices/0000:00:02.0
"""


@given(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
def test_nvml_and_sysfs_write_one_pci_address_alike_after_parsing(domain: int, bus: int, slot: int, part: int) -> None:
    nvml = f"{domain:08X}:{bus:02X}:{slot:02X}.{part}"
    assert parse_pci_address(nvml) == parse_pci_address(nvml.lower()[4:]) == f"{domain:04x}:{bus:02x}:{slot:02x}.{part}"


def test_pci_functions_of_one_vendor_are_listed_by_address(tmp_path: Path) -> None:
    plant(CARD, tmp_path)
    (card,) = read_pci_devices(tmp_path / "sys", "0x10de")
    assert (card.address, card.device, card.kind) == ("0000:19:00.0", "0x2330", "0x030200")
    assert read_numa_node(card.path) == 1
    assert read_pcie_root(card.path) == "pci0000:17"


def test_the_firmwares_minus_one_is_no_numa_node(tmp_path: Path) -> None:
    plant(CARD, tmp_path)
    (bridge,) = read_pci_devices(tmp_path / "sys", "0x8086")
    assert read_numa_node(bridge.path) is None


def test_numa_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for n in (0, 2, 10):
        node = f"sys/devices/system/node/node{n}"
        plant(f"== {node}/cpulist\n{n}\n== {node}/meminfo\nNode {n} MemTotal: {n} kB", tmp_path)
    plant("== sys/devices/system/node/possible\n0-10", tmp_path)
    nodes = read_numa_nodes(tmp_path / "sys")
    assert [(node.node, node.cpus) for node in nodes] == [(0, "0"), (2, "2"), (10, "10")]


def test_what_is_not_there_is_unknown_and_no_error(tmp_path: Path) -> None:
    assert read_text(tmp_path / "no") is None
    assert read_pci_devices(tmp_path, "0x10de") == ()
    assert read_numa_nodes(tmp_path) == ()
    assert read_pcie_root(tmp_path / "no") is None
