"""Paths of cgroups as runtimes write them; ids are made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts.procfs import name_job

C = "4f1e" * 16
D = "ab90" * 16
UID = "6a3f10d0-5b1e-4c0a-9d6f-0020c1a04711"
SLICED = UID.replace("-", "_")
STATIC = "0123456789abcdef" * 2


POD = f"kubepods-pod{SLICED}.slice"
PLACES = {
    None: (
        "/", "/user.slice/user-1000.slice/session-3.scope", f"/machine.slice/libpod-conmon-{C}.scope",
        "/home/job_4711/step_0", "/slurm/uid_1000/job_x", f"/docker/{C[:63]}", f"/docker/{C.upper()}",
        f"/kubepods/pod{UID[:-1]}/x",
    ),
    f"container {C[:12]}": (
        f"/docker/{C}", f"/system.slice/docker-{C}.scope", f"/../docker-{C}.scope", f"/libpod_parent/libpod-{C}",
        f"/machine.slice/libpod-{C}.scope", f"/machine.slice/libpod-{C}.scope/container",
        f"/user.slice/user-1.slice/user@1.service/user.slice/libpod-{C}.scope/container",
    ),
    f"container {D[:12]}": (f"/docker/{C}/docker/{D}",),
    f"pod {UID}": (
        f"/kubepods.slice/{POD}/crio-conmon-{C}.scope",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice/cri-containerd-{C}.scope",
        f"/kubepods.slice/{POD}/crio-{C}.scope", f"/kubepods/besteffort/pod{UID}/{C}", f"/kubepods/pod{UID}/crio-{C}",
        f"/system.slice/containerd.service/kubepods-besteffort-pod{SLICED}.slice:cri-containerd:{C}",
        f"/docker/{D}/kubelet.slice/kubelet-kubepods.slice/kubelet-{POD}/cri-containerd-{C}.scope",
    ),
    f"pod {STATIC}": (f"/kubepods/burstable/pod{STATIC}/{C}",),
    "slurm 4711": (
        "/slurm/uid_1000/job_4711/step_0/task_0", "/slurm_node1/uid_1000/job_4711/step_batch",
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
    ),
    "slurm 12": ("/system.slice/node1_slurmstepd.scope/job_12/step_extern/user",),
    "slurm 7": (f"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/docker-{C}.scope",),
}  # fmt: skip


@pytest.mark.parametrize(("path", "place"), [(path, place) for place, paths in PLACES.items() for path in paths])
def test_a_process_is_placed_by_its_cgroup(path: str, place: str | None) -> None:
    for form in ("0::{}\n", "12:memory:{}\n11:cpu,cpuacct:{}\n", "0::{} (deleted)\n"):
        assert name_job(form.replace("{}", path)) == place


def test_the_first_hierarchy_that_says_something_counts() -> None:
    text = f"13:misc:/\n12:memory:/slurm/uid_0/job_9/step_0\n1:name=systemd:/docker/{C}\n0::/\n"
    assert name_job(text) == "slurm 9"


PARTS = ("", "..", "kubepods", "slurm", "job_1", "job_", C, f"docker-{C}.scope", f"pod{UID}", "a:b:c")
_NAMES = st.sampled_from([*PARTS, f":cri-containerd:{C}"])


@given(
    st.one_of(st.text(), st.lists(st.one_of(_NAMES, st.text(max_size=8))).map(lambda parts: "0::/" + "/".join(parts)))
)
def test_any_text_is_read_without_harm_and_what_is_found_stands_in_it(text: str) -> None:
    kind, _, name = (name_job(text) or " ").partition(" ")
    assert (f"job_{name}" if kind == "slurm" else name) in text.replace("_", "-" if kind == "pod" else "_")
