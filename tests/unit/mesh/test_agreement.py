from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshwright._agreement import Agreement
from meshwright.errors import PlanMismatchError


class FakeBoard:
    """jax's coordination service in this process: keys are written once, barriers let all go or none."""

    def __init__(self, count: int) -> None:
        self.count, self.values, self.barriers = count, dict[str, str](), dict[str, threading.Barrier]()
        self.changed = threading.Condition()

    def key_value_set(self, key: str, value: str) -> None:
        with self.changed:
            assert key not in self.values, "jax refuses to write a key twice"
            self.values[key] = value
            self.changed.notify_all()

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_in_ms / 1000):
                raise RuntimeError("DEADLINE_EXCEEDED")
            return self.values[key]

    def key_value_delete(self, key: str) -> None:
        with self.changed:
            del self.values[key]

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self.changed:
            return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]

    def wait_at_barrier(self, barrier_id: str, timeout_in_ms: int, process_ids: list[int]) -> None:
        assert len(process_ids) == self.count
        with self.changed:
            barrier = self.barriers.setdefault(barrier_id, threading.Barrier(self.count))
        try:
            barrier.wait(timeout_in_ms / 1000)
        except threading.BrokenBarrierError:
            raise RuntimeError("DEADLINE_EXCEEDED") from None


def make(board: FakeBoard, rank: int) -> Agreement:
    return Agreement(board, rank, range(board.count), "topic", PlanMismatchError)


def run_all(count: int, work: Callable[[Agreement], object]) -> list[object]:
    shared = FakeBoard(count)
    agreements = [make(shared, rank) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, agreements))


def test_all_that_came_are_stopped_when_one_does_not_commit() -> None:
    def talk(agreement: Agreement) -> str:
        agreement.exchange("", timeout_s=0.1)
        if agreement.rank == 1:
            return "left"
        with pytest.raises(PlanMismatchError, match="one did not go on after all had spoken"):
            agreement.commit()
        return "stopped"

    assert run_all(3, talk) == ["stopped", "left", "stopped"]


def test_processes_agree_after_one_that_came_too_late() -> None:
    board = FakeBoard(2)
    early, late = make(board, 0), make(board, 1)
    with pytest.raises(PlanMismatchError, match="process 1 of 2 did not call it"):
        early.exchange("old", timeout_s=0.1)
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda each: each.exchange(f"new {each.rank}", timeout_s=5), (early, late))
    assert list(found) == [("new 0", "new 1")] * 2


def test_one_time_limit_holds_for_all_reads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked_ms, names = [0.0], list[int](), [f"meshwright/topic/1/{rank}" for rank in range(4)]
    monkeypatch.setattr("meshwright._agreement.time.monotonic", lambda: now[0])

    class SlowBoard(FakeBoard):
        def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
            asked_ms.append(timeout_in_ms)
            now[0] += timeout_in_ms / 1000
            if now[0] >= 2:
                self.values.pop(names[1], None)  # it came first, and has given up
            if now[0] >= 4.5:
                self.values[names[3]] = ""
            raise RuntimeError("DEADLINE_EXCEEDED")

    board = SlowBoard(4)
    board.values[names[1]] = ""
    with pytest.raises(PlanMismatchError, match="within 5 s: process 2 of 4 did not call it"):
        make(board, 0).exchange("", timeout_s=5)
    monkeypatch.undo()
    assert asked_ms == [100] + [1000] * 4 + [900, 1, 1, 1]


def test_a_lost_service_is_asked_once_and_a_wait_can_be_given_up() -> None:
    class LostBoard(FakeBoard):
        def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
            raise RuntimeError("UNAVAILABLE")

        def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
            raise RuntimeError("UNAVAILABLE")

    with pytest.raises(PlanMismatchError, match="process 0, 1 of 2 did not call it"):
        make(LostBoard(2), 0).exchange("", timeout_s=1e6)

    def give_up() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(FakeBoard(2), 0).exchange("", timeout_s=1e6, check=give_up)
