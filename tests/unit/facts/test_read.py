from __future__ import annotations

import json
from pathlib import Path

import pynvml
import pytest

from meshwright_agent.facts.model import KernelLog, build_json, parse_host_facts
from meshwright_agent.facts.probe import LogPlace, read_holders, read_host_facts
from tests.fakes.machines import NAMES, build_roots, plant_machine


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_machine_reads_without_a_problem_and_its_facts_survive_json(name: str, tmp_path: Path) -> None:
    facts = plant_machine(name, tmp_path).read()
    assert facts.problems == ()
    assert parse_host_facts(json.loads(json.dumps(build_json(facts)))) == facts


def test_an_empty_machine_reads_as_unknown_without_an_error(tmp_path: Path) -> None:
    facts = read_host_facts(build_roots(tmp_path))
    assert (facts.gpus, facts.tpus, facts.numa_nodes, facts.problems, facts.holders) == ((), (), (), (), ())


def test_only_the_variables_that_decide_visibility_leave_the_probe(tmp_path: Path) -> None:
    roots = build_roots(tmp_path, {"CUDA_VISIBLE_DEVICES": "0", "AWS_SECRET_ACCESS_KEY": "x", "TPU_NAME": "t"})
    assert read_host_facts(roots).environment == {"CUDA_VISIBLE_DEVICES": "0", "TPU_NAME": "t"}


def test_a_kernel_log_is_looked_at_where_the_driver_or_the_bus_shows_a_card(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path / "host")
    log = LogPlace(tmp_path / "there-is-none")
    bare = build_roots(tmp_path / "container")  # whose sysfs shows no card
    assert read_host_facts(bare, log=log).kernel_log is None
    for roots, nvml in ((machine.roots, None), (bare, machine.nvml), (machine.roots, machine.nvml)):
        seen = read_host_facts(roots, nvml=nvml, log=log).kernel_log
        assert seen is not None
        assert seen.error
        assert read_host_facts(roots, nvml=nvml).kernel_log == KernelLog(is_wanted=False)
    assert read_host_facts(bare).kernel_log is None


def test_a_process_that_computes_holds_its_card_and_a_monitor_does_not(tmp_path: Path) -> None:
    facts = plant_machine("dgx-h100", tmp_path).read()
    assert facts.holders is not None
    assert [(holder.pid, holder.devices) for holder in facts.holders] == [(4242, (facts.gpus[3].uuid,))]
    assert facts.holders[0].command == "/usr/bin/python3 train.py"


def test_after_a_release_monitors_that_keep_the_files_open_are_named_too(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path)
    holders = read_holders(machine.roots, nvml=machine.nvml)
    assert holders is not None
    monitor, trainer = holders
    assert (monitor.name, len(monitor.devices)) == ("nvidia-persiste", 8)
    assert trainer.devices == ("/dev/nvidia3", machine.read().gpus[3].uuid)


def test_holders_are_unknown_where_the_driver_does_not_list_processes_and_none_is_seen(tmp_path: Path) -> None:
    failing = {"nvmlDeviceGetComputeRunningProcesses": pynvml.NVML_ERROR_NO_PERMISSION}
    machine = plant_machine("pcie-l40s", tmp_path, fail=failing)
    assert machine.read().holders is None
    assert read_holders(machine.roots, nvml=machine.nvml) is None


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_where_nvml_tells_no_card_who_has_a_cards_file_open_holds_it(tmp_path: Path, function: str) -> None:
    facts = plant_machine("dgx-h100", tmp_path, fail={function: pynvml.NVML_ERROR_DRIVER_NOT_LOADED}).read()
    assert facts.gpus == ()
    assert [holder.pid for holder in facts.holders or ()] == [1200, 4242]


def test_where_nvml_does_not_start_and_processes_cannot_be_seen_the_holders_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert read_host_facts(build_roots(tmp_path)).holders is None


def test_cards_without_device_files_can_be_opened_by_nobody(tmp_path: Path) -> None:
    machine = plant_machine("pcie-l40s", tmp_path, fail={"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    facts = machine.read()
    assert facts.problems
    assert facts.holders == ()


def test_a_host_without_accelerators_is_held_by_nobody(tmp_path: Path) -> None:
    assert read_holders(plant_machine("cpu-vm", tmp_path).roots) == ()
