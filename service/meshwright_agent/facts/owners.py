"""Who holds a device file, from /proc/*/fd: the files themselves are never opened.

Rule: "nobody" is said only when everybody could be looked at: the list of processes must be the whole, and
the files of each readable. Otherwise the answer is None. Knows no driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from meshwright_agent.facts.cgroups import parse_cgroup
from meshwright_agent.facts.model import GpuFacts, HolderFacts, ProcessFacts, TpuFacts
from meshwright_agent.facts.sysfs import list_folder, parse_int, read_text

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The one that the kernel starts with. Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO = 0xEFFFFFFC."""
_PF_KTHREAD: Final = 0x00200000


@dataclass(frozen=True)
class OpenFiles:
    """The device files that processes have open.

    Attributes:
        files: process id → device files, sorted.
        is_complete: every process of the machine was looked at.
    """

    files: Mapping[int, tuple[str, ...]]
    is_complete: bool

    def holders_of(self, file: str) -> tuple[int, ...] | None:
        """Returns who has a file open; None where that cannot be said."""
        found = tuple(pid for pid, files in self.files.items() if file in files)
        return found if found or self.is_complete else None


class ProcessTable:
    """Names of processes, each read once."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._parents: dict[int, int | None] = {}
        self.reader = parse_int(read_own_pid(proc))
        self._agent = self._read_parent(self.reader)
        self.is_whole = shares_all_numbers(proc)

    def describe(self, pid: int, used_bytes: int | None = None) -> ProcessFacts:
        """Returns what is known of a process; names are None for one that has gone or cannot be read."""
        folder = self._proc / str(pid)
        command = parse_command(read_text(folder / "cmdline") or "")
        place = parse_cgroup(read_text(folder / "cgroup") or "")
        return ProcessFacts(
            pid,
            read_text(folder / "comm"),
            command,
            used_bytes,
            own=self.is_own(pid),
            container=place.container,
            pod_uid=place.pod_uid,
            job=place.job,
            elsewhere=not self.is_whole and not folder.exists(),
        )

    def describe_holder(self, pid: int, devices: Iterable[str]) -> HolderFacts:
        """Returns a process with what it holds."""
        return HolderFacts.of(self.describe(pid), devices)

    def is_own(self, pid: int) -> bool:
        """Tells whether a process is the agent, who started the reader, or descends from it."""
        seen: set[int] = set()
        here: int | None = pid
        while here is not None and here > 0 and here not in seen:  # the agent may be 1, of a container
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
    """Returns this process's id as this /proc counts, which may be a host's, seen from a container."""
    try:
        return str((proc / "self").readlink())
    except OSError:
        return None


def parse_parent(stat: str) -> int | None:
    """Returns the parent's id of /proc/<pid>/stat, past a name that may hold blanks and brackets: proc(5)."""
    fields = stat.rpartition(")")[2].split()
    return parse_int(fields[1]) if len(fields) > 1 else None


def parse_command(cmdline: str) -> str | None:
    """Returns the program, and for Python the script or module, of /proc/<pid>/cmdline.

    Other arguments are left out: they may hold secrets, and every client may read the answer.
    """
    words = [word for word in cmdline.split("\0") if word]
    if not words:
        return None
    if not PurePosixPath(words[0]).name.startswith("python"):
        return words[0]
    if "-m" in words[1:-1] and all(word.startswith("-") for word in words[1 : words.index("-m")]):
        return f"{words[0]} -m {words[words.index('-m') + 1]}"
    script = words[1:2]
    return " ".join(words[:1] + [word for word in script if not word.startswith("-")])


def read_open_files(proc: Path, is_wanted: Callable[[str], bool]) -> OpenFiles:
    """Returns who has files open whose path is wanted; the reader itself is left out.

    Paths are those that each process sees, "/dev/vfio/0", also where the reader sees /dev elsewhere.
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
    """Tells whether this /proc lists all processes: only the machine's own list has the kernel's threads."""
    return read_text(proc / "2/comm") == "kthreadd"


def shares_all_numbers(proc: Path) -> bool:
    """Tells whether the driver's list of processes is whole to this reader, and its numbers are those of this /proc.

    A driver lists whom the reader's PID namespace shows. Source: NVIDIA, open-gpu-kernel-modules, os_find_ns_pid; older
    ones list nobody to a container (NVIDIA/nvidia-docker#179), or by the host's numbers.
    """
    try:
        return str((proc / "self/ns/pid").readlink()) == _FIRST_PID_NAMESPACE
    except OSError:
        return is_whole_machine(proc)


def is_kernel_thread(folder: Path) -> bool:
    """Tells whether a process is a kernel thread or has ended: neither has files.

    By what the kernel says; an empty command line, which a process may give itself, only where it says nothing.
    """
    said = parse_fileless(read_text(folder / "stat") or "")
    return not read_text(folder / "cmdline") if said is None else said


def parse_fileless(stat: str) -> bool | None:
    """Returns whether /proc/<pid>/stat is of a kernel thread, or of a process that has ended; None: it does not say.

    Source: proc_pid_stat(5), fields 3 (state) and 9 (flags); PF_KTHREAD of the kernel's include/linux/sched.h.
    """
    fields = stat.rpartition(")")[2].split()
    flags = parse_int(fields[6]) if len(fields) > 6 else None
    return None if flags is None else fields[0] in "ZX" or bool(flags & _PF_KTHREAD)


def _read_links(folder: Path) -> list[str] | None:
    """Returns where the links in a folder lead; None where it may not be read; nothing if it has gone."""
    try:
        links = list(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError:
        return None
    targets = []
    for link in links:
        try:
            targets.append(str(link.readlink()))
        except OSError:  # closed in between
            continue
    return targets


def merge_holders(holders: Iterable[HolderFacts]) -> tuple[HolderFacts, ...]:
    """Returns one holder a process, with all that it holds."""
    merged: dict[int, HolderFacts] = {}
    for holder in holders:
        known = merged.get(holder.pid)
        devices = {*holder.devices, *(known.devices if known else ())}
        merged[holder.pid] = replace(holder, devices=tuple(sorted(devices)))
    return tuple(merged[pid] for pid in sorted(merged))


def join_holders(*looks: tuple[HolderFacts, ...] | None) -> tuple[HolderFacts, ...] | None:
    """Returns all holders that were found; None where none was, and one look could not look everywhere."""
    found = merge_holders(holder for look in looks for holder in look or ())
    return found if found or None not in looks else None


def find_holders(gpus: Iterable[GpuFacts], tpus: Iterable[TpuFacts]) -> tuple[HolderFacts, ...] | None:
    """Returns who computes on these devices; None where some could not be looked at and nobody was found."""
    looked: list[tuple[str, tuple[ProcessFacts, ...] | None]] = []
    looked += [(gpu.key, gpu.processes) for gpu in gpus]
    looked += [(chip.device_file or chip.key, chip.processes) for chip in tpus]
    found = merge_holders(HolderFacts.of(process, (name,)) for name, processes in looked for process in processes or ())
    return found if found or all(processes is not None for _, processes in looked) else None
