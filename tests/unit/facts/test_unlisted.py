"""Who may hold a GPU that the driver's list does not name: judged by the memory in use, as a container sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import IDLE_BYTES, GpuFacts, HostFacts
from meshwright_agent.facts.nvidia import drop_ambiguous_processes, find_listed_holders
from meshwright_agent.supervisor.specs import explain_not_started
from tests.fakes.machines import Machine, plant_machine

MIB = 2**20
OWN = DeviceProcess(pid=20, name="python", used_bytes=600 * MIB, own=True)
JOB = DeviceProcess(pid=4242, used_bytes=9000 * MIB)
OTHER = DeviceProcess(pid=4243, used_bytes=9000 * MIB)
UNLISTED = (4242, 4243)


@pytest.mark.parametrize(("listed", "used_bytes", "known"), [
    ((), 4 * MIB, ()),
    ((), IDLE_BYTES, None),
    ((), 49 * MIB, None),  # a bare context on the smallest MIG instance
    ((), None, None),
    ((OWN,), 604 * MIB, (OWN,)),
    ((OWN,), 1000 * MIB, None),
    ((OWN.model_copy(update={"used_bytes": None}),), 604 * MIB, None),
    ((JOB,), 4 * MIB, (JOB,)),
    ((OWN, JOB), None, (OWN, JOB)),
])  # fmt: skip
def test_nobody_else_is_said_only_where_memory_says_so_too(
    listed: tuple[DeviceProcess, ...], used_bytes: int | None, known: tuple[DeviceProcess, ...] | None
) -> None:
    assert find_listed_holders(listed, used_bytes) == known


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_more_memory_in_use_never_makes_a_device_free(less: int, more: int) -> None:
    if find_listed_holders((), less) is None:
        assert find_listed_holders((), less + more) is None


def plant_container(folder: Path, name: str = "dgx-h100") -> Machine:
    """Returns a machine as a container sees it: with process numbers of its own, and a driver that lists none."""
    machine = plant_machine(name, folder)
    reader = folder / "proc" / (folder / "proc/self").readlink()
    (reader / "ns").mkdir(parents=True)
    (reader / "ns/pid").symlink_to("pid:[4026532710]")
    assert machine.nvml is not None
    for index in {gpu.index for gpu in machine.read().gpus}:
        machine.nvml.change_gpu(index, processes=[])
    return machine


def test_in_a_container_a_card_in_use_that_lists_nobody_is_not_free(tmp_path: Path) -> None:
    facts = plant_container(tmp_path).read()
    assert [gpu.processes for gpu in facts.gpus] == [(), (), (), None, (), (), (), ()]
    assert facts.holders is None
    assert explain_not_started(facts)


def test_in_a_container_idle_cards_and_mig_instances_are_free(tmp_path: Path) -> None:
    facts = plant_container(tmp_path, "mig-a100").read()
    assert [gpu.processes for gpu in facts.gpus] == [(), (), (), (), ()]
    assert explain_not_started(facts) == ""


def test_on_a_whole_machine_the_list_is_believed(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path)
    assert machine.nvml is not None
    machine.nvml.change_gpu(3, processes=[])
    assert machine.read().gpus[3].processes == ()


def test_a_number_of_the_host_is_told_as_somebody_that_nobody_can_name(tmp_path: Path) -> None:
    machine = plant_container(tmp_path)
    assert machine.nvml is not None
    machine.nvml.change_gpu(3, processes=[[999999, 9000 * MIB]])
    gpu = machine.read().gpus[3]
    (seen,) = gpu.processes or ()
    assert (seen.pid, seen.name, seen.own, gpu.unlisted_pids) == (999999, None, False, (999999,))


@pytest.mark.parametrize(("processes", "known"), [
    ((JOB,), None), ((JOB, OTHER), (JOB, OTHER)), ((OWN, JOB), (OWN, JOB)), ((OWN,), (OWN,)),
    ((JOB.model_copy(update={"pid": 4000}),), (JOB.model_copy(update={"pid": 4000}),)), ((), ()), (None, None),
])  # fmt: skip
def test_beside_the_agents_worker_a_lone_number_of_the_host_may_be_the_worker(
    tmp_path: Path, processes: tuple[DeviceProcess, ...] | None, known: tuple[DeviceProcess, ...] | None
) -> None:
    facts = plant_machine("cpu-vm", tmp_path).read()
    facts = HostFacts(facts.machine, facts.cpu, gpus=(GpuFacts(0, processes=processes, unlisted_pids=UNLISTED),))
    assert drop_ambiguous_processes(facts).gpus[0].processes == known


def test_who_may_be_the_worker_is_no_holder_either(tmp_path: Path) -> None:
    facts = plant_machine("dgx-h100", tmp_path).read()
    gpus = tuple(replace(gpu, processes=(JOB,), unlisted_pids=UNLISTED) for gpu in facts.gpus)
    assert drop_ambiguous_processes(replace(facts, gpus=gpus)).holders is None
