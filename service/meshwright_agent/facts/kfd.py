"""Who computes on AMD's GPUs: who has /dev/kfd open, through which ROCm asks for each of them. Nothing is opened.

Rule: it is one file for all of a host's GPUs, and ROCm opens all that it sees, so a process that has it holds them all.
"Nobody" is said where every process could be looked at, or where the kernel's own list of such processes is empty;
otherwise it is None. Knows neither the cards nor JAX.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_process.c: /sys/class/kfd/kfd/proc has a folder for each process that has
the file open, by the machine's process numbers, in containers too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from meshwright_agent.facts.model import KfdFacts
from meshwright_agent.facts.owners import ProcessTable, read_open_files

KFD: Final = "/dev/kfd"
_FILES: Final = re.compile(rf"{KFD}|/dev/dri/renderD\d+")


def read_kfd(sysfs: Path, proc: Path, dev: Path, table: ProcessTable) -> KfdFacts | None:
    """Returns who has /dev/kfd open, with the cards' files beside it; None: there is no such file."""
    if not (dev / Path(KFD).name).exists():
        return None
    opened = read_open_files(proc, lambda file: _FILES.fullmatch(file) is not None)
    holders = tuple(table.describe_holder(pid, files) for pid, files in opened.files.items() if KFD in files)
    is_known = holders or opened.is_complete or list_computing(sysfs) == ()
    return KfdFacts(holders if is_known else None)


def list_computing(sysfs: Path) -> tuple[str, ...] | None:
    """Returns the process numbers that the kernel lists for /dev/kfd; None: it does not tell."""
    try:
        return tuple(sorted(folder.name for folder in (sysfs / "class/kfd/kfd/proc").iterdir()))
    except OSError:
        return None
