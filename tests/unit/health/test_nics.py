"""Health of ports with RDMA over several looks: siblings, rates, flaps, errors, ports that are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent.facts.model import HostFacts, NicFacts
from meshwright_agent.health.nics import MAX_ERRORS, WINDOW_S
from tests.unit.health.test_monitor import Scene

COMPUTE, STORAGE, UNUSED = "nic:mlx5_5:1", "nic:mlx5_1:1", "nic:mlx5_2:1"
DOWN: dict[str, Any] = {"state": "DOWN", "physical_state": "Polling", "rate_bytes_per_s": None}


class Network:
    """A DGX H100 whose ports are as told at each look."""

    def __init__(self, folder: Path, machine: str = "dgx-h100") -> None:
        self.scene = Scene(folder, machine=machine)
        self.facts = self.scene.read()
        self.ports = {nic.name: nic for nic in self.facts.nics}

    def look(self, *names: str, **changes: Any) -> None:
        """Looks after these ports have changed; `grow`: counter → growth."""
        grow = changes.pop("grow", {})
        for name in (name.removeprefix("nic:") for name in names):
            counters = self.ports[name].counters
            grown = {counter: counters.get(counter, 0) + count for counter, count in grow.items()}
            self.ports[name] = replace(self.ports[name], counters={**counters, **grown}, **changes)
        self.facts = self.scene.look(replace(self.facts, nics=tuple(self.ports.values())))

    def state(self, name: str) -> str:
        return self.scene.component(name).state

    def reason(self, name: str) -> str:
        return self.scene.component(name).reason


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_ports_that_are_up_are_healthy_and_a_storage_port_without_a_cable_counts_for_nothing(network: Network) -> None:
    network.look()
    assert {network.state(f"nic:mlx5_{number}:1") for number in (0, 1, 3, 4, 5, 6, 7, 9, 10, 11)} == {"healthy"}
    assert network.reason(COMPUTE) == "up at 400 Gb/s"
    assert network.state(UNUSED) == "initializing"
    assert "never up here" in network.reason(UNUSED)
    assert network.scene.registry.view(network.scene.clock.now()).state != "unknown"


def test_a_port_that_is_down_where_its_siblings_are_up_is_degraded_until_it_is_back(network: Network) -> None:
    network.look(COMPUTE, **DOWN)
    assert network.state(COMPUTE) == "degraded"
    assert network.reason(COMPUTE) == "down (state DOWN, physical state Polling); 7 of its 7 siblings are up"
    action = network.scene.component(COMPUTE).action
    assert action == ("see `ibstat mlx5_5` and `mlxlink -d mlx5_5 -m -c`; check cable, transceiver and switch port")
    network.look(COMPUTE, state="INIT", physical_state="LinkUp")
    assert "no subnet manager" in network.reason(COMPUTE)
    network.look(COMPUTE, state="INIT", physical_state="Disabled")
    assert "no subnet manager" not in network.reason(COMPUTE)
    network.look(COMPUTE, state="ACTIVE", physical_state="LinkUp", rate_bytes_per_s=50e9)
    assert network.state(COMPUTE) == "healthy"


def test_a_port_of_another_vendor_is_examined_with_the_kernels_command(network: Network) -> None:
    network.look(*network.ports, attributes={})
    network.look(COMPUTE, **DOWN)
    assert network.scene.component(COMPUTE).action.startswith("see `rdma link show mlx5_5/1`;")


def test_a_port_that_was_up_and_has_no_sibling_is_degraded_also_after_a_restart(network: Network) -> None:
    network.look()
    network.scene.restart()
    network.look(STORAGE, **DOWN)
    assert network.state(STORAGE) == "degraded"
    assert "was up before" in network.reason(STORAGE)
    network.scene.acknowledge(STORAGE)
    assert network.state(STORAGE) == "initializing"


def test_where_all_ports_went_down_each_is_degraded_and_where_none_was_ever_up_none_is(network: Network) -> None:
    network.look(*network.ports, **DOWN)
    assert {network.state(f"nic:{name}") for name in network.ports} == {"initializing"}
    network.look(*network.ports, state="ACTIVE", rate_bytes_per_s=50e9)
    network.look(*network.ports, **DOWN)
    assert {network.state(f"nic:{name}") for name in network.ports} == {"degraded"}


def test_a_port_below_the_rate_of_its_siblings_is_degraded_and_a_slower_storage_port_is_not(network: Network) -> None:
    network.look(COMPUTE, STORAGE, rate_bytes_per_s=25e9)
    assert network.state(COMPUTE) == "degraded"
    assert network.reason(COMPUTE) == "up at 200 Gb/s; its siblings at 400 Gb/s"
    assert network.state(STORAGE) == "healthy"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"state": None}, "its state cannot be read"), ({"rate_bytes_per_s": None}, "up; its rate cannot be read")],
)
def test_a_port_that_cannot_be_read_is_unknown(network: Network, changes: dict[str, None], reason: str) -> None:
    network.look(COMPUTE, **changes)
    assert (network.state(COMPUTE), network.reason(COMPUTE)) == ("unknown", reason)


@pytest.mark.parametrize(
    ("grow", "words"),
    [
        ({"link_downed": 1}, "not stable: link_downed +1 in the last 5 minutes"),
        ({"carrier_down_count": 2}, "not stable: carrier_down_count +2"),
        ({"link_error_recovery": 1, "symbol_error": 3}, "not stable: link_error_recovery +1, symbol_error +3"),
        ({"symbol_error": MAX_ERRORS, "port_rcv_errors": 1}, "errors: symbol_error +12, port_rcv_errors +1"),
        ({"symbol_error": MAX_ERRORS}, ""),
        ({"port_xmit_discards": 9999, "np_cnp_sent": 9999, "out_of_sequence": 9999, "VL15_dropped": 9999}, ""),
    ],
)
def test_a_flap_or_many_errors_degrade_a_port_for_five_minutes(
    network: Network, grow: dict[str, int], words: str
) -> None:
    network.look(COMPUTE, grow={"carrier_down_count": 7})
    network.look(COMPUTE, grow=grow)
    looks = 1
    while network.state(COMPUTE) == "degraded":
        assert words in network.reason(COMPUTE)
        assert network.scene.component(COMPUTE).permanence == "transient"
        network.look()
        looks += 1
    assert looks == (WINDOW_S / 30 + 1 if words else 1)


def test_a_clock_that_is_set_back_makes_no_fault_last_longer(network: Network) -> None:
    network.look(COMPUTE)
    network.look(COMPUTE, grow={"link_downed": 1})
    assert network.state(COMPUTE) == "degraded"
    network.scene.clock.advance(-3600)
    network.look(COMPUTE)
    network.look(COMPUTE)
    assert network.state(COMPUTE) == "healthy"


def test_errors_before_the_first_look_and_reset_counters_are_no_growth(network: Network) -> None:
    network.look(COMPUTE, grow={"link_downed": 40})
    network.look(COMPUTE, grow={"link_downed": -39})
    assert network.state(COMPUTE) == "healthy"
    network.look(COMPUTE, grow={"link_downed": 1})
    assert network.state(COMPUTE) == "degraded"
    network.scene.acknowledge(COMPUTE)
    assert network.state(COMPUTE) == "healthy"


@pytest.mark.parametrize(("counter", "most"), [("link_downed", 255), ("symbol_error", 65535)])
def test_a_counter_that_cannot_count_further_is_degraded_until_it_is_reset(
    network: Network, counter: str, most: int
) -> None:
    network.look(COMPUTE, grow={counter: most})
    assert network.reason(COMPUTE) == f"{counter} cannot count further errors"
    network.look(COMPUTE, grow={counter: -1})
    assert network.state(COMPUTE) == "healthy"


def test_a_port_that_is_gone_is_degraded_by_its_name_or_place_until_an_operator_speaks(network: Network) -> None:
    network.look()
    lost = network.ports.pop("mlx5_5:1")
    network.look()
    assert (network.state(COMPUTE), network.state("nic:mlx5_6:1")) == ("degraded", "healthy")
    assert "mlx5_5:1 at 0000:5e:00.0:1" in network.reason(COMPUTE)
    network.ports["mlx5_5:1"] = replace(network.ports.pop("mlx5_11:1"), name="mlx5_5:1")  # its name after a reboot
    network.scene.restart()
    network.look()
    assert network.state(COMPUTE) == "healthy"
    assert network.state("nic:0000:5e:00.0:1") == "degraded"
    assert "nic:mlx5_11:1" not in network.scene.registry.names()
    network.scene.acknowledge("nic:0000:5e:00.0:1")
    assert lost.place not in network.scene.history.memory.nics
    assert "nic:0000:5e:00.0:1" not in network.scene.registry.names()
    network.ports.pop("mlx5_2:1")  # never up
    network.look()
    assert UNUSED not in network.scene.registry.names()


def test_while_the_probe_is_silent_ports_are_unknown_and_after_a_restart_they_are_listed(network: Network) -> None:
    network.look()
    network.scene.restart()
    assert network.state(COMPUTE) == "initializing"
    network.scene.monitor.report_silence("no answer", network.scene.clock.now())
    assert network.state(COMPUTE) == "unknown"


def _port(number: int, **changes: Any) -> NicFacts:
    port = NicFacts(f"mlx5_{number}:1", f"0101:00:{number:02x}.0", link_layer="InfiniBand", state="ACTIVE")
    return replace(port, **{"rate_bytes_per_s": 50e9, "attributes": {"hca_type": "MT4126"}, **changes})


@pytest.mark.parametrize(
    ("cards", "ports", "state"),
    [
        (8, [_port(0, **DOWN), *map(_port, range(1, 8))], "degraded"),  # a virtual machine: one for each GPU
        (8, [_port(0, **DOWN), *map(_port, range(1, 7))], "initializing"),  # fewer than GPUs
        (0, [_port(0, **DOWN), *map(_port, range(1, 8))], "initializing"),
        (1, [_port(0, **DOWN), _port(1)], "initializing"),  # which of the two serves it is not known
        (8, [_port(0, **DOWN, near=("a",)), _port(1, near=("b",), link_layer="Ethernet")], "initializing"),
        (8, [_port(0, **DOWN, near=("a",)), _port(1, near=("b",), attributes={})], "initializing"),
        (8, [_port(0, **DOWN, near=("a",)), _port(1, near=("a",), pci_bus_id="0:0:0.1")], "initializing"),
        (8, [_port(0, **DOWN, near=("a",)), _port(1, near=("b",))], "degraded"),
    ],
)
def test_siblings_are_ports_of_one_kind_that_serve_accelerators(
    tmp_path: Path, cards: int, ports: list[NicFacts], state: str
) -> None:
    network = Network(tmp_path, "dgx-h100")
    facts: HostFacts = replace(network.facts, nics=tuple(ports))
    network.scene.look(facts if cards == 8 else replace(facts, gpus=facts.gpus[:cards], links=()))
    assert network.state("nic:mlx5_0:1") == state
