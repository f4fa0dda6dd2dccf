from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.wire.devices import DeviceProcess, Devices
from meshwright_agent.facts.model import FabricFacts, GpuFacts, HostFacts, KfdFacts, RefusedCard, SourceProblem
from meshwright_agent.host.gpu import match_devices
from meshwright_agent.host.snapshot import HostSnapshot, JaxReport
from tests.fakes.machines import JAX_AT, WORKER, Machine, plant_machine, show

H100 = "NVIDIA H100 80GB HBM3"
MI300X = "AMD Instinct MI300X"


def join(facts: HostFacts | None, devices: list[dict[str, Any]], platform: str = "gpu") -> Devices:
    return show(facts, JaxReport({"platform": platform, "devices": devices}, JAX_AT))


def jax_device(index: int, kind: str = H100, **fields: Any) -> dict[str, Any]:
    return {"id": index, "kind": kind, "platform": "gpu", "local_hardware_id": index} | fields


def jax_ids(seen: Devices) -> list[int | None]:
    return [device.jax_id for device in seen.devices]


def codes(seen: Devices) -> list[str]:
    return [notice.code for notice in seen.warnings]


@pytest.fixture
def dgx(tmp_path: Path) -> Machine:
    return plant_machine("dgx-h100", tmp_path)


@pytest.fixture
def dgx_facts(dgx: Machine) -> HostFacts:
    return dgx.read()


CLUSTER = "9c6f5af3-53bf-49b5-a436-b66766c413c3"


def in_clique(gpu: GpuFacts, clique: int, **fields: Any) -> GpuFacts:
    return replace(gpu, fabric=FabricFacts("completed", cluster_uuid=CLUSTER, clique_id=clique, **fields))


def test_a_host_whose_gpus_are_not_all_in_one_domain_is_in_none_and_that_is_said(dgx_facts: HostFacts) -> None:
    gpus = dgx_facts.gpus
    for split in (
        (*(in_clique(gpu, 1) for gpu in gpus[:6]), *(in_clique(gpu, 2) for gpu in gpus[6:])),
        (*(in_clique(gpu, 1) for gpu in gpus[:6]), *(in_clique(gpu, 1, error="Timeout") for gpu in gpus[6:])),
        (*(in_clique(gpu, 1) for gpu in gpus[:6]), *gpus[6:]),
    ):
        seen = show(replace(dgx_facts, gpus=split))
        (notice,) = seen.warnings
        assert (seen.granules[0].domain, notice.code) == (None, "nvlink_domains_differ")
        assert "device 6, 7 not in device 0's" in notice.message
        assert f"{CLUSTER}.1" in notice.message


def test_a_fabric_that_is_down_is_a_warning_that_a_person_sees(tmp_path: Path) -> None:
    machine = plant_machine("gb200-nvl72", tmp_path)
    assert machine.nvml is not None
    machine.nvml.change_gpu(1, fabric={"state": 2})
    seen = machine.view()
    assert [notice.code for notice in seen.warnings] == ["driver_problem", "nvlink_domains_differ"]
    assert "GPU 1: its NVLink fabric is down (in progress)" in seen.warnings[0].message
    assert {link.kind for link in seen.links if 1 in (link.a, link.b)} == {"SYS"}


def test_jax_ids_follow_cuda_visible_devices(tmp_path: Path) -> None:
    seen = plant_machine("pcie-l40s", tmp_path).view()
    assert jax_ids(seen) == [1, None, 0, None]
    assert codes(seen) == ["devices_hidden"]
    assert "1, 3" in seen.warnings[0].message
    assert seen.devices[1].compute_mode == "exclusive_process"
    assert [link.kind for link in seen.links] == ["NODE", "SYS", "SYS", "SYS", "SYS", "NODE"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(order=st.permutations(range(8)), count=st.integers(1, 8), by_uuid=st.booleans())
def test_any_order_of_visible_cards_is_joined_to_the_right_ones(
    dgx_facts: HostFacts, order: list[int], count: int, by_uuid: bool
) -> None:
    gpus = dgx_facts.gpus
    names = [str(gpus[card].uuid) if by_uuid else str(card) for card in order[:count]]
    facts = replace(dgx_facts, environment={"CUDA_VISIBLE_DEVICES": ",".join(names)})
    found = match_devices(facts, [jax_device(ordinal, id=100 + ordinal) for ordinal in reversed(range(count))])
    assert {key: device["id"] for key, device in found.items()} == {
        gpus[card].key: 100 + ordinal for ordinal, card in enumerate(order[:count])
    }


def test_a_kind_that_is_here_once_is_joined_where_cudas_order_cannot_be_told(tmp_path: Path) -> None:
    facts = replace(plant_machine("mig-a100", tmp_path).read(), environment={})
    instance = jax_device(0, "NVIDIA A100-SXM4-40GB MIG 2g.10gb")
    facts = replace(facts, gpus=facts.gpus[:3])
    assert jax_ids(join(facts, [instance])) == [None, 0, None]


def test_cards_of_two_models_in_an_unknown_order_are_not_guessed(dgx: Machine) -> None:
    facts = dgx.read()
    mixed = replace(facts, gpus=tuple(replace(gpu, kind="A" if gpu.index < 4 else "B") for gpu in facts.gpus))
    seen = join(mixed, [jax_device(index, "A") for index in range(8)])
    assert jax_ids(seen) == [None] * 8
    assert codes(seen) == ["jax_device_unmatched"]


def test_a_cached_view_of_more_cards_than_are_left_is_not_joined(dgx: Machine) -> None:
    facts = dgx.read()
    left = replace(facts, gpus=facts.gpus[1:], links=())
    seen = join(left, [jax_device(index) for index in range(8)])
    assert (jax_ids(seen), codes(seen)) == ([None] * 7, ["jax_device_unmatched"])


def test_one_of_two_alike_is_not_guessed(dgx: Machine) -> None:
    facts = dgx.read()
    kinds = ["A", "A", "B"]
    gpus = tuple(replace(gpu, kind=kind) for gpu, kind in zip(facts.gpus, kinds, strict=False))
    assert jax_ids(join(replace(facts, gpus=gpus), [jax_device(0, "B"), jax_device(1, "A")])) == [None, None, 0]


def test_gpus_that_the_agents_jax_does_not_see_are_listed_with_a_warning(dgx: Machine) -> None:
    seen = join(dgx.read(), [{"id": 0, "kind": "cpu", "platform": "cpu"}], "cpu")
    assert (seen.platform, jax_ids(seen), codes(seen)) == ("gpu", [None] * 8, ["jax_sees_no_gpu"])
    assert "doctor" in seen.warnings[0].hint


def test_asked_for_cpu_devices_a_gpu_host_shows_these(dgx: Machine) -> None:
    seen = dgx.view(with_jax=False, cpu_devices=2)
    assert (seen.platform, len(seen.devices), seen.software.driver) == ("cpu", 2, "535.129.03")


def test_gpus_that_only_jax_knows_are_listed_with_what_it_says(tmp_path: Path) -> None:
    facts = plant_machine("cpu-vm", tmp_path).read()
    stats = {"bytes_limit": 100, "bytes_in_use": 7}
    for known in (facts, None):
        seen = join(known, [jax_device(0, MI300X, memory_stats=stats), jax_device(1, MI300X)])
        first, second = seen.devices
        assert (seen.platform, first.kind, first.basis) == ("gpu", MI300X, "live")
        assert first.memory is not None
        assert (first.memory.limit_bytes, first.memory.used_bytes, first.memory.capacity_bytes) == (100, 7, None)
        assert (second.memory, second.processes, seen.links) == (None, None, ())


@pytest.mark.parametrize("own", [True, False])
def test_a_gpu_of_amd_is_held_by_whoever_has_its_drivers_file(tmp_path: Path, own: bool) -> None:
    trainer = DeviceProcess(pid=12, name="python3", devices=("/dev/kfd",), own=own, job="slurm 7")
    facts = replace(plant_machine("cpu-vm", tmp_path).read(), kfd=KfdFacts((trainer,)))
    for device in join(facts, [jax_device(index, MI300X) for index in range(2)]).devices:
        assert [(process.pid, process.own, process.job) for process in device.processes or ()] == [(12, own, "slurm 7")]


@pytest.mark.parametrize(("kfd", "problems", "known"), [
    (KfdFacts(()), (), ()), (KfdFacts(None), (), None),
    (KfdFacts(()), (SourceProblem("no_library", "the package nvidia-ml-py is not installed"),), None), (None, (), None),
])  # fmt: skip
def test_a_gpu_that_only_jax_knows_is_free_only_where_amds_driver_says_so(
    tmp_path: Path, kfd: KfdFacts | None, problems: tuple[SourceProblem, ...], known: tuple[()] | None
) -> None:
    facts = replace(plant_machine("cpu-vm", tmp_path).read(), kfd=kfd, problems=problems)
    assert join(facts, [jax_device(0, MI300X)]).devices[0].processes == known


def test_before_jax_has_listed_amds_gpus_a_warning_says_that_they_are_not_among_the_devices(tmp_path: Path) -> None:
    facts = replace(plant_machine("cpu-vm", tmp_path).read(), kfd=KfdFacts(()))
    seen = show(facts)
    assert (seen.platform, codes(seen)) == ("cpu", ["gpus_not_listed"])
    jax = JaxReport({"platform": "cpu", "devices": [jax_device(0, "cpu", platform="cpu")]}, JAX_AT)
    snapshot = HostSnapshot(worker=WORKER, facts=facts, facts_at=JAX_AT, jax=jax)
    assert snapshot.mismatch == "this host has AMD's driver (/dev/kfd), but its JAX runs on cpu"
    assert replace(snapshot, cpu_devices=8).mismatch == ""
    assert codes(join(facts, [jax_device(0, MI300X)])) == []


def test_jax_on_the_cpu_of_a_host_whose_nvidia_driver_is_down_is_a_mismatch_unless_asked_for(tmp_path: Path) -> None:
    facts = plant_machine("cpu-vm", tmp_path).read()
    down = replace(facts, problems=(SourceProblem("driver_down", "none of 8 NVIDIA card(s) can be used"),))
    jax = JaxReport({"platform": "cpu", "devices": [jax_device(0, "cpu", platform="cpu")]}, JAX_AT)
    snapshot = HostSnapshot(worker=WORKER, facts=down, facts_at=JAX_AT, jax=jax)
    assert "NVIDIA cards, whose driver does not answer, but its JAX runs on cpu" in snapshot.mismatch
    assert (replace(snapshot, cpu_devices=8).mismatch, replace(snapshot, facts=facts).mismatch) == ("", "")


@pytest.mark.parametrize(("address", "is_said"), [("0000:1b:00.0", True), (None, True), ("0000:ff:00.0", False)])
def test_a_card_that_is_lost_before_others_is_said_to_shift_their_indices(
    dgx_facts: HostFacts, address: str | None, is_said: bool
) -> None:
    lost = RefusedCard(address, None, "NVML gives no handle for it")
    assert ("devices_renumbered" in codes(show(replace(dgx_facts, refused=(lost,))))) is is_said
