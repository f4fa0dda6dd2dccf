from __future__ import annotations

from pathlib import Path

import pytest

from meshwright_agent.facts.procfs import (
    parse_container,
    parse_quota,
    read_cpu,
    read_machine,
    read_memory_limit,
    read_usable_threads,
)
from tests.fakes.machines import build_roots
from tests.fakes.tree import plant

SELF = "=> proc/self -> 5\n== proc/5/status\nCpus_allowed_list:\t0-7\n== proc/5/cgroup\n{cgroup}\n=cpus 1 4 2\n"


def write_limits(folder: Path, cgroup: str, **files: str) -> None:
    plant(SELF.format(cgroup=cgroup), folder)
    for path, text in files.items():
        plant(f"== sys/fs/cgroup/{path}\n{text}", folder)


@pytest.mark.parametrize(("text", "cpus"), [
    ("200000 100000", 2.0), ("20000 100000", 0.2), ("max 100000", None), ("-1 100000", None), ("1 0", None), ("", None),
])  # fmt: skip
def test_a_quota_is_cpus_and_no_limit_is_none(text: str, cpus: float | None) -> None:
    assert parse_quota(text) == cpus


def test_usable_threads_are_the_least_of_affinity_and_every_quota_above(tmp_path: Path) -> None:
    write_limits(tmp_path, "0::/a/b", **{"a/b/cpu.max": "600000 100000", "a/cpu.max": "350000 100000"})
    assert read_usable_threads(build_roots(tmp_path)) == 3


def test_a_quota_of_the_first_cgroup_version_counts(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"}
    write_limits(tmp_path, "1:cpu,cpuacct:/x", **files)
    assert read_usable_threads(build_roots(tmp_path)) == 2


def test_a_container_that_sees_its_own_cgroup_as_the_root_finds_its_quota(tmp_path: Path) -> None:
    write_limits(tmp_path, "0::/../../../outside", **{"cpu.max": "150000 100000"})
    assert read_usable_threads(build_roots(tmp_path)) == 1


def test_the_tightest_memory_limit_bounds_what_is_available(tmp_path: Path) -> None:
    files = {"a/memory.max": "4096000", "a/memory.current": "96000", "memory.max": "max"}
    write_limits(tmp_path, "0::/a", **files)
    plant("== proc/meminfo\nMemTotal: 8000 kB\nMemAvailable: 7000 kB", tmp_path)
    roots = build_roots(tmp_path)
    cpu = read_cpu(roots)
    assert read_memory_limit(roots) == (4096000, 4000000)
    (tmp_path / "sys/fs/cgroup/a/memory.stat").write_text(
        "anon 1000\nodd\ninactive_file 90000\n"
    )  # the kernel drops it
    assert read_memory_limit(roots) == (4096000, 4090000)
    assert (cpu.memory_bytes, cpu.memory_limit_bytes, cpu.available_bytes) == (8192000, 4096000, 4000000)
    for name, size in (("memory.max", 6000000), ("memory.current", 5990000), ("a/memory.high", 4000000)):
        (tmp_path / f"sys/fs/cgroup/{name}").write_text(f"{size}\n")  # a parent is fuller; the kernel slows it earlier
    assert read_memory_limit(roots) == (4000000, 10000)


def test_the_first_versions_largest_number_is_no_limit(tmp_path: Path) -> None:
    write_limits(tmp_path, "4:memory:/", **{"memory/memory.limit_in_bytes": "9223372036854771712"})
    assert read_memory_limit(build_roots(tmp_path)) == (None, None)


def test_an_empty_tree_knows_nothing_and_does_not_fail(tmp_path: Path) -> None:
    roots = build_roots(tmp_path)
    cpu = read_cpu(roots)
    assert (cpu.model, cpu.cores, cpu.threads, cpu.usable_threads, cpu.memory_bytes) == (None,) * 5
    assert cpu.architecture == "x86_64"
    assert read_machine(roots).name == "localhost"


@pytest.mark.parametrize(("environ", "cgroup", "mounts", "container"), [
    ({"KUBERNETES_SERVICE_HOST": "1"}, "0::/", "", "kubernetes"), ({"container": "podman"}, "0::/", "", "podman"),
    ({}, "0::/kubepods/besteffort/pod1", "", "kubernetes"), ({}, "3:cpu:/docker/0ab", "", "docker"),
    ({}, "0::/", "1 2 0:1 / / rw - overlay overlay rw,upperdir=/var/lib/docker/overlay2/x", "docker"),
    ({}, "0::/", "1 2 0:1 / /mnt rw - overlay overlay rw,upperdir=/var/lib/docker/x", None),
    ({}, "0::/init.scope", "22 1 8:1 / / rw - ext4 /dev/sda1 rw", None),
])  # fmt: skip
def test_a_container_is_known_by_what_it_leaves(
    environ: dict[str, str], cgroup: str, mounts: str, container: str | None
) -> None:
    assert parse_container(environ, cgroup, mounts) == container
