from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts.model import GpuLink, ProcessFacts
from meshwright_agent.facts.nvidia import (
    NvidiaFacts,
    NvLinks,
    count_nvlinks,
    find_nvml,
    parse_cuda_version,
    parse_profile,
    read_nvidia,
)
from tests.fakes.machines import RECORDED, plant_machine
from tests.fakes.nvml import FakeNvml, check_against_pynvml
from tests.fakes.tree import plant

MIB = 2**20
GPU_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RECORDED / name / "nvml.json").read_text())
    return document


def read(nvml: Any, folder: Path = Path("/nowhere")) -> NvidiaFacts:
    return read_nvidia(
        nvml, sysfs=folder / "sys", dev=folder / "dev", describe=lambda pid, used: ProcessFacts(pid, used_bytes=used)
    )


def test_the_fake_has_the_functions_parameters_and_constants_of_the_real_module() -> None:
    assert check_against_pynvml(FakeNvml) == []


def test_the_check_of_the_fake_finds_a_wrong_parameter_and_a_wrong_constant() -> None:
    class Wrong:
        NVML_NVLINK_MAX_LINKS = 1

        def nvmlDeviceGetName(self, device: object) -> str:  # noqa: N802
            return ""

        def nvmlDeviceGetColour(self, handle: object) -> str:  # noqa: N802
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
    assert card.processes == (ProcessFacts(4242, used_bytes=72459 * MIB),)


def test_every_pair_of_a_dgx_is_joined_by_18_nvlinks(tmp_path: Path) -> None:
    found = read(plant_machine("dgx-h100", tmp_path).nvml)
    assert {(link.kind, link.count) for link in found.links} == {("NV18", 18)}
    assert len({(link.a, link.b) for link in found.links}) == 28
    assert found.links[0].bandwidth_bytes_per_s == 18 * 26562e6


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
    assert "GPU 0" in found.problems[0]
    assert "MIG mode without instances" in found.problems[0]


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
    assert [problem for problem in found.problems if problem.startswith(f"GPU 2: {function}: ")] == list(found.problems)
    assert found.gpus[0] == whole.gpus[0]
    assert len(found.gpus) == 4


@pytest.mark.parametrize("function", [name for name in vars(FakeNvml) if name.startswith(("nvmlDevice", "nvmlSystem"))])
@pytest.mark.parametrize("name", ["dgx-h100", "mig-a100", "pcie-l40s"])
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
    assert any("GPU 5" in problem for problem in found.problems)


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
    assert "does not have it" in found.problems[0]


def test_cards_on_the_bus_that_nvml_cannot_read_are_a_problem(tmp_path: Path) -> None:
    plant_machine("dgx-h100", tmp_path)
    failing = FakeNvml({}, {"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    (problem,) = read(failing, tmp_path).problems
    assert "8 NVIDIA card(s)" in problem
    assert "0000:1b:00.0" in problem
    (problem,) = read(None, tmp_path).problems
    assert "nvidia-ml-py" in problem


def test_device_files_without_nvml_are_a_problem_where_the_bus_is_hidden(tmp_path: Path) -> None:
    plant("== dev/nvidia0\n\n== dev/nvidiactl\n\n== dev/null\n", tmp_path)
    (problem,) = read(None, tmp_path).problems
    assert "1 NVIDIA card(s)" in problem
    assert "(/dev/nvidia0)" in problem


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


@given(st.integers(0, 36), st.integers(0, 36), st.integers(0, 6), st.integers(0, 6))
def test_links_between_two_cards_count_the_same_from_both_ends(s1: int, s2: int, d1: int, d2: int) -> None:
    a, b = NvLinks({"b": d1} if d1 else {}, s1), NvLinks({"a": d2} if d2 else {}, s2)
    assert count_nvlinks("a", a, "b", b) == count_nvlinks("b", b, "a", a) <= max(s1, d1)


@pytest.mark.parametrize("function", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType"])
def test_a_card_whose_links_cannot_be_counted_has_no_link_rather_than_a_slow_one(function: str) -> None:
    document = load("dgx-h100")
    found = read(FakeNvml(document, {f"{function}:{document['gpus'][0]['uuid']}": UNKNOWN}))
    assert len(found.links) == 21
    assert {link.kind for link in found.links} == {"NV18"}
    assert found.problems


def test_cards_whose_addresses_are_unknown_are_not_taken_for_neighbours() -> None:
    assert count_nvlinks(None, NvLinks({"b": 2}), None, NvLinks({"a": 2})) == 0


def test_versions_and_profiles_are_read_from_nvmls_forms() -> None:
    assert [parse_cuda_version(number) for number in (12020, 13000, 0, None)] == ["12.2", "13.0", None, None]
    assert parse_profile("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me") == "1g.10gb+me"
    assert parse_profile("NVIDIA H100 80GB HBM3") is parse_profile(None) is None
