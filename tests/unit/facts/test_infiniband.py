"""Ports with RDMA: what is read of recorded hosts and of odd trees, and which GPU is beside which port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from meshwright_agent.facts.infiniband import find_nearest, parse_rate, parse_state, read_nics
from meshwright_agent.facts.model import NicFacts
from tests.fakes.machines import plant_machine, show
from tests.fakes.tree import plant_nic

WAY = "pci0000:15/0000:15:01.0/0000:18:00.0"
DGX_H100 = {0: 0, 3: 1, 4: 2, 5: 3, 6: 4, 9: 5, 10: 6, 11: 7}
"""mlx5_N → its GPU. Source: NVIDIA, DGX H100 User Guide, table 6, Network Modules."""

ABI: Mapping[str, str] = {
    r"class|vendor|device": r"0x[0-9a-f]+", r"infiniband/\w+/(hca_type|fw_ver|board_id)": r"[\w.]+",
    r"infiniband/\w+/node_guid": r"([0-9a-f]{4}:){3}[0-9a-f]{4}",
    r"infiniband/\w+/ports/\d+/state": r"[0-5]: (NOP|DOWN|INIT|ARMED|ACTIVE|ACTIVE_DEFER)",
    r"infiniband/\w+/ports/\d+/phys_state": r"2: Polling|3: Disabled|5: LinkUp",
    r"infiniband/\w+/ports/\d+/rate": r"[\d.]+ Gb/sec \((1|2|4|8|12)X( (SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR))?\)",
    r"infiniband/\w+/ports/\d+/link_layer": r"InfiniBand|Ethernet|Unspecified",
    r"infiniband/\w+/ports/\d+/gid_attrs/ndevs/\d+": r"\w+",
    r"infiniband/\w+/ports/\d+/counters/(symbol_error|link_error_recovery|link_downed|VL15_dropped)": r"\d+",
    r"infiniband/\w+/ports/\d+/counters/(port_rcv|local_link_integrity|excessive_buffer_overrun)_errors": r"\d+",
    r"infiniband/\w+/ports/\d+/counters/port_xmit_discards": r"\d+",
    r"infiniband/\w+/ports/\d+/hw_counters/(out_of_sequence|packet_seq_err|local_ack_timeout_err)": r"\d+",
    r"infiniband/\w+/ports/\d+/hw_counters/(np_cnp_sent|rp_cnp_handled)": r"\d+", r"net/\w+/carrier_down_count": r"\d+",
}  # fmt: skip
"""File of a port's PCI function → what the kernel writes there. Sources: Linux, Documentation/ABI/stable/
sysfs-class-infiniband, testing/sysfs-class-net, drivers/infiniband/core/sysfs.c, hw/mlx5/counters.c."""


def read(root: Path, *accelerators: str) -> dict[str, NicFacts]:
    return {nic.name: nic for nic in read_nics(root / "sys", accelerators)}


@pytest.fixture
def port(tmp_path: Path) -> Path:
    """The folder of one port, mlx5_0:1."""
    plant_nic(tmp_path, WAY, "mlx5_0", "ibp24s0", "InfiniBand", "400")
    return tmp_path / "sys/class/infiniband/mlx5_0/ports/1"


@pytest.mark.parametrize(("link_layer", "rate"), [("InfiniBand", "400"), ("Ethernet", "100"), ("Ethernet", "down")])
def test_the_fake_has_only_files_that_the_kernel_documents_in_its_words(
    tmp_path: Path, link_layer: str, rate: str
) -> None:
    plant_nic(tmp_path, WAY, "mlx5_0", "eth0", link_layer, rate)
    card = tmp_path / "sys/devices" / WAY
    for file in (file for file in card.rglob("*") if file.is_file()):
        name = str(file.relative_to(card))
        (words,) = [words for pattern, words in ABI.items() if re.fullmatch(pattern, name)]
        assert re.fullmatch(words, file.read_text().strip()), name


def test_a_dgx_h100_has_a_port_beside_each_gpu_and_four_for_storage(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path)
    nics = {nic.name: nic for nic in machine.view().nics}
    assert list(nics) == [f"mlx5_{number}:1" for number in range(12)]
    assert {name: nic.device_indices for name, nic in nics.items()} == {
        f"mlx5_{number}:1": (DGX_H100[number],) if number in DGX_H100 else () for number in range(12)
    }
    assert {nic.rate_bytes_per_s for name, nic in nics.items() if nic.device_indices} == {50e9}
    first, unused = nics["mlx5_0:1"], nics["mlx5_2:1"]
    assert (first.pci_bus_id, first.link_layer, first.net_device) == ("0000:18:00.0", "InfiniBand", "ibp24s0")
    assert (first.state, first.physical_state, first.counters["link_downed"]) == ("ACTIVE", "LinkUp", 0)
    assert first.attributes["hca_type"] == "MT4129"
    assert (unused.state, unused.physical_state, unused.rate_bytes_per_s) == ("DOWN", "Disabled", None)


def test_a_host_with_roce_has_ethernet_ports_that_count_lost_carriers(tmp_path: Path) -> None:
    nics = plant_machine("hgx-b200", tmp_path).view().nics
    assert [nic.device_indices for nic in nics] == [*((index,) for index in range(8)), (), ()]
    assert {nic.link_layer for nic in nics} == {"Ethernet"}
    assert (nics[0].net_device, nics[0].rate_bytes_per_s, nics[8].rate_bytes_per_s) == ("enp25s0np0", 50e9, 25e9)
    assert nics[0].counters["carrier_down_count"] == 1


def test_a_mig_card_is_near_with_all_its_instances_and_cpu_devices_never(tmp_path: Path) -> None:
    machine = plant_machine("mig-a100", tmp_path)
    card = (tmp_path / "sys/bus/pci/devices" / (machine.read().gpus[0].pci_bus_id or "")).resolve()
    way = str(card.parent.relative_to(tmp_path / "sys/devices"))
    plant_nic(tmp_path, f"{way}/0000:f0:00.0", "mlx5_0", "ib0", "InfiniBand", "200")
    facts = machine.read()
    instances = tuple(i for i, gpu in enumerate(facts.gpus) if gpu.pci_bus_id == facts.gpus[0].pci_bus_id)
    assert len(instances) > 1
    assert show(facts).nics[0].device_indices == instances
    assert show(facts, cpu_devices=2).nics[0].device_indices == ()


def test_a_host_without_the_class_has_no_ports(tmp_path: Path) -> None:
    assert read(tmp_path) == {}
    assert plant_machine("cpu-vm", tmp_path).view().nics == ()


@pytest.mark.parametrize("file", ["state", "phys_state", "rate", "link_layer", "counters/link_downed"])
def test_a_file_that_the_driver_does_not_answer_is_unknown_and_no_other(port: Path, tmp_path: Path, file: str) -> None:
    whole = vars(read(tmp_path)["mlx5_0:1"])
    (port / file).unlink()
    (port / file).mkdir()  # reading it is an OSError, as EINVAL of a driver
    less = vars(read(tmp_path)["mlx5_0:1"])
    changed = {name for name in whole if whole[name] != less[name]}
    expected = {"phys_state": "physical_state", "rate": "rate_bytes_per_s", "counters/link_downed": "counters"}
    assert changed == {expected.get(file, file)} | ({"rate_bytes_per_s"} if file == "state" else set())
    assert "link_downed" not in less["counters"] or file != "counters/link_downed"
    assert all(less[name] is None for name in changed - {"counters"})


def test_odd_adapters_are_read_as_far_as_they_go(port: Path, tmp_path: Path) -> None:
    (port.parent / "x").mkdir()
    (tmp_path / "sys/class/infiniband/rxe0").symlink_to("../../../devices/virtual")  # software: no device
    plant_nic(tmp_path, "pci0000:15/0000:15:01.0/0000:18:00.2", "mlx5_2", "eth1", "Ethernet", "400")
    (tmp_path / "sys/bus/pci/devices/0000:18:00.2/physfn").symlink_to("../0000:18:00.0")  # a virtual function
    plant_nic(tmp_path, f"{WAY}/mlx5_core.sf.4", "mlx5_3", "eth2", "Ethernet", "400")  # a scalable function
    plant_nic(tmp_path, "pci0000:20/0000:20:00.0", "efa_0", "eth3", "Unspecified", "100")
    plant_nic(tmp_path, "pci0000:30/0000:30:00.0", "mlx5_4", "eth4", "InfiniBand", "400")
    (tmp_path / "sys/class/infiniband/mlx5_4/ports").rename(tmp_path / "away")
    found = read(tmp_path)
    assert list(found) == ["efa_0:1", "mlx5_0:1", "mlx5_4"]
    assert (found["efa_0:1"].link_layer, found["efa_0:1"].rate_bytes_per_s) == ("Unspecified", 12.5e9)
    assert (found["mlx5_4"].state, found["mlx5_4"].pci_bus_id) == (None, "0000:30:00.0")


@pytest.mark.parametrize(("text", "bytes_per_s"), [
    ("400 Gb/sec (4X NDR)", 50e9), ("2.5 Gb/sec (1X SDR)", 312.5e6), ("800 Gb/sec (8X NDR)", 100e9),
    ("0 Gb/sec (4X)", None), ("fast", None), ("", None), (None, None),
])  # fmt: skip
def test_rates_are_read_in_the_kernels_form(text: str | None, bytes_per_s: float | None) -> None:
    assert parse_rate(text) == bytes_per_s


def test_states_are_words() -> None:
    assert [parse_state(text) for text in ("4: ACTIVE", "5: LinkUp", "LinkUp", "", ": ", None)] == [
        *("ACTIVE", "LinkUp", "LinkUp"),
        *(None, None, None),
    ]


@pytest.mark.parametrize(
    ("ways", "nearest"),
    [
        ({"a": "r/1/2/a", "b": "r/1/3/b"}, "a"),  # behind the same switch
        ({"a": "r/9/a", "b": "s/b"}, "a"),  # below the same root
        ({"a": "r/1/2/a", "b": "r/1/2/b", "c": "s/c"}, "ab"),  # one port of two GPUs
        ({"a": "r/7/a", "b": "r/8/b"}, ""),  # a virtual machine: all below one root
        ({"a": "r/7/a"}, "a"),
        ({"a": "s/a", "b": "t/b"}, ""),
        ({"a": "", "b": "t/b"}, ""),
        ({}, ""),
    ],
)
def test_the_nearest_accelerators_share_most_of_the_way(ways: dict[str, str], nearest: str) -> None:
    split = {address: tuple(filter(None, way.split("/"))) for address, way in ways.items()}
    assert find_nearest(("r", "1", "2", "nic"), split) == tuple(nearest)
