"""What outlives the agent, as a document: written, read back, and read where it was written by another version."""

from __future__ import annotations

import json
from dataclasses import replace
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
    memory.record_boot("boot-1")
    memory.log_sequence = 7
    memory.add_fault(FAULT)
    memory.devices["GPU-0"] = KnownDevice("GPU-0")
    memory.set_baseline("link:GPU-0", "fatal", 3)
    memory.nvlinks["GPU-0"] = 18
    memory.had_file.add("GPU-0")
    memory.wrong_results["device:GPU-0"] = {"matmul": "3 elements"}
    memory.states["device:GPU-0"] = Standing("unhealthy", EPOCH)
    return memory


def reload(memory: HealthMemory, **changes: Any) -> HealthMemory:
    document = json.loads(memory.dump()) | changes
    again = HealthMemory()
    again.load(json.dumps(document))
    return again


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.tuples(st.sampled_from(WORST_FIRST), st.timedeltas())))
def test_what_was_told_comes_back_as_it_was(told: dict[str, tuple[State, timedelta]]) -> None:
    memory = fill()
    memory.states = {
        component: Standing(state, EPOCH - min(abs(ago), timedelta(days=365_000)))
        for component, (state, ago) in told.items()
    }
    again = reload(memory)
    assert again == memory


def test_another_boot_ends_counters_and_the_place_in_the_log_and_nothing_else() -> None:
    memory = fill()
    assert not memory.record_boot("boot-1")
    assert memory.record_boot("boot-2")
    assert memory == replace(fill(), boot_id="boot-2", log_sequence=None, baselines={})


def test_a_fault_is_counted_with_those_of_its_code() -> None:
    memory = fill()
    memory.add_fault(replace(FAULT, reason="again", count=2))
    assert memory.faults == {"device:0": {"xid_79": replace(FAULT, reason="again", count=3)}}


def test_a_device_that_is_forgotten_takes_what_its_card_had_with_it() -> None:
    memory = fill()
    memory.forget_devices(["GPU-0", "GPU-9"])
    assert (memory.devices, memory.nvlinks, memory.had_file) == ({}, {}, set())
