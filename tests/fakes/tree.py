"""Recorded file trees: a machine's sysfs, /proc and /etc as one text file, planted into a folder for a test.

The format, by lines: `== path` begins a file, whose lines follow; `=> path -> target` is a link; `=/ path` an empty
folder; `=cpus sockets cores threads` makes the topology files of that many CPUs, numbered as Linux does (first
threads of all cores, socket by socket, then their siblings). Text before the first of these is a comment. Links are
why this is no plain folder: archives refuse links that lead outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

RECORDED = Path(__file__).parent.parent / "recorded"


def plant(text: str, root: Path) -> None:
    """Writes the recorded files below `root`."""
    for head, body in split_entries(text):
        mark, _, rest = head.partition(" ")
        match mark:
            case "==":
                write(root / rest, body)
            case "=>":
                path, _, target = rest.partition(" -> ")
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(target)
            case "=/":
                (root / rest).mkdir(parents=True, exist_ok=True)
            case "=cpus":
                plant_cpus(root, *map(int, rest.split()))
            case _:
                raise ValueError(f"{head!r} begins with none of ==, =>, =/, =cpus")


def split_entries(text: str) -> Iterator[tuple[str, str]]:
    head, body = "", []
    for line in text.splitlines():
        if line.startswith("="):
            if head:
                yield head, "\n".join(body)
            head, body = line, []
        else:
            body.append(line)
    if head:
        yield head, "\n".join(body)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def plant_cpus(root: Path, sockets: int, cores: int, threads: int) -> None:
    physical = sockets * cores
    for cpu in range(physical * threads):
        core = cpu % physical
        folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        write(folder / "physical_package_id", str(core // cores))
        write(folder / "thread_siblings_list", ",".join(str(core + n * physical) for n in range(threads)))
    write(root / "sys/devices/system/cpu/online", f"0-{physical * threads - 1}")
