"""The machine itself: name, kernel, container, processors, memory, and what of them this process may use.

Rule: files below the roots are the only source; /proc/self is this process. Knows no accelerator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from meshwright_agent.facts.model import CpuFacts, MachineFacts
from meshwright_agent.facts.sysfs import (
    Roots,
    list_folder,
    parse_cpu_list,
    parse_fields,
    parse_int,
    parse_kib,
    read_int,
    read_text,
)

_UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned number; anything near it is no limit."""

_CONTAINER_MARKS: Final = (
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/containers/storage/", "podman"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)
"""What a cgroup path, or the options of the root mount, hold inside a container. Most specific first."""


def read_machine(roots: Roots) -> MachineFacts:
    """Returns what the machine is and runs; of this process's container, what it can see."""
    kernel = roots.proc / "sys/kernel"
    return MachineFacts(
        name=read_text(kernel / "hostname") or "localhost",
        boot_id=read_text(kernel / "random/boot_id"),
        kernel=read_text(kernel / "osrelease"),
        operating_system=parse_os_release(read_text(roots.etc / "os-release") or ""),
        container=parse_container(
            roots.environ,
            read_text(roots.proc / "self/cgroup") or "",
            read_text(roots.proc / "self/mountinfo") or "",
        ),
    )


def parse_os_release(text: str) -> str | None:
    """Returns PRETTY_NAME of /etc/os-release. Source: os-release(5)."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def parse_container(environ: Mapping[str, str], cgroup: str, mountinfo: str) -> str | None:
    """Returns the container runtime that environment, cgroup or root mount give away; None: none seen."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if environ.get("container"):  # set by podman and systemd-nspawn for their first process
        return environ["container"]
    root_mount = "\n".join(line for line in mountinfo.splitlines() if line.split()[4:5] == ["/"])
    return next((name for mark, name in _CONTAINER_MARKS if mark in cgroup or mark in root_mount), None)


def read_cpu(roots: Roots) -> CpuFacts:
    """Returns processors and memory, and what of both this process may use."""
    info = parse_fields(read_text(roots.proc / "cpuinfo") or "")
    memory = parse_fields(read_text(roots.proc / "meminfo") or "")
    topology = _read_topology(roots.sysfs)
    limit, used = read_memory_limit(roots)
    total = parse_kib(memory.get("MemTotal"))
    return CpuFacts(
        model=info.get("model name"),
        architecture=read_text(roots.proc / "sys/kernel/arch") or roots.machine or None,
        sockets=_count({package for package, _ in topology}),
        cores=_count({siblings for _, siblings in topology}),
        threads=_count(parse_cpu_list(read_text(roots.sysfs / "devices/system/cpu/online") or "")),
        usable_threads=read_usable_threads(roots),
        memory_bytes=total,
        memory_limit_bytes=limit if limit is not None and (total is None or limit < total) else None,
        available_bytes=_bound(parse_kib(memory.get("MemAvailable")), limit, used),
    )


def _count(found: frozenset[int] | set[str]) -> int | None:
    return len(found) or None


def _bound(available: int | None, limit: int | None, used: int | None) -> int | None:
    if available is None or limit is None or used is None:
        return available
    return max(0, min(available, limit - used))


def _read_topology(sysfs: Path) -> list[tuple[str, str]]:
    """Returns (package, threads of the core) of each CPU; none where the kernel does not say."""
    found = []
    for cpu in list_folder(sysfs / "devices/system/cpu"):
        package = read_text(cpu / "topology/physical_package_id")
        siblings = read_text(cpu / "topology/thread_siblings_list")
        if package and siblings and not package.startswith("-"):
            found.append((package, siblings))
    return found


def read_usable_threads(roots: Roots) -> int | None:
    """Returns whole threads that affinity and quota leave this process, rounded down; None: not known."""
    status = parse_fields(read_text(roots.proc / "self/status") or "")
    allowed = len(parse_cpu_list(status.get("Cpus_allowed_list", "")))
    online = len(parse_cpu_list(read_text(roots.sysfs / "devices/system/cpu/online") or ""))
    quotas = (_read_quota(folder) for folder in _cgroup_folders(roots, "cpu"))
    limits = [float(limit) for limit in (allowed, online, *quotas) if limit]
    return int(min(limits)) if limits else None


def read_memory_limit(roots: Roots) -> tuple[int | None, int | None]:
    """Returns (limit, used) in bytes of the tightest cgroup around this process; two None without a limit."""
    found = [
        (limit, _read_first(folder, "memory.current", "memory.usage_in_bytes"))
        for folder in _cgroup_folders(roots, "memory")
        if (limit := _read_first(folder, "memory.max", "memory.limit_in_bytes")) is not None
        and limit < _UNLIMITED_BYTES
    ]
    return min(found, key=lambda pair: pair[0]) if found else (None, None)


def _read_quota(folder: Path) -> float | None:
    """Returns CPUs that a cgroup may use. Source: Linux, cgroup-v2.rst (cpu.max), sched-bwc.rst (v1)."""
    text = read_text(folder / "cpu.max")
    if text is not None:
        return parse_quota(text)
    v1 = (read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))
    return parse_quota(" ".join(part or "" for part in v1))


_MOST_US: Final = 2**63
"""The kernel's own numbers are smaller: cgroup's quota and period are 64 bits wide."""


def parse_quota(text: str) -> float | None:
    """Returns CPUs of "<quota> <period>" in microseconds; None for "max …", −1, or anything else."""
    words = text.split()
    quota, period = (parse_int(words[0]), parse_int(words[1])) if len(words) == 2 else (None, None)
    if quota is None or period is None:
        return None
    return quota / period if 0 < quota < _MOST_US and 0 < period < _MOST_US else None


def _read_first(folder: Path, *names: str) -> int | None:
    return next((number for name in names if (number := read_int(folder / name)) is not None), None)


def _cgroup_folders(roots: Roots, controller: str) -> Iterator[Path]:
    """Yields this process's cgroup and those around it, to the root of the mount, where a container is."""
    mount = roots.sysfs / "fs/cgroup"
    for hierarchy, path in parse_cgroup(read_text(roots.proc / "self/cgroup") or "", controller):
        base = mount / hierarchy
        inside = base.joinpath(*(part for part in Path(path).parts if part not in {"/", ".."}))
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(base))


def parse_cgroup(text: str, controller: str) -> tuple[tuple[str, str], ...]:
    """Returns (folder below the mount, path) of each hierarchy that holds a controller: v2 "", v1 its name.

    Source: cgroups(7), "/proc/pid/cgroup": lines "id:controllers:path", v2 with id 0 and no controllers.
    """
    found = []
    for line in text.splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if path and (not names or controller in names.split(",")):
            found.append((names, path))
    return tuple(found)
