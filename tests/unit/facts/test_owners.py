from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright_agent.facts.procfs import ProcessTable, parse_command, parse_parent, read_open_files, shares_all_numbers
from tests.fakes.tree import plant

PROC = """
=> proc/self -> 11
== proc/2/comm
kthreadd
=/ proc/2/fd
== proc/10/stat
10 (agent) S 1 10
== proc/11/stat
11 (probe) S 10 11
=> proc/11/fd/3 -> /dev/vfio/0
== proc/12/comm
python
== proc/12/stat
12 (a) (b c) S 10 12
=> proc/12/fd/3 -> /dev/vfio/0
=> proc/12/fd/4 -> /dev/vfio/0
=> proc/12/fd/5 -> /tmp/x
== proc/13/comm
qemu
== proc/13/stat
13 (qemu) S 1 13
=> proc/13/fd/9 -> /dev/vfio/1
"""


def is_vfio(file: str) -> bool:
    return file.startswith("/dev/vfio/")


def test_who_has_a_device_file_open_is_found_and_the_reader_is_not_counted(tmp_path: Path) -> None:
    plant(PROC, tmp_path)
    found = read_open_files(tmp_path / "proc", is_vfio)
    assert found.files == {12: ("/dev/vfio/0",), 13: ("/dev/vfio/1",)}
    assert found.holders_of("/dev/vfio/0") == (12,)
    assert found.holders_of("/dev/vfio/7") == ()


def test_nobody_is_unknown_where_the_list_of_processes_is_a_containers(tmp_path: Path) -> None:
    plant(PROC.replace("kthreadd", "sh"), tmp_path)
    found = read_open_files(tmp_path / "proc", is_vfio)
    assert found.holders_of("/dev/vfio/0") == (12,)
    assert found.holders_of("/dev/vfio/7") is None


NAMELESS = "== proc/14/cmdline\n\n== proc/14/stat\n"


@pytest.mark.parametrize(("told", "known"), [
    ("== proc/14/cmdline\nvllm", None), ("=/ proc/14", ()),
    (f"{NAMELESS}14 (serve) S 1 14 14 0 -1 4194560 1 2 3", None),  # started with an empty name: exec -a ""
    (f"{NAMELESS}14 (kworker/0:1) I 2 0 0 0 -1 69238880 0 0 0", ()),
    (f"{NAMELESS}14 (serve) Z 1 14 14 0 -1 4194560 1 2 3", ()),
    (f"{NAMELESS}14 (serve) X 0 -1 -1 0 -1 4194560 1 2 3", ()),
])  # fmt: skip
def test_nobody_is_unknown_where_a_process_cannot_be_looked_into_unless_it_is_the_kernels(
    told: str, known: tuple[int, ...] | None, tmp_path: Path
) -> None:
    plant(PROC + f"== proc/14/fd\na file, so that listing it fails as it does without permission\n{told}", tmp_path)
    assert read_open_files(tmp_path / "proc", is_vfio).holders_of("/dev/vfio/7") == known


@pytest.mark.parametrize(("namespace", "threads", "whole"), [
    ("pid:[4026531836]", "kthreadd", True),
    ("pid:[4026531836]", "sh", True),  # a /proc that hides others' processes: the driver does not
    ("pid:[4026532710]", "sh", False),
    ("pid:[4026532710]", "kthreadd", False),  # the host's /proc, mounted into a container
    (None, "kthreadd", True),
    (None, "sh", False),
])  # fmt: skip
def test_a_driver_lists_all_processes_to_who_shares_the_machines_numbers(
    tmp_path: Path, namespace: str | None, threads: str, whole: bool
) -> None:
    plant(PROC.replace("kthreadd", threads), tmp_path)
    if namespace:
        (tmp_path / "proc/11/ns").mkdir()
        (tmp_path / "proc/11/ns/pid").symlink_to(namespace)
    assert shares_all_numbers(tmp_path / "proc") is whole
    table = ProcessTable(tmp_path / "proc")
    assert table.is_unlisted(99) is not whole
    assert not table.is_unlisted(12)


def test_a_process_that_descends_from_the_agent_is_its_own(tmp_path: Path) -> None:
    plant(PROC + "== proc/15/stat\n15 (child) S 12 15\n", tmp_path)
    table = ProcessTable(tmp_path / "proc")
    assert [pid for pid in (1, 10, 11, 12, 13, 15, 99) if table.is_own(pid)] == [10, 11, 12, 15]


def test_an_agent_that_is_the_first_process_of_its_container_knows_its_own(tmp_path: Path) -> None:
    plant(PROC.replace("11 (probe) S 10 11", "11 (probe) S 1 11"), tmp_path)
    plant("== proc/1/stat\n1 (agent) S 0 1\n== proc/30/stat\n30 (exec) S 0 30\n", tmp_path)
    table = ProcessTable(tmp_path / "proc")
    assert [pid for pid in (0, 1, 11, 13, 30, 99) if table.is_own(pid)] == [1, 11, 13]


def test_processes_that_are_each_others_parents_do_not_hang_the_reader(tmp_path: Path) -> None:
    plant(PROC + "== proc/20/stat\n20 (a) S 21 0\n== proc/21/stat\n21 (b) S 20 0\n", tmp_path)
    assert not ProcessTable(tmp_path / "proc").is_own(20)


def test_a_process_is_described_by_name_and_one_that_has_gone_by_number_only(tmp_path: Path) -> None:
    plant(PROC, tmp_path)
    table = ProcessTable(tmp_path / "proc")
    assert (table.describe(12).name, table.describe(12, 5).used_bytes, table.describe(12).own) == ("python", 5, True)
    assert (table.describe(99).name, table.describe(99).command, table.describe(99).own) == (None, None, False)


@pytest.mark.parametrize(("words", "command"), [
    (["/usr/bin/python3", "train.py", "--token=s"], "/usr/bin/python3 train.py"),
    (["python", "-u", "-m", "maxtext.train", "key=s"], "python -m maxtext.train"),
    (["python3.11", "-c", "import secret"], "python3.11"), (["python", "run.py", "-m", "secret"], "python run.py"),
    (["python"], "python"), (["/opt/vllm", "--password", "s"], "/opt/vllm"), ([], None),
    (["/opt/vllm --password s"], "/opt/vllm"),
])  # fmt: skip
def test_a_command_is_told_without_arguments_which_may_be_secret(words: list[str], command: str | None) -> None:
    assert parse_command("".join(f"{word}\0" for word in words)) == command


@pytest.mark.parametrize(
    ("stat", "parent"), [("7 (a) S 3 7", 3), ("7 (a) b) (c) R 4 7", 4), ("", None), ("7 (a) S", None)]
)
def test_the_parent_stands_behind_the_last_bracket(stat: str, parent: int | None) -> None:
    assert parse_parent(stat) == parent


READER = """
import sys
from pathlib import Path
from meshwright_agent.facts.procfs import read_open_files
print(*read_open_files(Path("/proc"), {sys.argv[1]}.__contains__).files)
"""


def test_another_process_sees_that_this_one_has_a_file_open(tmp_path: Path) -> None:
    with (tmp_path / "held").open("w") as file:
        said = subprocess.run([sys.executable, "-c", READER, file.name], capture_output=True, text=True, check=True)
    assert said.stdout.split() == [str(os.getpid())]
