from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright_agent.facts.model import GpuLink, SourceProblem
from meshwright_agent.facts.nvidia import NvidiaFacts, read_nvidia
from meshwright_agent.facts.sysfs import Roots
from tests.fakes.machines import RECORDED, plant_machine
from tests.fakes.nvml import NO_TABLE, FakeNvml, check_against_pynvml
from tests.fakes.tree import plant

MIB = 2**20
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / name / "nvml.json").read_text())
    return document


def read(nvml: Any, folder: Path = Path("/nowhere")) -> NvidiaFacts:
    return read_nvidia(nvml, Roots(folder), NO_TABLE)


def test_the_fake_has_the_functions_parameters_and_constants_of_the_real_module() -> None:
    assert check_against_pynvml(FakeNvml) == []


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


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_each_level_of_the_pci_tree_has_nvidia_smis_word(level: int, kind: str) -> None:
    document = load("pcie-l40s")
    document["ancestors"] = dict.fromkeys(document["ancestors"], level)
    assert {link.kind for link in read(FakeNvml(document)).links} == {kind}


def test_a_divided_card_without_instances_is_a_problem_since_nothing_can_run_there() -> None:
    document = load("mig-a100")
    document["gpus"][0]["instances"] = [None, None]
    found = read(FakeNvml(document))
    assert len(found.gpus) == 2
    assert "GPU 0" in found.problems[0].text
    assert "MIG mode without instances" in found.problems[0].text


@pytest.mark.parametrize(("function", "field"), [
    ("nvmlDeviceGetName", "kind"), ("nvmlDeviceGetUUID", "uuid"), ("nvmlDeviceGetPciInfo", "pci_bus_id"),
    ("nvmlDeviceGetMemoryInfo", "memory_bytes"), ("nvmlDeviceGetArchitecture", "architecture"),
    ("nvmlDeviceGetCudaComputeCapability", "compute_capability"), ("nvmlDeviceGetComputeMode", "compute_mode"),
    ("nvmlDeviceGetMinorNumber", "minor"), ("nvmlDeviceGetComputeRunningProcesses", "processes"),
])  # fmt: skip
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


@pytest.mark.parametrize("word", ["Fabric", "NvLink", "CommonAncestor"])
def test_of_a_driver_that_is_asked_for_holders_only_no_fabric_and_no_link_is_asked(word: str) -> None:
    for wants_health in (True, False):
        nvml = FakeNvml(load("pcie-l40s"))
        read_nvidia(nvml, Roots(Path("/nowhere")), NO_TABLE, wants_health=wants_health)
        assert any(word in asked for asked in nvml.asked) is wants_health


@pytest.mark.parametrize("function", [name for name in vars(FakeNvml) if name.startswith(("nvmlDevice", "nvmlSystem"))])
@pytest.mark.parametrize("name", ["dgx-h100", "mig-a100", "pcie-l40s", "gb200-nvl72"])
def test_no_failing_call_of_the_driver_is_an_error(function: str, name: str) -> None:
    nvml = FakeNvml(load(name), {function: UNKNOWN})
    found = read(nvml)
    assert not nvml.is_open
    assert len({gpu.key for gpu in found.gpus}) == len(found.gpus)


def test_a_release_of_the_module_without_a_function_costs_one_field() -> None:
    class Older(FakeNvml):
        nvmlDeviceGetArchitecture = property()  # type: ignore[assignment] # noqa: N815

    found = read(Older(load("pcie-l40s")))
    assert {gpu.architecture for gpu in found.gpus} == {None}
    assert "does not have it" in found.problems[0].text


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


def test_a_link_to_a_card_or_a_processor_is_none_to_a_switch(tmp_path: Path) -> None:
    machine = plant_machine("dgx-1v", tmp_path)
    document = load("dgx-1v")
    for gpu in document["gpus"]:
        gpu["remote_types"] = [255] * len(gpu["nvlinks"])  # not told: the bus tells that there are cards
    assert kinds_of(read(FakeNvml(document), tmp_path)) == kinds_of(read(machine.nvml, tmp_path))
    for gpu in document["gpus"]:
        gpu.update(nvlinks=["00000004:00:01.0"] * 6, remote_types=[1] * 6)  # a POWER9's, on no PCI bus
    assert set(kinds_of(read(FakeNvml(document), tmp_path)).values()) == {"PIX", "PHB", "SYS"}


@pytest.mark.parametrize(
    "name", ["dgx-h100", "hgx-b200", "dgx-a100", "pcie-h100nvl", "dgx-1v", "mig-a100", "pcie-l40s"]
)
def test_a_box_by_itself_is_in_no_domain_and_has_no_problem(name: str, tmp_path: Path) -> None:
    found = read(plant_machine(name, tmp_path).nvml, tmp_path)
    assert {gpu.fabric.domain for gpu in found.gpus if gpu.fabric} <= {None}
    assert found.problems == ()


@pytest.mark.parametrize(("fabric", "told"), [
    ({"state": 1}, "down (not started)"), ({"state": 2}, "down (in progress)"),
    ({"state": 3, "status": pynvml.NVML_ERROR_UNKNOWN}, "down (Unknown Error)"),
])  # fmt: skip
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
    said = f"GPU 2: its NVLink fabric is {told}: "
    kind = "fabric_down" if "status" in fabric else "fabric_starting"
    assert (problem.kind, problem.text.startswith(said)) == (kind, True)


def test_a_degraded_fabric_is_a_problem_and_still_joins() -> None:
    document = load("hgx-b200")
    document["gpus"][5]["fabric"]["health"] = 0b01
    found = read(FakeNvml(document))
    said = "GPU 5: its NVLink fabric is not well: its bandwidth is degraded"
    assert found.problems == (SourceProblem("fabric", said),)
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
