from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import GpuLink, SourceProblem
from meshwright_agent.facts.nvidia import NvidiaFacts, parse_cuda_version, parse_profile, read_nvidia
from meshwright_agent.facts.nvml import find_nvml
from meshwright_agent.facts.sysfs import Roots
from tests.fakes.machines import RECORDED, plant_machine
from tests.fakes.nvml import NO_TABLE, FakeNvml, check_against_pynvml
from tests.fakes.tree import plant

MIB = 2**20
GPU_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / name / "nvml.json").read_text())
    return document


def read(nvml: Any, folder: Path = Path("/nowhere")) -> NvidiaFacts:
    return read_nvidia(nvml, Roots(folder), NO_TABLE)


def test_the_fake_has_the_functions_parameters_and_constants_of_the_real_module() -> None:
    assert check_against_pynvml(FakeNvml) == []


def test_the_check_of_the_fake_finds_a_wrong_parameter_and_a_wrong_constant() -> None:
    class Wrong:
        NVML_NVLINK_MAX_LINKS = 1

        def nvmlDeviceGetName(self, device: object) -> str:  # noqa: N802
            return ""

        def nvmlDeviceGetColor(self, handle: object) -> str:  # noqa: N802
            return ""

    assert len(check_against_pynvml(Wrong)) == 3


def test_the_module_is_found_where_it_is_installed() -> None:
    assert find_nvml() is pynvml


def test_a_dgx_has_eight_cards_with_all_that_the_driver_says(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path)
    found = read(machine.nvml, tmp_path)
    card = found.gpus[3]
    assert (len(found.gpus), found.problems) == (8, ())
    assert (found.driver.version, found.driver.cuda_version) == ("535.129.03", "12.2")
    assert (card.index, card.kind, card.pci_bus_id) == (3, "NVIDIA H100 80GB HBM3", "0000:61:00.0")
    assert (card.memory_bytes, card.used_bytes) == (81559 * MIB, 72463 * MIB)
    assert (card.architecture, card.compute_capability, card.compute_mode) == ("Hopper", "9.0", "default")
    assert (card.pcie_root, card.numa_node, found.gpus[4].numa_node) == ("pci0000:59", 0, 1)
    assert card.processes == (DeviceProcess(pid=4242, used_bytes=72459 * MIB),)


def test_processes_that_share_a_gpu_through_mps_hold_it_each_once() -> None:
    document = load("pcie-l40s")
    document["gpus"][1] |= {"processes": [[70, 5 * MIB], [72, 9 * MIB]], "mps_clients": [[71, 8 * MIB], [72, None]]}
    held = read(FakeNvml(document)).gpus[1].processes
    assert held is not None
    assert {(process.pid, process.used_bytes) for process in held} == {(70, 5 * MIB), (71, 8 * MIB), (72, 9 * MIB)}


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_driver_without_a_list_of_mps_clients_is_no_problem(code: int) -> None:
    document = load("pcie-l40s")
    found = read(FakeNvml(document, {"nvmlDeviceGetMPSComputeRunningProcesses": code}))
    assert found.problems == ()
    assert found.gpus == read(FakeNvml(document)).gpus


def test_every_pair_of_a_dgx_is_joined_by_18_nvlinks(tmp_path: Path) -> None:
    found = read(plant_machine("dgx-h100", tmp_path).nvml)
    assert {(link.kind, link.count) for link in found.links} == {("NV18", 18)}
    assert len({(link.a, link.b) for link in found.links}) == 28
    assert found.links[0].bandwidth_bytes_per_s == 18 * 25e9


def test_cards_without_nvlink_are_joined_as_the_pci_tree_joins_them(tmp_path: Path) -> None:
    found = read(plant_machine("pcie-l40s", tmp_path).nvml)
    keys = [gpu.key for gpu in found.gpus]
    kinds = {(keys.index(link.a), keys.index(link.b)): link.kind for link in found.links}
    assert kinds == {(0, 1): "NODE", (0, 2): "SYS", (0, 3): "SYS", (1, 2): "SYS", (1, 3): "SYS", (2, 3): "NODE"}
    assert found.gpus[1].compute_mode == "exclusive_process"
    assert found.problems == ()  # what a card does not have (MIG, NVLink) is no problem


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_each_level_of_the_pci_tree_has_nvidia_smis_word(level: int, kind: str) -> None:
    document = load("pcie-l40s")
    document["ancestors"] = dict.fromkeys(document["ancestors"], level)
    assert {link.kind for link in read(FakeNvml(document)).links} == {kind}


def test_a_divided_card_is_its_instances_and_not_itself(tmp_path: Path) -> None:
    found = read(plant_machine("mig-a100", tmp_path).nvml)
    instances = [gpu for gpu in found.gpus if gpu.mig]
    assert [gpu.mig.profile for gpu in instances if gpu.mig] == ["3g.20gb", "2g.10gb", "1g.5gb"]
    assert [gpu.memory_bytes for gpu in instances] == [19968 * MIB, 9856 * MIB, 4864 * MIB]
    assert [gpu.index for gpu in found.gpus] == [0, 0, 0, 1, 2]
    first = instances[0].mig
    assert first is not None
    assert first.parent_uuid == "GPU-5c89852c-5b1e-4c0a-9d6f-00000000a001"
    assert (first.gpu_instance_id, first.compute_instance_id) == (1, 0)
    assert instances[0].key.startswith("MIG-")
    assert found.problems == ()


def test_instances_have_no_links_since_they_cannot_reach_each_other(tmp_path: Path) -> None:
    found = read(plant_machine("mig-a100", tmp_path).nvml)
    whole = [gpu.key for gpu in found.gpus if gpu.mig is None]
    assert [(link.a, link.b, link.kind) for link in found.links] == [(whole[0], whole[1], "NV12")]


def test_a_divided_card_without_instances_is_a_problem_since_nothing_can_run_there() -> None:
    document = load("mig-a100")
    document["gpus"][0]["instances"] = [None, None]
    found = read(FakeNvml(document))
    assert len(found.gpus) == 2
    assert "GPU 0" in found.problems[0].text
    assert "MIG mode without instances" in found.problems[0].text


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetName", "kind"),
        ("nvmlDeviceGetUUID", "uuid"),
        ("nvmlDeviceGetPciInfo", "pci_bus_id"),
        ("nvmlDeviceGetMemoryInfo", "memory_bytes"),
        ("nvmlDeviceGetArchitecture", "architecture"),
        ("nvmlDeviceGetCudaComputeCapability", "compute_capability"),
        ("nvmlDeviceGetComputeMode", "compute_mode"),
        ("nvmlDeviceGetMinorNumber", "minor"),
        ("nvmlDeviceGetComputeRunningProcesses", "processes"),
    ],
)
def test_a_call_that_fails_costs_one_field_and_is_named(function: str, field: str) -> None:
    document = load("pcie-l40s")
    failed = f"{function}:{document['gpus'][2]['uuid']}"
    found = read(FakeNvml(document, {failed: UNKNOWN}))
    whole = read(FakeNvml(document))
    assert getattr(found.gpus[2], field) is None
    assert getattr(whole.gpus[2], field) is not None
    assert {problem.text.startswith(f"GPU 2: {function}: ") for problem in found.problems} == {True}
    assert found.gpus[0] == whole.gpus[0]
    assert len(found.gpus) == 4


@pytest.mark.parametrize("function", [name for name in vars(FakeNvml) if name.startswith(("nvmlDevice", "nvmlSystem"))])
@pytest.mark.parametrize("name", ["dgx-h100", "mig-a100", "pcie-l40s", "gb200-nvl72"])
def test_no_failing_call_of_the_driver_is_an_error(function: str, name: str) -> None:
    nvml = FakeNvml(load(name), {function: UNKNOWN})
    found = read(nvml)
    assert not nvml.is_open
    assert len({gpu.key for gpu in found.gpus}) == len(found.gpus)


def test_a_lost_card_is_left_out_and_named() -> None:
    document = load("dgx-h100")
    nvml = FakeNvml(document, {f"nvmlDeviceGetHandleByIndex:{document['gpus'][5]['uuid']}": GPU_LOST})
    found = read(nvml)
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert len(found.links) == 21
    assert any("GPU 5" in problem.text for problem in found.problems)


def test_nvml_is_shut_down_after_each_read_also_when_one_fails(tmp_path: Path) -> None:
    nvml = FakeNvml(load("dgx-h100"), {"nvmlDeviceGetCount": UNKNOWN})
    assert read(nvml).gpus == ()
    assert read(nvml).gpus == ()
    assert (nvml.is_open, nvml.read_count) == (False, 2)


def test_a_release_of_the_module_without_a_function_costs_one_field() -> None:
    class Older(FakeNvml):
        nvmlDeviceGetArchitecture = property()  # type: ignore[assignment] # noqa: N815

    found = read(Older(load("pcie-l40s")))
    assert {gpu.architecture for gpu in found.gpus} == {None}
    assert "does not have it" in found.problems[0].text


def test_cards_on_the_bus_that_nvml_cannot_read_are_a_problem(tmp_path: Path) -> None:
    plant_machine("dgx-h100", tmp_path)
    failing = FakeNvml({}, {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    (problem,) = read(failing, tmp_path).problems
    assert "8 NVIDIA card(s)" in problem.text
    assert "0000:1b:00.0" in problem.text
    (problem,) = read(None, tmp_path).problems
    assert "nvidia-ml-py" in problem.text


def test_device_files_without_nvml_are_a_problem_where_the_bus_is_hidden(tmp_path: Path) -> None:
    plant("== dev/nvidia0\n\n== dev/nvidiactl\n\n== dev/null\n", tmp_path)
    (problem,) = read(None, tmp_path).problems
    assert "1 NVIDIA card(s)" in problem.text
    assert "(/dev/nvidia0)" in problem.text


def test_a_host_without_cards_has_no_problem_and_no_gpu(tmp_path: Path) -> None:
    plant_machine("cpu-vm", tmp_path)
    absent = FakeNvml({}, {"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND})
    assert read(absent, tmp_path) == read(None, tmp_path) == NvidiaFacts()


def test_cards_joined_directly_have_as_many_links_as_lead_to_each_other() -> None:
    document = load("dgx-h100")
    document["gpus"] = copy.deepcopy(document["gpus"][:3])
    a, b, c = document["gpus"]
    a["nvlinks"] = [b["bus_id"], b["bus_id"], c["bus_id"], None]
    b["nvlinks"] = [a["bus_id"], a["bus_id"]]
    c["nvlinks"] = [a["bus_id"]]
    document["ancestors"] = {"1-2": 50}
    found = read(FakeNvml(document))
    assert [link.kind for link in found.links] == ["NV2", "NV1", "SYS"]
    assert found.links[2] == GpuLink(b["uuid"], c["uuid"], "SYS")


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType"])
def test_a_card_whose_links_cannot_be_counted_has_no_link_rather_than_a_slow_one(function: str) -> None:
    document = load("dgx-h100")
    found = read(FakeNvml(document, {f"{function}:{document['gpus'][0]['uuid']}": UNKNOWN}))
    assert len(found.links) == 21
    assert {link.kind for link in found.links} == {"NV18"}
    assert found.problems


def kinds_of(found: NvidiaFacts) -> dict[tuple[int, int], str]:
    places = {gpu.key: place for place, gpu in enumerate(found.gpus)}
    return {(places[link.a], places[link.b]): link.kind for link in found.links}


def test_links_to_switches_that_the_host_does_not_show_are_links_to_switches(tmp_path: Path) -> None:
    found = read(plant_machine("gb200-nvl72", tmp_path).nvml, tmp_path)
    assert set(kinds_of(found).values()) == {"NV18"}
    assert {link.bandwidth_bytes_per_s for link in found.links} == {18 * 50e9}


def test_a_link_to_a_card_or_a_processor_is_none_to_a_switch(tmp_path: Path) -> None:
    machine = plant_machine("dgx-1v", tmp_path)
    document = load("dgx-1v")
    for gpu in document["gpus"]:
        gpu["remote_types"] = [255] * len(gpu["nvlinks"])  # not told: the bus tells that there are cards
    assert kinds_of(read(FakeNvml(document), tmp_path)) == kinds_of(read(machine.nvml, tmp_path))
    for gpu in document["gpus"]:
        gpu.update(nvlinks=["00000004:00:01.0"] * 6, remote_types=[1] * 6)  # a POWER9's, on no PCI bus
    assert set(kinds_of(read(FakeNvml(document), tmp_path)).values()) == {"PIX", "PHB", "SYS"}


def test_cards_of_one_rack_are_in_its_domain(tmp_path: Path) -> None:
    fabrics = [gpu.fabric for gpu in read(plant_machine("gb200-nvl72", tmp_path).nvml, tmp_path).gpus]
    assert {fabric.domain for fabric in fabrics if fabric} == {"9c6f5af3-53bf-49b5-a436-b66766c413c3.4026"}
    assert len([fabric for fabric in fabrics if fabric]) == 4


@pytest.mark.parametrize(
    "name", ["dgx-h100", "hgx-b200", "dgx-a100", "pcie-h100nvl", "dgx-1v", "mig-a100", "pcie-l40s"]
)
def test_a_box_by_itself_is_in_no_domain_and_has_no_problem(name: str, tmp_path: Path) -> None:
    found = read(plant_machine(name, tmp_path).nvml, tmp_path)
    assert {gpu.fabric.domain for gpu in found.gpus if gpu.fabric} <= {None}
    assert found.problems == ()


@pytest.mark.parametrize(
    ("fabric", "told"),
    [
        ({"state": 1}, "down (not started)"),
        ({"state": 2}, "down (in progress)"),
        ({"state": 3, "status": pynvml.NVML_ERROR_UNKNOWN}, "down (Unknown Error)"),
    ],
)
def test_a_card_outside_the_fabric_has_no_nvlink_though_its_links_are_up(
    fabric: dict[str, int], told: str, tmp_path: Path
) -> None:
    document = load("hgx-b200")
    document["gpus"][2]["fabric"] = fabric
    found = read(FakeNvml(document), tmp_path)
    kinds = kinds_of(found)
    assert [kinds[min(2, other), max(2, other)] for other in (0, 1, 3)] == ["NODE"] * 3
    assert [kinds[2, other] for other in (4, 5, 6, 7)] == ["SYS"] * 4
    assert {kind for pair, kind in kinds.items() if 2 not in pair} == {"NV18"}
    (problem,) = found.problems
    assert problem.text.startswith(f"GPU 2: its NVLink fabric is {told}: ")


def test_a_degraded_fabric_is_a_problem_and_still_joins() -> None:
    document = load("hgx-b200")
    document["gpus"][5]["fabric"]["health"] = 0b01
    found = read(FakeNvml(document))
    assert found.problems == (
        SourceProblem("fabric", "GPU 5: its NVLink fabric is not well: its bandwidth is degraded"),
    )
    assert set(kinds_of(found).values()) == {"NV18"}


def test_two_partitions_of_one_box_are_not_joined_by_its_switches() -> None:
    document = load("gb200-nvl72")
    for gpu in document["gpus"][2:]:
        gpu["fabric"]["clique"] = 7
    assert [kind for kind in kinds_of(read(FakeNvml(document))).values() if kind == "NV18"] == ["NV18"] * 2


def test_a_divided_card_has_no_fabric_even_where_its_box_has_one() -> None:
    document = load("mig-a100")
    for gpu in document["gpus"]:
        gpu["fabric"] = {"state": 3, "clique": 1, "cluster": "9c6f5af3-53bf-49b5-a436-b66766c413c3"}
    assert [gpu.fabric is None for gpu in read(FakeNvml(document)).gpus] == [True, True, True, False, False]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH])
def test_a_driver_older_than_the_fabrics_function_is_no_problem(code: int) -> None:
    found = read(FakeNvml(load("dgx-h100"), {"nvmlDeviceGetGpuFabricInfoV": code}))
    assert {gpu.fabric for gpu in found.gpus} == {None}
    assert found.problems == ()
    assert set(kinds_of(found).values()) == {"NV18"}


def test_versions_and_profiles_are_read_from_nvmls_forms() -> None:
    assert [parse_cuda_version(number) for number in (12020, 13000, 0, None)] == ["12.2", "13.0", None, None]
    assert parse_profile("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me") == "1g.10gb+me"
    assert parse_profile("NVIDIA H100 80GB HBM3") is parse_profile(None) is None
