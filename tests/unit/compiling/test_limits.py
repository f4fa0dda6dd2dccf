"""A process that compiles stays within its memory, and steps back behind the host's other work."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiling.limits import (
    HOST_RATIO,
    INTERVAL_S,
    MEMORY_EXIT_STATUS,
    NICENESS,
    OOM_SCORE,
    describe_limit,
    look_at_memory,
    read_default_limit_bytes,
    read_memory_bytes,
)

MIB = 1 << 20


def write(root: Path, **files: str) -> Path:
    """Makes a host's /proc and /sys: names with __ for slashes."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Returns how a process ended that was limited to 64 MiB before it ran the code."""
    bounded = f"from meshwright.compiling.limits import *\nlimit_process({64 * MIB})\n{code}"
    command = [sys.executable, "-c", bounded]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# ---- the default ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "bound_bytes"),
    [
        ("sys__fs__cgroup__memory.max", "max\n", 8 << 30),
        ("sys__fs__cgroup__memory.max", f"{2 << 30}\n", 2 << 30),
        ("sys__fs__cgroup__memory.max", f"{64 << 30}\n", 8 << 30),
        ("sys__fs__cgroup__memory__memory.limit_in_bytes", f"{1 << 30}\n", 1 << 30),
        ("sys__fs__cgroup__memory__memory.limit_in_bytes", "9223372036854771712\n", 8 << 30),
    ],
)
def test_by_default_it_is_a_part_of_the_host_or_of_what_the_cgroup_lets_it_have(
    tmp_path: Path, name: str, text: str, bound_bytes: int
) -> None:
    root = write(tmp_path, proc__meminfo=f"MemFree: 1 kB\nMemTotal: {8 << 20} kB\n", **{name: text})
    assert read_default_limit_bytes(root) == HOST_RATIO * bound_bytes


def test_where_nothing_tells_there_is_no_default(tmp_path: Path) -> None:
    assert read_default_limit_bytes(tmp_path) == 0
    assert 0 < read_default_limit_bytes() < 1 << 50


# ---- the watch ------------------------------------------------------------------------------------------------------


@given(held=st.lists(st.integers(0, 100), max_size=20), more=st.integers(1, 100))
def test_the_watch_ends_the_process_at_the_first_look_above_the_limit_and_not_before(
    held: list[int], more: int
) -> None:
    looks, waits, ends = iter([*held, 100 + more, 0]), [], []
    look_at_memory(
        100,
        read=lambda: next(looks),
        end=lambda held_bytes, limit_bytes: ends.append((held_bytes, limit_bytes)),
        wait=waits.append,
    )
    assert ends == [(100 + more, 100)]
    assert waits == [INTERVAL_S] * len(held)


def test_a_process_whose_memory_cannot_be_read_is_not_watched() -> None:
    ends: list[int] = []

    def refuse() -> int:
        raise OSError("no /proc here")

    look_at_memory(100, read=refuse, end=lambda held_bytes, _: ends.append(held_bytes))
    assert ends == []


def test_what_a_process_holds_is_resident_less_shared(tmp_path: Path) -> None:
    (tmp_path / "statm").write_text("1000 300 100 2 0 900 0\n")
    assert read_memory_bytes(tmp_path / "statm") == 200 * resource.getpagesize()
    before = read_memory_bytes()
    block = b"x" * (64 * MIB)
    assert read_memory_bytes() - before > 32 * MIB
    assert len(block) == 64 * MIB


# ---- a real process -------------------------------------------------------------------------------------------------


def test_a_process_that_leaks_says_so_and_ends_with_a_status_of_its_own() -> None:
    done = run("import time\nkept = []\nwhile True:\n    kept.append(b'x' * (1 << 20)); time.sleep(0.001)")
    assert done.returncode == MEMORY_EXIT_STATUS
    assert f"it may have {64 * MIB}" in done.stderr


def test_what_the_watch_cannot_see_in_time_the_kernel_refuses() -> None:
    done = run("import sys\nsys.setswitchinterval(1000)\nkept = bytearray(3 << 30)")
    assert done.returncode == 1
    assert "MemoryError" in done.stderr


def test_a_process_within_its_limit_goes_on_behind_all_others() -> None:
    done = run("import os\nprint(os.nice(0), open('/proc/self/oom_score_adj').read())")
    niceness, score = done.stdout.split()
    assert (int(niceness), int(score)) == (os.nice(0) + NICENESS, OOM_SCORE)


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not group processes by session")
@pytest.mark.parametrize(("leads", "group"), [(True, "7"), (False, "0")])
def test_a_session_goes_behind_others_where_its_leader_does(leads: bool, group: str) -> None:
    code = "from meshwright.compiling.limits import give_way; give_way(7); print(open('/proc/self/autogroup').read())"
    whole = code if leads else f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", whole], start_new_session=True, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split()[-1] == group


def test_the_words_for_a_limit_name_it() -> None:
    assert "more than 5 bytes" in describe_limit(5)
    assert "its limit" in describe_limit(None)
