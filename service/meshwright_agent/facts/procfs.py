"""Facts from /proc: the machine, its processes and their cgroups, and which process holds a device file.

Device files are never opened. "No holder" is reported only when the list of processes is complete and the open files of
each process are readable; otherwise the holders are None (unknown).

Sources: cgroups(7); Kubernetes, pkg/kubelet/cm/cgroup_manager_linux.go (pod names of the systemd and cgroupfs drivers);
Slurm, cgroup.conf and "Control Group in Slurm" (job_<id> below the group of slurm or slurmstepd); Linux,
drivers/gpu/drm/amd/amdkfd/kfd_process.c (/sys/class/kfd/kfd/proc has a folder for each process that has /dev/kfd open).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from meshwright.wire.devices import DeviceProcess
from meshwright_agent.facts.model import CpuFacts, GpuFacts, KfdFacts, MachineFacts, TpuFacts
from meshwright_agent.facts.sysfs import (
    Roots,
    list_folder,
    parse_cpu_list,
    parse_fields,
    parse_int,
    parse_kib,
    read_int,
    read_link,
    read_text,
)

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The initial PID namespace of the kernel. Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO = 0xEFFFFFFC."""
_PF_KTHREAD: Final = 0x00200000


@dataclass(frozen=True)
class OpenFiles:
    """The device files that processes have open.

    Attributes:
        files: process id → device files, sorted.
        is_complete: every process of the machine was inspected.
    """

    files: Mapping[int, tuple[str, ...]]
    is_complete: bool

    def holders_of(self, file: str) -> tuple[int, ...] | None:
        """Returns the processes that have a file open; None if unknown."""
        found = tuple(pid for pid, files in self.files.items() if file in files)
        return found if found or self.is_complete else None


class ProcessTable:
    """Names of processes, each read once."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._parents: dict[int, int | None] = {}
        self._agent = self._read_parent(parse_int(read_own_pid(proc)))
        self.is_whole = shares_all_numbers(proc)

    def describe(self, pid: int, used_bytes: int | None = None) -> DeviceProcess:
        """Returns the description of a process. Names are None if the process has ended or cannot be read."""
        folder = self._proc / str(pid)
        return DeviceProcess(
            pid=pid,
            name=read_text(folder / "comm"),
            command=parse_command(read_text(folder / "cmdline") or ""),
            used_bytes=used_bytes,
            own=self.is_own(pid),
            job=name_job(read_text(folder / "cgroup") or ""),
        )

    def describe_holders(self, opened: OpenFiles) -> tuple[DeviceProcess, ...]:
        """Returns the processes that have files open, with their files."""
        return tuple(build_holder(self.describe(pid), files) for pid, files in opened.files.items())

    def is_unlisted(self, pid: int) -> bool:
        """Returns whether this is a container, and its process list does not have an id that the driver reports."""
        return not self.is_whole and not (self._proc / str(pid)).exists()

    def is_own(self, pid: int) -> bool:
        """Returns whether a process is the agent, which started the reader, or a descendant of the agent."""
        seen: set[int] = set()
        here: int | None = pid
        while here is not None and here > 0 and here not in seen:  # in a container the agent may be process 1
            if here == self._agent:
                return True
            seen.add(here)
            here = self._read_parent(here)
        return False

    def _read_parent(self, pid: int | None) -> int | None:
        if pid is None:
            return None
        if pid not in self._parents:
            self._parents[pid] = parse_parent(read_text(self._proc / str(pid) / "stat") or "")
        return self._parents[pid]


def read_own_pid(proc: Path) -> str | None:
    """Returns this process's id in this /proc, which may be the host's /proc inside a container."""
    link = read_link(proc / "self")
    return str(link) if link else None


def parse_parent(stat: str) -> int | None:
    """Returns the parent's id from /proc/<pid>/stat. Skips the name, which may contain blanks and brackets: proc(5)."""
    fields = stat.rpartition(")")[2].split()
    return parse_int(fields[1]) if len(fields) > 1 else None


def parse_command(cmdline: str) -> str | None:
    """Returns the program, and for Python the script or module, from /proc/<pid>/cmdline.

    Other arguments are omitted, because they may contain secrets, and every client may read the answer. A process that
    has written a title there has one string: its first word is the program.
    """
    words = [word for word in cmdline.split("\0") if word]
    if len(words) < 2:
        return next(iter(cmdline.strip("\0").split()), None)
    if not PurePosixPath(words[0]).name.startswith("python"):
        return words[0]
    if "-m" in words[1:-1] and all(word.startswith("-") for word in words[1 : words.index("-m")]):
        return f"{words[0]} -m {words[words.index('-m') + 1]}"
    script = words[1:2]
    return " ".join(words[:1] + [word for word in script if not word.startswith("-")])


def read_open_files(proc: Path, is_wanted: Callable[[str], bool]) -> OpenFiles:
    """Returns the processes that have wanted files open, without the reader itself.

    Paths are those of each process, such as "/dev/vfio/0", even if the reader's /dev has another path.
    """
    found: dict[int, tuple[str, ...]] = {}
    is_complete = is_whole_machine(proc)
    reader = read_own_pid(proc)
    for folder in list_folder(proc):
        if not folder.name.isdigit() or folder.name == reader:
            continue
        files = _read_links(folder / "fd")
        if files is None:
            is_complete = is_complete and is_kernel_thread(folder)
            continue
        if wanted := sorted({file for file in files if is_wanted(file)}):
            found[int(folder.name)] = tuple(wanted)
    return OpenFiles(dict(sorted(found.items())), is_complete)


def is_whole_machine(proc: Path) -> bool:
    """Returns whether this /proc lists all processes. Only the machine's own list has kernel threads."""
    return read_text(proc / "2/comm") == "kthreadd"


def shares_all_numbers(proc: Path) -> bool:
    """Returns whether the driver's process list is complete for this reader, with the ids of this /proc.

    A driver lists the processes in the reader's PID namespace. Source: NVIDIA, open-gpu-kernel-modules, os_find_ns_pid.
    In a container, older drivers list no process (NVIDIA/nvidia-docker#179), or the host's ids.
    """
    namespace = read_link(proc / "self/ns/pid")
    return is_whole_machine(proc) if namespace is None else str(namespace) == _FIRST_PID_NAMESPACE


def is_kernel_thread(folder: Path) -> bool:
    """Returns whether a process is a kernel thread or has ended: neither has files.

    It uses the kernel's flags. Without them it uses an empty command line, which a process may set itself.
    """
    fileless = parse_fileless(read_text(folder / "stat") or "")
    return not read_text(folder / "cmdline") if fileless is None else fileless


def parse_fileless(stat: str) -> bool | None:
    """Returns whether /proc/<pid>/stat is that of a kernel thread or an ended process; None: unknown.

    Source: proc_pid_stat(5), fields 3 (state) and 9 (flags); PF_KTHREAD of the kernel's include/linux/sched.h.
    """
    fields = stat.rpartition(")")[2].split()
    flags = parse_int(fields[6]) if len(fields) > 6 else None
    return None if flags is None else fields[0] in "ZX" or bool(flags & _PF_KTHREAD)


def _read_links(folder: Path) -> list[str] | None:
    """Returns the targets of the links in a folder; None without permission; empty if the folder is gone."""
    try:
        links = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        return None
    targets = [read_link(link) for link in links]
    return [str(target) for target in targets if target is not None]  # other files were closed in between


def build_holder(process: DeviceProcess, devices: Iterable[str]) -> DeviceProcess:
    """Returns a process with its held devices: uuids of GPUs, or device files."""
    return process.model_copy(update={"used_bytes": None, "devices": tuple(sorted(devices))})


def merge_holders(holders: Iterable[DeviceProcess]) -> tuple[DeviceProcess, ...]:
    """Returns one holder per process, with all its devices."""
    merged: dict[int, DeviceProcess] = {}
    for holder in holders:
        known = merged.get(holder.pid)
        devices = {*holder.devices, *(known.devices if known else ())}
        merged[holder.pid] = holder.model_copy(update={"devices": tuple(sorted(devices))})
    return tuple(merged[pid] for pid in sorted(merged))


def join_holders(*reads: tuple[DeviceProcess, ...] | None) -> tuple[DeviceProcess, ...] | None:
    """Returns all holders found; None if none was found and a read was incomplete."""
    found = merge_holders(holder for read in reads for holder in read or ())
    return found if found or None not in reads else None


def find_holders(gpus: Iterable[GpuFacts], tpus: Iterable[TpuFacts]) -> tuple[DeviceProcess, ...] | None:
    """Returns the processes that compute on these devices; None if none was found and some devices are unknown."""
    read = [(gpu.key, gpu.processes) for gpu in gpus] + [(tpu.device_file or tpu.key, tpu.processes) for tpu in tpus]
    found = merge_holders(build_holder(process, (name,)) for name, processes in read for process in processes or ())
    return found if found or all(processes is not None for _, processes in read) else None


_CONTAINER: Final = re.compile(r"(?:(?P<runtime>[a-z][a-z0-9-]*)[-:])?(?P<id>[0-9a-f]{64})(?:\.scope)?")
"""docker-<id>.scope, cri-containerd-<id>.scope, crio-<id>, libpod-<id>.scope, …:cri-containerd:<id>, or only the id."""
_POD: Final = re.compile(
    r"(?:(?:[a-z]+-)?kubepods(?:-[a-z]+)?-)?pod"
    r"(?P<uid>[0-9a-f]{8}(?P<sep>[-_])[0-9a-f]{4}(?:(?P=sep)[0-9a-f]{4}){2}(?P=sep)[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?"
)
"""pod<uid>; with systemd kubepods-burstable-pod<uid>.slice, dashes as underscores. Static pods have only 32 digits."""
_SLURM: Final = re.compile(r"slurm(?:_.*)?|(?:.*_)?slurmstepd\.scope")
_JOB: Final = re.compile(r"job_(\d{1,20})")
_MONITOR: Final = "conmon"
"""crio-conmon-<id>.scope and libpod-conmon-<id>.scope hold the monitor of a container, which runs outside the
container."""


CONTAINER_SHOWN: Final = 12
"""Characters of a container's id that `docker ps` shows too."""


def name_job(cgroup: str) -> str | None:
    """Returns the Slurm job, else the pod, else the container of a process: "slurm 4711".

    Args:
        cgroup: /proc/<pid>/cgroup: a line per hierarchy (v1), of which the first match counts, or one line (v2).
    """
    places = [_parse_path(path.removesuffix(" (deleted)").split("/")) for _, path in parse_hierarchies(cgroup)]
    return next((name for kind in zip(*places, strict=True) for name in kind if name), None)


def _parse_path(names: list[str]) -> tuple[str | None, str | None, str | None]:
    """Returns the job, pod and container that a path names."""
    # containerd with the systemd driver but without systemd writes one name: <slice>:cri-containerd:<id>
    parts = [part for name in names for part in name.split(":", 1)]
    containers = [found["id"][:CONTAINER_SHOWN] for part in parts if (found := _match_container(part))]
    pods = [found["uid"].replace("_", "-") for part in parts if (found := _POD.fullmatch(part))]
    return _find_job(parts), f"pod {pods[-1]}" if pods else None, f"container {containers[-1]}" if containers else None


def _match_container(part: str) -> re.Match[str] | None:
    found = _CONTAINER.fullmatch(part)
    return None if found is None or _MONITOR in (found["runtime"] or "") else found


def _find_job(parts: list[str]) -> str | None:
    for place, part in enumerate(parts):
        if _SLURM.fullmatch(part):
            found = next((found for rest in parts[place + 1 :] if (found := _JOB.fullmatch(rest))), None)
            if found:
                return f"slurm {found[1]}"
    return None


KFD: Final = "/dev/kfd"
_FILES: Final = re.compile(rf"{KFD}|/dev/dri/renderD\d+")


def read_kfd(sysfs: Path, proc: Path, dev: Path, table: ProcessTable) -> KfdFacts | None:
    """Returns the processes that have /dev/kfd open, with the cards' files; None without /dev/kfd."""
    if not (dev / Path(KFD).name).exists():
        return None
    opened = read_open_files(proc, lambda file: _FILES.fullmatch(file) is not None)
    holders = tuple(holder for holder in table.describe_holders(opened) if KFD in holder.devices)
    is_known = holders or opened.is_complete or list_computing(sysfs) == ()
    return KfdFacts(holders if is_known else None)


def list_computing(sysfs: Path) -> tuple[str, ...] | None:
    """Returns the process ids that the kernel lists for /dev/kfd; None: not reported."""
    try:
        return tuple(sorted(folder.name for folder in (sysfs / "class/kfd/kfd/proc").iterdir()))
    except OSError:
        return None


_UNLIMITED_BYTES: Final = 1 << 60
"""cgroup v1 writes "no limit" as the largest page-aligned number. Values near it mean no limit."""

_CONTAINER_MARKS: Final = (
    ("kubepods", "kubernetes"),
    ("/docker", "docker"),
    ("libpod", "podman"),
    ("/containers/storage/", "podman"),
    ("containerd", "containerd"),
    ("/lxc", "lxc"),
)
"""Marks of a container in a cgroup path or in the options of the root mount. Most specific first."""


def read_machine(roots: Roots) -> MachineFacts:
    """Returns the machine and its operating system, as visible in this process's container."""
    kernel = roots.proc / "sys/kernel"
    return MachineFacts(
        name=read_text(kernel / "hostname") or "localhost",
        boot_id=read_text(kernel / "random/boot_id"),
        kernel=read_text(kernel / "osrelease"),
        operating_system=parse_os_release(read_text(roots.root / "etc/os-release") or ""),
        container=parse_container(
            roots.environ, read_text(roots.proc / "self/cgroup") or "", read_text(roots.proc / "self/mountinfo") or ""
        ),
    )


def parse_os_release(text: str) -> str | None:
    """Returns PRETTY_NAME from /etc/os-release. Source: os-release(5)."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "PRETTY_NAME":
            return value.strip().strip("\"'") or None
    return None


def parse_container(environ: Mapping[str, str], cgroup: str, mountinfo: str) -> str | None:
    """Returns the container runtime, from environment, cgroup or root mount; None if not detected."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    if environ.get("container"):  # set by podman and systemd-nspawn for their first process
        return environ["container"]
    root_mount = "\n".join(line for line in mountinfo.splitlines() if line.split()[4:5] == ["/"])
    return next((name for mark, name in _CONTAINER_MARKS if mark in cgroup or mark in root_mount), None)


def read_cpu(roots: Roots) -> CpuFacts:
    """Returns processors and memory, and the share that this process may use."""
    info = parse_fields(read_text(roots.proc / "cpuinfo") or "")
    memory = parse_fields(read_text(roots.proc / "meminfo") or "")
    topology = _read_topology(roots.sysfs)
    limit, left = read_memory_limit(roots)
    available = parse_kib(memory.get("MemAvailable"))
    total = parse_kib(memory.get("MemTotal"))
    return CpuFacts(
        model=info.get("model name"),
        architecture=read_text(roots.proc / "sys/kernel/arch") or roots.machine or None,
        sockets=len({package for package, _ in topology}) or None,
        cores=len({siblings for _, siblings in topology}) or None,
        threads=len(parse_cpu_list(read_text(roots.sysfs / "devices/system/cpu/online") or "")) or None,
        usable_threads=read_usable_threads(roots),
        memory_bytes=total,
        memory_limit_bytes=limit if limit is not None and (total is None or limit < total) else None,
        available_bytes=available if available is None or left is None else min(available, left),
    )


def _read_topology(sysfs: Path) -> list[tuple[str, str]]:
    """Returns (package, threads of the core) of each CPU; empty if the kernel does not report them."""
    found = []
    for cpu in list_folder(sysfs / "devices/system/cpu"):
        package = read_text(cpu / "topology/physical_package_id")
        siblings = read_text(cpu / "topology/thread_siblings_list")
        if package and siblings and not package.startswith("-"):
            found.append((package, siblings))
    return found


def read_usable_threads(roots: Roots) -> int | None:
    """Returns whole threads that affinity and quota allow this process, rounded down; None: unknown."""
    status = parse_fields(read_text(roots.proc / "self/status") or "")
    allowed = len(parse_cpu_list(status.get("Cpus_allowed_list", "")))
    online = len(parse_cpu_list(read_text(roots.sysfs / "devices/system/cpu/online") or ""))
    quotas = (_read_quota(folder) for folder in _cgroup_folders(roots, "cpu"))
    limits = [float(limit) for limit in (allowed, online, *quotas) if limit]
    return int(min(limits)) if limits else None


def read_memory_limit(roots: Roots) -> tuple[int | None, int | None]:
    """Returns the strictest limit of this process's cgroups and the least that is left of any, in bytes; else None."""
    limits: list[int] = []
    left: list[int] = []
    for folder in _cgroup_folders(roots, "memory"):
        sizes = (read_int(folder / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
        limit, used = min((size for size in sizes if size is not None), default=_UNLIMITED_BYTES), _read_used(folder)
        if limit < _UNLIMITED_BYTES:
            limits.append(limit)
            left += [] if used is None else [max(0, limit - used)]
    return min(limits, default=None), min(left, default=None)


def _read_used(folder: Path) -> int | None:
    """Returns the memory that a cgroup uses, without files that the kernel can drop, as kubelet counts it."""
    sizes = (read_int(folder / name) for name in ("memory.current", "memory.usage_in_bytes"))
    used = next((size for size in sizes if size is not None), None)
    lines = (line.partition(" ") for line in (read_text(folder / "memory.stat") or "").splitlines())
    counts = {name: parse_int(count) for name, _, count in lines}
    cached = counts.get("total_inactive_file") or counts.get("inactive_file") or 0  # cgroup v1, v2
    return None if used is None else max(0, used - cached)


def _read_quota(folder: Path) -> float | None:
    """Returns the number of CPUs that a cgroup may use. Source: Linux, cgroup-v2.rst (cpu.max), sched-bwc.rst (v1)."""
    text = read_text(folder / "cpu.max")
    if text is not None:
        return parse_quota(text)
    v1 = (read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))
    return parse_quota(" ".join(part or "" for part in v1))


_MOST_US: Final = 2**63
"""Upper bound of the kernel's numbers: cgroup's quota and period are 64 bits wide."""


def parse_quota(text: str) -> float | None:
    """Returns the CPUs of "<quota> <period>" in microseconds; None for "max …", −1, or anything else."""
    words = text.split()
    quota, period = (parse_int(words[0]), parse_int(words[1])) if len(words) == 2 else (None, None)
    if quota is None or period is None:
        return None
    return quota / period if 0 < quota < _MOST_US and 0 < period < _MOST_US else None


def _cgroup_folders(roots: Roots, controller: str) -> Iterator[Path]:
    """Yields this process's cgroup and its parents, up to the root of the mount."""
    mount = roots.sysfs / "fs/cgroup"
    for hierarchy, path in parse_hierarchies(read_text(roots.proc / "self/cgroup") or ""):
        if hierarchy and controller not in hierarchy.split(","):
            continue
        base = mount / hierarchy
        inside = base.joinpath(*(part for part in Path(path).parts if part not in {"/", ".."}))
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(base))


def parse_hierarchies(text: str) -> tuple[tuple[str, str], ...]:
    """Returns (controllers, path) of each line of /proc/<pid>/cgroup. For v2 the controllers are "".

    Source: cgroups(7), "/proc/pid/cgroup": lines "id:controllers:path", v2 with id 0 and no controllers.
    """
    lines = (line.split(":", 2) for line in text.splitlines())
    return tuple((words[1], words[2]) for words in lines if len(words) == 3 and words[2])
