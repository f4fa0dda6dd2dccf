"""AMD's GPUs: who has the one file of their driver, and who could not be looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.facts.nvidia import drop_ambiguous_processes
from meshwright_agent.facts.probe import read_holders, read_host_facts
from meshwright_agent.facts.procfs import list_computing
from meshwright_agent.supervisor.specs import explain_not_started
from tests.fakes.machines import build_roots, plant_machine
from tests.fakes.tree import plant

IDLE = """
=> proc/self -> 11
== proc/2/comm
kthreadd
=/ proc/2/fd
== proc/10/stat
10 (agent) S 1 10
== proc/11/stat
11 (probe) S 10 11
== proc/13/comm
compositor
== proc/13/stat
13 (compositor) S 1 13
=> proc/13/fd/5 -> /dev/dri/renderD128
== dev/kfd

== dev/dri/renderD128

"""
TRAINER = """
== proc/12/comm
python3
== proc/12/cmdline
python3 train.py
== proc/12/stat
12 (python3) S 1 12
=> proc/12/fd/3 -> /dev/kfd
=> proc/12/fd/4 -> /dev/dri/renderD128
=> proc/12/fd/5 -> /tmp/data
"""
HIDDEN = """
== proc/14/fd
a file, so that listing it fails as it does without permission
== proc/14/cmdline
vllm
"""
LISTED = "=/ sys/class/kfd/kfd/proc/14\n"
NONE_LISTED = "=/ sys/class/kfd/kfd/proc\n"


def read(text: str, folder: Path) -> HostFacts:
    plant(text, folder)
    return read_host_facts(build_roots(folder))


def test_who_computes_on_amds_gpus_is_found_by_its_open_file_and_who_only_draws_is_not(tmp_path: Path) -> None:
    facts = read(IDLE + TRAINER, tmp_path)
    assert facts.kfd is not None
    assert facts.holders == facts.kfd.holders
    (holder,) = facts.holders or ()
    assert (holder.pid, holder.devices) == (12, ("/dev/dri/renderD128", "/dev/kfd"))
    assert explain_not_started(facts) == "process 12 (python3) holds /dev/dri/renderD128 and 1 more"
    assert read_holders(build_roots(tmp_path)) == facts.holders


def test_gpus_that_nobody_has_are_free(tmp_path: Path) -> None:
    facts = read(IDLE, tmp_path)
    assert (facts.holders, explain_not_started(facts)) == ((), "")


@pytest.mark.parametrize(("hidden", "free"), [
    (HIDDEN, False),  # a kernel that does not list them
    (HIDDEN + LISTED, False),
    (HIDDEN + NONE_LISTED, True),
    (HIDDEN.replace("== proc/14/fd", "== proc/15/comm\n== proc/14/fd") + LISTED, False),
])  # fmt: skip
def test_where_a_process_cannot_be_looked_into_the_kernels_own_list_decides(
    tmp_path: Path, hidden: str, free: bool
) -> None:
    facts = read(IDLE + hidden, tmp_path)
    assert facts.holders == (() if free else None)
    assert (explain_not_started(facts) == "") is free


@pytest.mark.parametrize(("listed", "free"), [("", False), (LISTED, False), (NONE_LISTED, True)])
def test_a_container_believes_the_kernels_list_and_not_its_own(tmp_path: Path, listed: str, free: bool) -> None:
    facts = read(IDLE.replace("kthreadd", "sh") + listed, tmp_path)
    assert (explain_not_started(facts) == "") is free


def test_the_agents_own_worker_holds_them_and_is_in_nobodys_way(tmp_path: Path) -> None:
    facts = read(IDLE + TRAINER.replace("(python3) S 1 ", "(python3) S 10 "), tmp_path)
    assert [(holder.pid, holder.own) for holder in facts.holders or ()] == [(12, True)]
    assert explain_not_started(facts) == ""


def test_without_the_drivers_file_nothing_is_said_of_amd(tmp_path: Path) -> None:
    facts = read(IDLE.replace("== dev/kfd", "== dev/null") + LISTED, tmp_path)
    assert (facts.kfd, facts.holders) == (None, ())
    assert list_computing(tmp_path / "sys") == ("14",)
    assert list_computing(tmp_path) is None


def test_nvidias_holders_do_not_hide_amds_nor_does_a_doubt_about_them(tmp_path: Path) -> None:
    machine = plant_machine("dgx-h100", tmp_path)
    plant("== dev/kfd\n\n=> proc/77/fd/3 -> /dev/kfd\n== proc/77/stat\n77 (python3) S 1 77\n", tmp_path)
    facts = machine.read()
    assert [holder.pid for holder in facts.holders or ()] == [77, 4242]
    lone = replace(facts.gpus[3], processes=(DeviceProcess(pid=5),), unlisted_pids=(5,))
    doubted = drop_ambiguous_processes(replace(facts, gpus=(lone,)))
    assert doubted.gpus[0].processes is None
    assert [holder.pid for holder in doubted.holders or ()] == [77]
