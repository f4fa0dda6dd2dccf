from __future__ import annotations

import threading
import time

import pytest

from meshwright._fleet.threads import run_all


def test_all_tasks_are_run_and_waited_for() -> None:
    done: list[int] = []
    run_all([lambda i=i: done.append(i) for i in range(50)], limit_s=10, at_once=4)  # type: ignore[misc]
    assert sorted(done) == list(range(50))


def test_when_the_time_is_over_no_more_are_begun_and_those_under_way_end_unheard() -> None:
    release, begun = threading.Event(), []

    def wait() -> None:
        begun.append(threading.current_thread())
        release.wait(10)

    started = time.monotonic()
    run_all([wait] * 5, limit_s=0.1, at_once=2)
    assert time.monotonic() - started < 5
    release.set()
    for thread in list(begun):
        thread.join(5)
    assert len(begun) == 2
    assert all(thread.daemon for thread in begun)


def test_what_a_task_raises_is_raised_here_and_ends_the_rest() -> None:
    def fail() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        run_all([fail] * 3, limit_s=10, at_once=1)
