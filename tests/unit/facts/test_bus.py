"""Cards on the bus against what NVML says: who is lost, who may only be hidden, and who is none of ours."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pynvml
import pytest

from meshwright_agent.facts.nvidia import NvidiaFacts, read_nvidia
from meshwright_agent.facts.nvml import name_error
from meshwright_agent.facts.sysfs import Roots, may_open, read_bus
from tests.fakes.machines import plant_machine
from tests.fakes.nvml import NO_TABLE, FakeNvml
from tests.fakes.tree import plant

ADDRESSES = tuple(f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df"))
NOT_LOADED, NO_LIBRARY = pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
LOST, RESET, UNKNOWN = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN


class Host:
    """A DGX H100 whose eight cards have device files; all may be opened but those that are `denied`."""

    def __init__(self, folder: Path, *, is_container: bool = False) -> None:
        self.folder = folder
        self.machine = plant_machine("dgx-h100", folder)
        self.denied: set[str] = set()
        for minor, address in enumerate(ADDRESSES):
            information = f"Model: \t\t NVIDIA H100\nBus Location: \t {address}\nDevice Minor: \t {minor}"
            plant(f"== proc/driver/nvidia/gpus/{address}/information\n{information}\n== dev/nvidia{minor}\n", folder)
        shutil.rmtree(folder / "sys/bus/pci/drivers", ignore_errors=True)
        self.here = Roots(folder, is_container=is_container, may_open=lambda file: file.name not in self.denied)

    def read(self, *omitted: int, fail: Mapping[str, int] | None = None) -> NvidiaFacts:
        """Reads where NVML omits these cards."""
        assert self.machine.nvml is not None
        document = self.machine.nvml._document
        left = [gpu for index, gpu in enumerate(document["gpus"]) if index not in omitted]
        nvml = FakeNvml({**document, "gpus": left}, fail)
        return read_nvidia(nvml, self.here, NO_TABLE)

    def bind(self, address: str, driver: str | None) -> None:
        link = self.folder / f"sys/bus/pci/devices/{address}/driver"
        link.unlink()
        if driver is not None:
            link.symlink_to(f"../../../bus/pci/drivers/{driver}")

    def uuid(self, index: int) -> str:
        assert self.machine.nvml is not None
        return str(self.machine.nvml._document["gpus"][index]["uuid"])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def kinds(found: NvidiaFacts) -> list[str]:
    return [problem.kind for problem in found.problems]


def test_nobody_is_missing_on_a_host_that_is_well(host: Host) -> None:
    found = host.read()
    assert (found.refused, found.problems, len(found.gpus)) == ((), (), 8)
    listed = [(address, "nvidia", minor) for minor, address in enumerate(ADDRESSES)]
    assert [(card.address, card.driver, card.minor) for card in read_bus(host.here)] == listed


@pytest.mark.parametrize("error", [LOST, RESET])
def test_a_card_that_nvml_counts_and_calls_lost_is_refused_under_its_address(host: Host, error: int) -> None:
    found = host.read(fail={f"nvmlDeviceGetHandleByIndex:{host.uuid(3)}": error})
    (card,) = found.refused
    assert (card.pci_bus_id, card.index, kinds(found)) == (ADDRESSES[3], 3, ["refused"])
    assert card.reason


def test_a_card_that_is_lost_after_its_handle_came_is_refused_since_nothing_names_it(host: Host) -> None:
    lost = {f"nvmlDeviceGet{name}:{host.uuid(3)}": LOST for name in ("PciInfo", "UUID")}
    found = host.read(fail=lost)
    assert [(card.pci_bus_id, card.index) for card in found.refused] == [(ADDRESSES[3], 3)]
    assert len(found.gpus) == 7


def test_a_lost_card_is_refused_where_the_bus_is_hidden_too(host: Host) -> None:
    shutil.rmtree(host.folder / "sys")
    (card,) = host.read(fail={f"nvmlDeviceGetHandleByIndex:{host.uuid(3)}": LOST}).refused
    assert (card.pci_bus_id, card.index) == (None, 3)


def test_a_card_that_the_bus_has_and_nvml_leaves_out_is_refused(host: Host) -> None:
    (card,) = host.read(5).refused
    assert (card.pci_bus_id, card.index) == (ADDRESSES[5], None)


@pytest.mark.parametrize("error", [UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED])
@pytest.mark.parametrize("is_container", [False, True])
def test_a_card_that_nvml_counts_and_gives_no_handle_for_is_refused(
    tmp_path: Path, is_container: bool, error: int
) -> None:
    host = Host(tmp_path, is_container=is_container)
    host.denied = {"nvidia3"}
    found = host.read(fail={f"nvmlDeviceGetHandleByIndex:{host.uuid(3)}": error})
    (card,) = found.refused
    assert (card.pci_bus_id, card.index, kinds(found)) == (ADDRESSES[3], 3, ["refused"])
    assert name_error(pynvml, error) in card.reason


@pytest.mark.parametrize(("card", "cards"), [("", ADDRESSES), (":3", ADDRESSES[3:4])])
def test_a_card_whose_handle_is_denied_is_not_refused(host: Host, card: str, cards: tuple[str, ...]) -> None:
    found = host.read(
        fail={f"nvmlDeviceGetHandleByIndex{card and ':' + host.uuid(3)}": pynvml.NVML_ERROR_NO_PERMISSION}
    )
    assert (found.refused, sum((each.cards for each in found.problems), ()), set(kinds(found))) == (
        (),
        cards,
        {"unreadable"},
    )


def test_a_card_that_is_hidden_from_this_process_is_not_accused(host: Host) -> None:
    host.denied = {"nvidia4", "nvidia5", "nvidia6", "nvidia7"}  # the files are here, the device cgroup says no
    assert host.read(4, 5, 6, 7).refused == ()
    host.denied = set()
    for minor in (4, 5, 6, 7):
        (host.folder / f"dev/nvidia{minor}").unlink()  # a container that was given four
    found = host.read(4, 5, 6, 7)
    assert (found.refused, found.problems) == ((), ())


def test_a_driver_that_counts_none_of_the_cards_that_it_has_on_the_bus_is_unknown(host: Host) -> None:
    host.denied = {f"nvidia{minor}" for minor in range(8)}
    found = host.read(*range(8))
    assert (found.refused, kinds(found), found.problems[0].cards) == ((), ["unreadable"], ADDRESSES)


def test_a_container_that_looks_at_the_hosts_dev_accuses_nobody_by_it(tmp_path: Path) -> None:
    host = Host(tmp_path, is_container=True)
    assert host.read(5).refused == ()
    assert host.read(fail={f"nvmlDeviceGetHandleByIndex:{host.uuid(3)}": LOST}).refused


def test_a_card_without_a_known_device_file_is_not_accused(host: Host) -> None:
    shutil.rmtree(host.folder / "proc/driver")
    assert host.read(5).refused == ()


def test_a_card_that_another_driver_has_is_none_of_ours(host: Host) -> None:
    host.bind(ADDRESSES[5], "vfio-pci")
    assert host.read(5).refused == host.read(5).problems == ()
    (host.folder / f"sys/bus/pci/devices/{ADDRESSES[6]}/physfn").mkdir()
    assert host.read(5, 6).refused == ()


def test_a_card_without_a_driver_beside_others_that_have_one_is_a_problem(host: Host) -> None:
    host.bind(ADDRESSES[5], None)
    (problem,) = host.read(5).problems
    assert (problem.kind, problem.text) == ("refused", f"no driver is bound to {ADDRESSES[5]}, but to 7 others")
    (host.folder / f"sys/bus/pci/devices/{ADDRESSES[5]}/class").write_text("0x030000\n")  # a display
    assert host.read(5).problems == ()


def test_a_card_whose_address_is_not_told_may_be_any_of_those_that_seem_left_out(host: Host) -> None:
    assert host.read(5, fail={f"nvmlDeviceGetPciInfo:{host.uuid(0)}": UNKNOWN}).refused == ()


def test_mig_hides_no_card(tmp_path: Path) -> None:
    machine = plant_machine("mig-a100", tmp_path)
    addresses = [card.address for card in read_bus(Roots(tmp_path))]
    for minor, address in enumerate(addresses):
        text = f"== proc/driver/nvidia/gpus/{address}/information\nDevice Minor: {minor}\n== dev/nvidia{minor}\n"
        plant(text, tmp_path)
    assert machine.nvml is not None
    for index in range(len(machine.nvml._document["gpus"])):
        machine.nvml.change_gpu(index, instances=[None])
    facts = machine.read()
    assert (len(addresses) > 1, facts.refused) == (True, ())


@pytest.mark.parametrize("error", [NOT_LOADED, NO_LIBRARY, UNKNOWN])
def test_a_driver_that_serves_no_card_is_down(host: Host, error: int) -> None:
    assert kinds(host.read(fail={"nvmlInit": error})) == ["driver_down"]
    assert "driver_down" in kinds(host.read(fail={"nvmlDeviceGetCount": error}))


def test_a_driver_that_is_not_loaded_is_down_in_a_container_too(tmp_path: Path) -> None:
    host = Host(tmp_path, is_container=True)
    for address in ADDRESSES:
        host.bind(address, None)
    assert kinds(host.read(fail={"nvmlInit": NO_LIBRARY})) == ["driver_down"]
    plant("== sys/module/nvidia/version\n535\n", tmp_path)  # the machine has it; the container has no library
    assert kinds(host.read(fail={"nvmlInit": NO_LIBRARY})) == ["unreadable"]
    assert kinds(host.read(fail={"nvmlInit": UNKNOWN})) == ["driver_down"]


def test_a_driver_that_does_not_let_this_process_in_may_serve_others(host: Host) -> None:
    assert kinds(host.read(fail={"nvmlInit": pynvml.NVML_ERROR_NO_PERMISSION})) == ["unreadable"]
    host.denied = {f"nvidia{minor}" for minor in range(8)}
    assert kinds(host.read(fail={"nvmlInit": NOT_LOADED})) == ["unreadable"]


def test_a_display_alone_and_cards_of_virtual_machines_need_no_driver(host: Host) -> None:
    for address in ADDRESSES:
        host.bind(address, None)
        (host.folder / f"sys/bus/pci/devices/{address}/class").write_text("0x030000\n")
    assert kinds(host.read(fail={"nvmlInit": NOT_LOADED})) == ["unreadable"]
    for address in ADDRESSES:
        (host.folder / f"sys/bus/pci/devices/{address}/driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
        (host.folder / f"sys/bus/pci/devices/{address}/class").write_text("0x030200\n")
    assert kinds(host.read(fail={"nvmlInit": NOT_LOADED})) == ["unreadable"]


def test_no_card_that_can_be_used_is_a_driver_that_is_down(host: Host) -> None:
    found = host.read(fail={"nvmlDeviceGetHandleByIndex": LOST})
    assert [card.pci_bus_id for card in found.refused] == list(ADDRESSES)
    assert kinds(found)[-1] == "driver_down"


def test_whether_a_device_may_be_opened_is_asked_without_opening_it(tmp_path: Path) -> None:
    file = tmp_path / "nvidia0"
    assert not may_open(file)
    file.touch()
    assert may_open(file)
