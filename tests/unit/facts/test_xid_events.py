"""XIDs as events of a fake NVML: which card each is of, what is left out, and that nothing stays open."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pynvml
import pytest

from meshwright_agent.facts.xid_events import MOST_EVENTS, CannotListenError, XidEvents
from tests.fakes.machines import RECORDED
from tests.fakes.nvml import FakeNvml, check_event_fields

DOCUMENT = json.loads((RECORDED / "dgx-h100/nvml.json").read_text())
FIRST, SECOND = (gpu["bus_id"].lower()[-12:] for gpu in DOCUMENT["gpus"][:2])


def build_nvml(
    *events: list[int], fail: Mapping[str, int] | None = None, gpus: list[dict[str, Any]] | None = None
) -> FakeNvml:
    waiting = deque(events)
    next_event: Callable[[], Any] = lambda: waiting.popleft() if waiting else None  # noqa: E731
    return FakeNvml({**DOCUMENT, "gpus": gpus or DOCUMENT["gpus"]}, fail, next_event)


def test_an_event_of_the_fake_has_the_fields_of_a_real_one() -> None:
    nvml = build_nvml([0, 79])
    nvml.nvmlInit()
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, events)
    assert check_event_fields(nvml.nvmlEventSetWait_v2(events, 0)) == []


def test_each_xid_is_of_the_card_that_its_event_carries() -> None:
    events = XidEvents(build_nvml([1, 79], [0, 48], [1, 63]))
    assert len(events.open()) == 8
    assert [(xid.pci_bus_id, xid.code) for xid in events.wait(1.0)] == [(SECOND, 79), (FIRST, 48), (SECOND, 63)]


def test_a_card_that_answers_nothing_any_more_is_known_all_the_same() -> None:
    nvml = build_nvml([0, 79])
    events = XidEvents(nvml)
    events.open()
    nvml._fail["nvmlDeviceGetPciInfo"] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert [xid.pci_bus_id for xid in events.wait(1.0)] == [FIRST]


def test_what_came_is_told_at_once_and_not_when_the_time_is_up() -> None:
    events = XidEvents(build_nvml([0, 79]))
    events.open()
    began_s = time.monotonic()
    assert len(events.wait(30.0)) == 1
    assert time.monotonic() - began_s < 10.0


def test_what_came_before_the_events_end_is_told() -> None:
    nvml = build_nvml()
    came = iter([[0, 79]])

    def next_event() -> list[int]:
        nvml.fail({"nvmlEventSetWait_v2": pynvml.NVML_ERROR_GPU_IS_LOST})
        return next(came)

    nvml._next_event = next_event
    events = XidEvents(nvml)
    events.open()
    assert [xid.code for xid in events.wait(1.0)] == [79]
    with pytest.raises(pynvml.NVMLError):
        events.wait(1.0)


def test_nothing_within_the_time_is_no_error() -> None:
    events = XidEvents(build_nvml())
    events.open()
    assert events.wait(0.02) == ()


def test_events_of_another_kind_are_no_xids() -> None:
    events = XidEvents(build_nvml([0, 5, pynvml.nvmlEventTypePState], [0, 63]))
    events.open()
    assert [xid.code for xid in events.wait(1.0)] == [63]


def test_an_answer_is_bounded_and_the_next_one_has_the_rest() -> None:
    events = XidEvents(build_nvml(*([0, 63] for _ in range(MOST_EVENTS + 3))))
    events.open()
    assert (len(events.wait(1.0)), len(events.wait(1.0))) == (MOST_EVENTS, 3)


def test_a_card_without_such_events_is_left_out_and_the_others_are_not() -> None:
    first, *rest = DOCUMENT["gpus"]
    events = XidEvents(build_nvml(gpus=[{**first, "event_types": 0}, *rest]))
    assert FIRST not in events.open()
    assert len(events.open()) == 7


@pytest.mark.parametrize(
    ("fail", "words"),
    [
        ({"nvmlInit": pynvml.NVML_ERROR_DRIVER_NOT_LOADED}, "NVML does not start"),
        ({"nvmlEventSetCreate": pynvml.NVML_ERROR_UNKNOWN}, "no event set"),
        ({"nvmlDeviceRegisterEvents": pynvml.NVML_ERROR_NOT_SUPPORTED}, "GPU 7"),
    ],
)
def test_why_nothing_can_be_heard_is_told_and_nothing_stays_open(fail: dict[str, int], words: str) -> None:
    nvml = build_nvml(fail=fail)
    events = XidEvents(nvml)
    with pytest.raises(CannotListenError, match=words):
        events.open()
    assert (nvml.is_open, nvml.event_sets, events.is_open) == (False, 0, False)


def test_without_the_package_nothing_can_be_heard() -> None:
    with pytest.raises(CannotListenError, match="nvidia-ml-py"):
        XidEvents(None).open()


def test_a_lost_card_ends_the_events_and_closing_frees_all() -> None:
    nvml = build_nvml()
    events = XidEvents(nvml)
    events.open()
    nvml._fail["nvmlEventSetWait_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    with pytest.raises(pynvml.NVMLError):
        events.wait(1.0)
    events.close()
    events.close()
    assert (nvml.is_open, nvml.event_sets) == (False, 0)
