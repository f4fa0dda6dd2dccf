"""leave_a_core(): which threads keep off which core, for how long, and what a sandbox or a single core makes of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from meshwright_agent.worker.cores import leave_a_core, tell_cores

CORES = os.sched_getaffinity(0)
CORE = min(CORES)

several = pytest.mark.skipif(len(CORES) < 2, reason="a machine with one core has none to leave")


@contextmanager
def running() -> Iterator[int]:
    """Yields the number of a thread that waits."""
    ready, done = threading.Event(), threading.Event()

    def wait() -> None:
        ready.set()
        done.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        assert ready.wait(60)
        assert thread.native_id is not None
        yield thread.native_id
    finally:
        done.set()
        thread.join()


@several
def test_all_threads_keep_off_one_core_while_it_lasts() -> None:
    with running() as other, ExitStack() as later:
        with leave_a_core() as left:
            assert left == 1
            born = later.enter_context(running())
            masks = {thread: os.sched_getaffinity(thread) for thread in (0, other, born)}
        assert set(map(frozenset, masks.values())) == {frozenset(CORES - {CORE})}
        assert all(os.sched_getaffinity(thread) == CORES for thread in masks)


@several
def test_a_thread_that_was_elsewhere_stays_there() -> None:
    with running() as other:
        os.sched_setaffinity(other, CORES - {CORE})
        with leave_a_core():
            assert os.sched_getaffinity(other) == CORES - {CORE}
        assert os.sched_getaffinity(other) == CORES - {CORE}


@several
def test_a_thread_that_has_no_other_core_stays_on_it() -> None:
    with running() as other:
        os.sched_setaffinity(other, {CORE})
        with leave_a_core():
            assert os.sched_getaffinity(other) == {CORE}
        assert os.sched_getaffinity(other) == {CORE}


@several
def test_the_cores_are_given_back_when_the_bench_fails() -> None:
    with pytest.raises(ZeroDivisionError), leave_a_core():
        raise ZeroDivisionError
    assert os.sched_getaffinity(0) == CORES


@several
def test_a_thread_that_begins_while_the_others_are_told_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = os.sched_setaffinity
    (tmp_path / str(threading.get_native_id())).touch()
    with running() as late:

        def move_and_begin(thread: int, cores: frozenset[int]) -> None:
            (tmp_path / str(late)).touch()
            move(thread, cores)

        monkeypatch.setattr(os, "sched_setaffinity", move_and_begin)
        with leave_a_core(tmp_path):
            assert os.sched_getaffinity(late) == CORES - {CORE}
        assert os.sched_getaffinity(late) == CORES


@several
def test_a_thread_that_ends_meanwhile_is_no_matter(tmp_path: Path) -> None:
    with running() as ended:
        pass
    for thread in (threading.get_native_id(), ended):
        (tmp_path / str(thread)).touch()
    with leave_a_core(tmp_path) as left:
        assert left == 1
    assert os.sched_getaffinity(0) == CORES


def test_of_one_core_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: {3})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("there is no other core"))
    with leave_a_core() as left:
        assert left == 0


@several
def test_where_a_sandbox_forbids_it_the_bench_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with leave_a_core() as left:
        assert left == 0


def test_figures_of_cpu_devices_say_of_how_many_cores_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _thread: set(range(8)))
    (notice,) = tell_cores(1, "cpu")
    assert notice.message.startswith("measured on 7 of 8 cores:")
    assert (tell_cores(0, "cpu"), tell_cores(1, "gpu"), tell_cores(1, "tpu")) == ((), (), ())
