"""SXIDs and failures of cards on a board: what each is of, what stands, and what is said where XIDs are not watched."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from meshwright_agent.facts.model import CardFailure, KernelLog, SXid
from meshwright_agent.health.xid import ALWAYS_FATAL, APPLICATION, find_sxid_rule, find_xid_rule
from tests.unit.health.test_monitor import ADDRESS, UUID, Scene, hit

SWITCH = "0000:05:00.0"
NAME = "driver"
FAULT_UP = SXid(20034, SWITCH, is_fatal=True, text="LTSSM Fault Up", link=30)
UNREADABLE = KernelLog(error="/dev/kmsg: Operation not permitted")


def look_at(scene: Scene, *sxids: SXid) -> None:
    scene.look(kernel_log=KernelLog(sxids=sxids, last_sequence=9))


def test_a_fatal_sxid_makes_the_driver_unhealthy_until_a_word_and_no_gpu(scene: Scene) -> None:
    look_at(scene, FAULT_UP, replace(FAULT_UP, link=28))
    seen = scene.component(NAME)
    assert (seen.state, seen.permanence) == ("unhealthy", "permanent")
    assert all(words in seen.reason for words in ("SXID 20034", f"NVSwitch {SWITCH}", "on link 28", "2 times"))
    assert scene.ill() == {NAME}
    assert [event.code for event in scene.events(NAME) if event.kind == "fault"] == ["sxid_20034"]
    look_at(scene)
    assert scene.state(NAME) == "unhealthy"
    scene.restart()
    assert scene.state(NAME) == "unhealthy"
    look_at(scene)
    scene.acknowledge(NAME)
    assert scene.state(NAME) == "healthy"


GONE = CardFailure("fallen_off_the_bus", ADDRESS, text="GPU 0000:1b:00.0: GPU has fallen off the bus.")


def look_at_failures(scene: Scene, *failures: CardFailure) -> None:
    scene.look(kernel_log=KernelLog(last_sequence=9, failures=failures))


@pytest.mark.parametrize("failure", [GONE, replace(GONE, code="init_failed", text="RmInitAdapter failed!")])
def test_a_card_that_is_gone_by_a_line_without_an_xid_is_unhealthy_until_a_word(
    scene: Scene, failure: CardFailure
) -> None:
    name = f"device:{UUID}"
    look_at_failures(scene, failure, failure)
    seen = scene.component(name)
    assert (seen.state, seen.permanence) == ("unhealthy", "permanent")
    assert failure.text in seen.reason
    assert "without an XID" in seen.reason
    assert scene.ill() == {name}
    look_at_failures(scene, failure)  # the driver writes it each time that the card is opened
    assert [event.code for event in scene.events(name) if event.kind == "fault"] == [failure.code]
    scene.restart()
    look_at_failures(scene)
    assert scene.state(name) == "unhealthy"
    scene.acknowledge(name)
    assert scene.ill() == set()


def test_a_line_that_names_no_card_stands_against_the_driver(scene: Scene) -> None:
    look_at_failures(scene, replace(GONE, pci_bus_id=None))
    look_at_failures(scene)
    assert (scene.ill(), scene.state("driver")) == ({"driver"}, "unhealthy")
    scene.acknowledge("driver")
    assert scene.ill() == set()


def test_each_sxid_is_an_event_and_one_that_the_switch_corrects_no_fault(scene: Scene) -> None:
    look_at(scene, SXid(11012, SWITCH, is_fatal=False))
    assert [event.code for event in scene.events(NAME) if event.kind == "fault"] == ["sxid_11012"]
    assert scene.state(NAME) == "healthy"
    assert "times" not in scene.events(NAME)[-1].reason


def test_records_that_nobody_read_in_time_are_told_once(scene: Scene) -> None:
    scene.look(kernel_log=KernelLog(last_sequence=3))
    scene.look(kernel_log=KernelLog(last_sequence=99, lost_count=7))
    seen = scene.component("kernel_log")
    assert (seen.state, seen.permanence) == ("degraded", "transient")
    assert "7 records" in seen.reason
    scene.look(kernel_log=KernelLog(last_sequence=100))
    assert scene.state("kernel_log") == "healthy"


@pytest.mark.parametrize(("log", "state", "words"), [
    (KernelLog(is_wanted=False), "initializing", "MESHWRIGHT_KERNEL_LOG is empty"),
    (UNREADABLE, "degraded", "Operation not permitted"),
])  # fmt: skip
def test_where_xids_are_not_watched_that_is_said_once_and_is_not_green(
    scene: Scene, log: KernelLog, state: str, words: str
) -> None:
    scene.look()
    before = scene.registry.names()
    assert scene.state("kernel_log") == "healthy"
    scene.look(kernel_log=log)
    seen = scene.component("kernel_log")
    assert (seen.state, seen.observed_at) == (state, scene.clock.now())
    assert seen.reason.startswith("XIDs are not watched here: ")
    assert words in seen.reason
    assert "MESHWRIGHT_KERNEL_LOG" in seen.action
    assert scene.registry.names() == before


def test_a_host_without_cards_has_no_kernel_log_on_its_board(scene: Scene) -> None:
    scene.look(kernel_log=KernelLog())
    scene.look(kernel_log=None)
    assert "kernel_log" not in scene.registry.names()


@pytest.mark.parametrize(("codes", "state", "words"), [
    ((46, 48, 62, 64, 74, 79, 95, 119, 120, 140, 143), "unhealthy", "reset|reboot"),
    ((144, 147, 150), "degraded", "kernel log's line"), ((154,), None, "what the line says"),
    ((0, 1, 173, 9999), "degraded", "catalog"),
])  # fmt: skip
def test_an_xid_is_what_nvidias_catalog_says(codes: tuple[int, ...], state: str | None, words: str) -> None:
    rules = [find_xid_rule(code) for code in codes]
    assert [rule.state for rule in rules] == [state] * len(codes)
    assert all(re.search(words, rule.action) for rule in rules)


NO_FAULT = """8 11 13 14 25 31 32 37 38 39 40 41 43 44 45 60 66 67 68 69 70 71 72 75 76 77 80 82 83 84 85 86 87 88 89 93
96 97 98 99 100 101 102 103 104 105 106 107 108 109 126 127 128 129 130 131 132 133 134 135 137 139 141 152 153 154 160
161 162 163"""
UNHEALTHY = "46 48 54 62 64 74 79 95 110 119 120 136 140 143 151 155 158 167 169 171 172"


OF_SOME_SEVERITY = {63, 78, 92, 94, 121, 142, *range(144, 151), 156, 157, 168}


def test_each_xid_has_its_state_and_those_that_are_known_their_meaning() -> None:
    unknown = find_xid_rule(1).meaning
    known = {code for code in range(1, 176) if find_xid_rule(code).meaning != unknown}
    assert known == OF_SOME_SEVERITY | set(map(int, f"{NO_FAULT} {UNHEALTHY}".split()))
    states = dict.fromkeys(map(int, NO_FAULT.split())) | dict.fromkeys(map(int, UNHEALTHY.split()), "unhealthy")
    assert {code: find_xid_rule(code).state for code in range(1, 176)} == {
        code: states.get(code, "degraded") for code in range(1, 176)
    }


CHANGED = "GPU recovery action changed from 0x0 (None) to {}"


@pytest.mark.parametrize(("code", "text", "state"), [
    (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x004505c6)", "unhealthy"),
    (149, "NETIR_LINK_EVT  Nonfatal   XC0 i0 Link 01 (0x004505c6)", "degraded"),
    (154, CHANGED.format("0x1 (GPU Reset Required)"), "unhealthy"),
    (154, CHANGED.format("0x2 (Node Reboot Required)"), "unhealthy"),
    (154, CHANGED.format("0x4 (Drain and Reset)"), "healthy"),
])  # fmt: skip
def test_an_xid_is_as_severe_as_its_line_and_stays_so_after_a_milder_one(
    scene: Scene, code: int, text: str, state: str
) -> None:
    mild = CHANGED.format("0x0 (None)") if code == 154 else text.replace("Fatal", "Nonfatal")
    scene.look(None, hit(code, text=text), hit(code, text=mild))
    scene.look(None, hit(code, text=mild))
    seen = scene.component(f"device:{UUID}")
    assert seen.state == state
    assert mild == text or (text in seen.reason) == (state == "unhealthy")
    assert "restart the job" not in str(scene.events(f"device:{UUID}"))


def test_an_nvlink5_error_names_its_unit_and_the_applications_own_are_known() -> None:
    meanings = [find_xid_rule(code).meaning for code in (144, 147, 150)]
    assert meanings == [f"NVLink error ({unit})" for unit in ("SAW", "TREX", "MSE")]
    assert {13, 31, 43, 45, 68, 109} <= APPLICATION


MEANT = """11004 11012 11021 11022 11023 12021 12023 12028 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071
19084 20001 20009 20012 22013 24001 24002 24003"""
"""SXIDs that are not fatal."""


@pytest.mark.parametrize(("codes", "is_fatal", "state", "words"), [
    ((20034, 11001, 24007, 99999), True, "unhealthy", "reset"),  # the driver's word, also with an unknown number
    ((10003, 12020, 22003, 22011, *range(23001, 23018)), False, "unhealthy", ""),  # always fatal
    ((11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 24001, 24002, 24003), False, None, ""),
    ((19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071, 20001, 20009, 22013), False, None, ""),  # corrected
    ((11004, 12028, 19084, 20012), False, "degraded", "."),  # stops traffic
    ((28006, 23000, 23018), False, "degraded", "Fabric Manager"),  # not known
])  # fmt: skip
def test_an_sxid_is_what_nvidias_catalog_says(
    codes: tuple[int, ...], is_fatal: bool, state: str | None, words: str
) -> None:
    rules = [find_sxid_rule(code, is_fatal=is_fatal) for code in codes]
    assert [rule.state for rule in rules] == [state] * len(codes)
    assert all(re.search(words, rule.action) for rule in rules)
    meant = {
        code for code in range(10_000, 30_000) if "does not know" not in find_sxid_rule(code, is_fatal=False).meaning
    }
    assert meant - ALWAYS_FATAL == set(map(int, MEANT.split()))
    assert all("whole fabric" in find_sxid_rule(code, is_fatal=False).meaning for code in ALWAYS_FATAL)
