from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.runs import FINAL_STATES, Run, RunEvent
from meshwright_agent.runs.live_run import Emit, LiveRun, build_run_id
from tests.fakes.stored import EPOCH, ManualClock, build_record_json, build_run
from tests.unit.staging import Stage, play


async def do_nothing(_run: Run, _emit: Emit) -> tuple[dict[str, Any], int | None]:
    return {}, None


def test_while_the_disk_is_slow_progress_is_folded_into_its_newest_and_records_all_stay() -> None:
    live = LiveRun(build_run(), do_nothing, ManualClock())
    live.take_events()
    for number in range(1000):
        live.emit({"done": number, "total": 1000, "message": ""})
    live.emit({"record": build_record_json()})
    live.emit({"done": 1000, "total": 1000, "message": "end"})
    live.emit({"record": build_record_json()})
    events = live.take_events()
    assert [event.type for event in events] == ["progress", "record", "progress", "record"]
    assert [event.seq for event in events] == [2, 3, 4, 5]
    assert events[0].progress is not None
    assert events[0].progress.done == 999


@given(jumps=st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=30))
def test_ids_sort_as_they_were_made_whatever_the_wall_clock_does(jumps: list[int]) -> None:
    now, ids = EPOCH, [""]
    for jump in jumps:
        now += timedelta(milliseconds=jump)
        ids.append(build_run_id(ids[-1], now, "f" * 20))
    made = ids[1:]
    assert made == sorted(set(made))
    assert {len(run_id) for run_id in made} == {36}


def test_ids_of_two_queues_at_the_same_time_differ(tmp_path: Path) -> None:
    ids: list[str] = []

    async def act(stage: Stage) -> None:
        ids.append(await stage.submit())

    for name in ("a", "b"):
        play(tmp_path / name, act)
    assert ids[0] != ids[1]
    assert ids[0][:16] == ids[1][:16]


@given(
    steps=st.lists(st.sampled_from(["progress", "record", "take", "put_back"]), max_size=30),
)
def test_events_are_numbered_without_gap_whatever_is_taken_and_put_back(steps: list[str]) -> None:
    live = LiveRun(build_run(), do_nothing, ManualClock())
    stored: list[RunEvent] = []
    for step in steps:
        match step:
            case "progress":
                live.emit({"done": 1, "total": 2, "message": ""})
            case "record":
                live.emit({"record": build_record_json()})
            case "take":
                stored += live.take_events()
            case "put_back":
                live.put_back(live.take_events())
    stored += live.take_events()
    assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
    assert sum(event.type == "record" for event in stored) == steps.count("record")
    assert all(event.state not in FINAL_STATES for event in stored)
