"""What outlives the agent, as a document: written, read back, and read where it was written by another version."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.health import WORST_FIRST, State
from meshwright_agent.health.events import Fault, HealthMemory, KnownDevice, Standing
from tests.fakes.stored import EPOCH

FAULT = Fault("device:0", "xid_79", "unhealthy", "it fell", "reboot", EPOCH)


def fill() -> HealthMemory:
    memory = HealthMemory()
    memory.note_boot("boot-1")
    memory.note_log(7)
    memory.add_fault(FAULT)
    memory.note_devices([KnownDevice("GPU-0")])
    memory.set_baselines("link:GPU-0", {"fatal": 3})
    memory.note_wrong("device:GPU-0", "3 elements")
    memory.note_state("device:GPU-0", "unhealthy", EPOCH)
    return memory


def reload(memory: HealthMemory, **changes: Any) -> HealthMemory:
    document = json.loads(memory.dump()) | changes
    again = HealthMemory()
    again.load(json.dumps(document))
    return again


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.tuples(st.sampled_from(WORST_FIRST), st.timedeltas())))
def test_what_was_told_comes_back_as_it_was(told: dict[str, tuple[State, timedelta]]) -> None:
    memory = HealthMemory()
    for component, (state, ago) in told.items():
        since = EPOCH - min(abs(ago), timedelta(days=365_000))
        memory.note_state(component, state, since)
    again = reload(memory)
    assert again.list_recorded() == tuple(told)
    assert [again.standing(name) for name in told] == [memory.standing(name) for name in told]
    assert not again.is_dirty


def test_another_boot_ends_what_counts_from_a_boot_and_nothing_else() -> None:
    memory = fill()
    assert memory.note_boot("boot-2")
    value = memory.value
    assert (value.boot_id, value.log_sequence, value.faults, dict(value.counters)) == ("boot-2", None, (), {})
    assert [device.key for device in value.devices] == ["GPU-0"]
    assert value.wrong_results == {"device:GPU-0": "3 elements"}
    assert memory.standing("device:GPU-0") == Standing("unhealthy", EPOCH)


def test_a_document_of_an_agent_that_kept_no_states_is_read_and_they_begin_anew() -> None:
    document = json.loads(fill().dump())
    del document["states"], document["wrong_results"]
    memory = HealthMemory()
    memory.load(json.dumps(document))
    assert (memory.value.faults, memory.list_recorded(), dict(memory.value.wrong_results)) == ((FAULT,), (), {})


def test_states_that_cannot_be_read_cost_no_fault() -> None:
    said = {"state": "dreaming", "since": EPOCH.isoformat()}, {"state": "healthy", "since": "2026-11-21T07:00:00"}, 3
    for one in said:  # of a newer agent, without a zone, and nothing at all
        memory = reload(fill(), states={"device:GPU-0": one})
        assert (memory.value.faults, memory.list_recorded()) == ((FAULT,), ())


def test_what_this_life_has_told_already_holds_and_is_written() -> None:
    memory = HealthMemory()
    memory.note_state("store", "degraded", EPOCH)
    before = fill()
    before.note_state("store", "healthy", EPOCH - timedelta(days=1))
    memory.load(before.dump())
    assert memory.standing("store") == Standing("degraded", EPOCH)
    assert memory.standing("device:GPU-0") == Standing("unhealthy", EPOCH)
    assert memory.is_dirty


def test_what_is_told_or_forgotten_is_to_be_written_and_what_was_never_told_is_not() -> None:
    memory = reload(fill())
    memory.forget_state("device:9")
    memory.clear_wrong("device:9")
    memory.forget_others(["device:GPU-0"])
    assert not memory.is_dirty
    memory.forget_others(["store"])
    assert (memory.is_dirty, memory.list_recorded()) == (True, ())


def test_a_right_result_ends_the_wrong_one_of_its_device_alone() -> None:
    memory = fill()
    memory.note_wrong("device:1", "1 element")
    memory.clear_wrong("device:GPU-0")
    assert memory.value.wrong_results == {"device:1": "1 element"}
