"""The kernel log: forms of the line, where reading goes on, what is no log; and that no bytes stop it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.facts import kernel_log
from meshwright_agent.facts.kernel_log import parse_failure, parse_sxid, parse_xid, read_kernel_log
from tests.fakes.well import write_record, xid

CARD = "0000:3b:00"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kmsg"


NOBODY = "pid='<unknown>', name=<unknown>, "
FORMS = [
    ("NVRM: Xid (0000:03:00): 14, ", "0000:03:00.0", 14, None, None, "Channel 00000001"),
    ("NVRM: Xid (PCI:0000:2b:00): 79, ", "0000:2b:00.0", 79, None, None, "GPU has fallen off the bus."),
    (f"NVRM: Xid (PCI:0000:C1:00): 74, {NOBODY}", "0000:c1:00.0", 74, None, None, "NVLink: fatal error"),
    ("NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, ", "0000:10:1c.0", 63, 1896, None, "Row Remapper: New row"),
    ("NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, ", "0000:00:06.0", 31, 79749, "exe", "Ch 0000000a, intr 0"),
    ("NVRM: Xid (PCI:0000:c3:00 GPU-I:05): 13, pid=9, name=a", "0000:c3:00.0", 13, 9, "a", ""),
    ("NVRM: Xid (PCI:0009:01:00): 119, pid=1, name=x, ", "0009:01:00.0", 119, 1, "x", "Timeout"),
]
"""The line up to its text, what it says, and the text."""


@pytest.mark.parametrize("form", FORMS)
def test_each_known_form_of_the_line_is_read(form: tuple[str, str, int, int | None, str | None, str]) -> None:
    found = parse_xid(form[0] + form[-1])
    assert found is not None
    assert (found.pci_bus_id, found.code, found.pid, found.process, found.text) == form[1:]


IN_LINES = r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in\x0aNVRM: fallen off the bus"
FAILURES = [
    ("NVRM: GPU 0000:81:00.0: RmInitAdapter failed! (0x25:0x40:1470)", "init_failed", "0000:81:00.0"),
    ("NVRM: RmInitAdapter failed! (0x27:0x38:1193)", "init_failed", None),
    ("NVRM: GPU at 0000:01:00.0 has fallen off the bus.", "fallen_off_the_bus", "0000:01:00.0"),
    ("NVRM: GPU at PCI:0000:2B:00: GPU has fallen off the bus.", "fallen_off_the_bus", "0000:2b:00.0"),
    (IN_LINES, "fallen_off_the_bus", "0000:b3:00.0"),
]


@pytest.mark.parametrize(("line", "code", "address"), FAILURES)
def test_each_known_line_of_a_card_that_is_gone_without_an_xid_is_read(
    line: str, code: str, address: str | None
) -> None:
    found = parse_failure(line)
    assert found is not None
    assert (found.code, found.pci_bus_id) == (code, address)
    assert found.text == line.replace(r"\x0aNVRM:", "").removeprefix("NVRM: ")


def test_a_line_with_an_xid_counts_once_and_one_without_counts_too(log: Path) -> None:
    write_record(log, 1, "NVRM: Xid (PCI:0000:2b:00): 79, GPU has fallen off the bus.")
    write_record(log, 2, "NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.")
    write_record(log, 3, "NVRM: GPU 0000:2b:00.0: RmInitAdapter failed! (0x25:0x40:1470)")
    found = read_kernel_log(log, now_s=9.0)
    assert [each.code for each in found.xids] == [79]
    assert [each.code for each in found.failures] == ["fallen_off_the_bus", "init_failed"]
    assert read_kernel_log(log, after=3, now_s=9.0).failures == ()


EGRESS = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
SXIDS = [
    (EGRESS, False, 32),
    ("nvidia-nvswitch1: SXid (PCI:0000:C6:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", True, 48),
    ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 10004, Non-fatal, Host_thermal_event_start", False, None),
]


@pytest.mark.parametrize(("line", "is_fatal", "link"), SXIDS)
def test_each_known_form_of_an_sxids_line_is_read(line: str, is_fatal: bool, link: int | None) -> None:
    found = parse_sxid(line)
    assert found is not None
    assert (found.is_fatal, found.link) == (is_fatal, link)
    assert f"SXid (PCI:{found.pci_bus_id}): {found.code}, " in line.replace("C6", "c6")
    assert line.endswith(f", {f'Link {link} ' if link else ''}{found.text}")


@pytest.mark.parametrize(("parse", "line"), [
    (parse_xid, "NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus."), (parse_xid, "Xid 79"), (parse_xid, ""),
    (parse_xid, "NVRM: Xid (): 3"), (parse_failure, "it has fallen off the bus"), (parse_failure, ""),
    (parse_failure, "NVRM: RmInitAdapter: osInitNvMapping failed, bailing out of RmInitAdapter"),
    (parse_sxid, "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine 00"),
    (parse_sxid, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Data {0x10000000, 0x10000000, 0x00000000}"),
    (parse_sxid, "NVRM: Xid (PCI:0000:2b:00): 79, Fatal, Link 1"), (parse_sxid, ""),
    (parse_xid, "NVRM: Xid (PCI:[77]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:2b:00): 79, pid=1[0+1]"),
    (parse_sxid, f"nvidia-nvswitch[77]: segfault at 0 error 4 in {EGRESS}[0+1]"),
    (parse_failure, "NVRM: GPU 0000:[77]: segfault in NVRM: GPU 0000:2b:00.0: GPU has fallen off the bus.[0+1]"),
])  # fmt: skip
def test_a_detail_or_another_line_is_none_of_them(parse: Callable[[str], object], line: str) -> None:
    assert parse(line) is None


def test_sxids_are_read_beside_xids_with_their_place_and_age(log: Path) -> None:
    write_record(log, 6, "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", at_s=100.0)
    write_record(log, 7, xid(CARD, 74), at_s=100.0)
    seen = read_kernel_log(log, now_s=130.0)
    assert [(each.code, each.age_s) for each in seen.sxids] == [(20034, 30.0)]
    assert [each.code for each in seen.xids] == [74]
    assert read_kernel_log(log, after=7).sxids == ()


def test_only_what_came_after_the_last_look_is_told(log: Path) -> None:
    write_record(log, 5, "usb 1-1: new device")
    write_record(log, 6, xid(CARD, 63), at_s=100.0)
    first = read_kernel_log(log, now_s=130.0)
    assert [(x.code, x.age_s) for x in first.xids] == [(63, 30.0)]
    assert first.last_sequence == 6
    write_record(log, 7, xid(CARD, 48))
    write_record(log, 8, "something else")
    second = read_kernel_log(log, after=first.last_sequence)
    assert [x.code for x in second.xids] == [48]
    assert second.last_sequence == 8
    assert read_kernel_log(log, after=8).xids == ()


def test_records_that_were_overwritten_before_they_were_read_are_counted(log: Path) -> None:
    for number in (6, 7):
        write_record(log, number, xid(CARD, 63))
    assert read_kernel_log(log, after=3).lost_count == 2
    assert [read_kernel_log(log, after=after).lost_count for after in (5, 6, 7, 900, None)] == [0] * 5


def test_records_that_are_lost_while_it_is_read_are_counted_too(log: Path) -> None:
    for number in (6, 7, 12):
        write_record(log, number, xid(CARD, 63))
    assert [read_kernel_log(log, after=after).lost_count for after in (3, 6, 7, 9, 12, None)] == [6, 4, 4, 2, 0, 0]


def test_a_flood_of_one_line_does_not_delay_the_one_after_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MAX_EQUAL", 3)
    for number in range(5):
        write_record(log, number, xid(CARD, 31))
    write_record(log, 5, xid(CARD, 31, "Fatal"))
    write_record(log, 6, xid(CARD, 79))
    found = read_kernel_log(log)
    assert ([x.code for x in found.xids], found.last_sequence) == ([31, 31, 31, 31, 79], 6)


def test_what_follows_the_limit_of_bytes_is_left(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "MAX_BYTES", 1)
    write_record(log, 1, xid(CARD, 63))
    write_record(log, 2, "x" * 9000)
    write_record(log, 3, xid(CARD, 79))
    assert [x.code for x in read_kernel_log(log).xids] == [63]


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_a_log_that_cannot_be_read_is_an_error(kind: str, log: Path) -> None:
    if kind == "folder":
        log.mkdir()
    found = read_kernel_log(log)
    assert str(log) in (found.error or "")
    assert (found.xids, found.last_sequence) == ((), None)


@pytest.mark.parametrize("text", [f"Nov 22 11:00:00 host kernel: {xid(CARD, 79)}\n", ""])
def test_a_file_in_another_format_and_an_empty_one_are_errors(log: Path, text: str) -> None:
    log.write_text(text)
    assert "format of /dev/kmsg" in (read_kernel_log(log).error or "")


def test_a_log_that_has_nothing_yet_is_not_waited_for(log: Path) -> None:
    os.mkfifo(log)
    done = threading.Thread(target=read_kernel_log, args=(log,), daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive()


PIECES = st.sampled_from([b"NVRM: Xid (PCI:", b"0000:3b:00", b"): 79, pid=", b"\n", b"4,1,2,-;", b"'", b","])


@given(st.binary(max_size=400) | st.lists(PIECES).map(b"".join))
def test_no_bytes_stop_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any-bytes"
    file.write_bytes(content)
    found = read_kernel_log(file)
    assert all(0 <= x.code <= 9999 and len(x.text) <= 200 for x in found.xids)
