"""XIDs, SXIDs and failures of cards, by the kernel log: what each is of, what stands, what is told.

Rule: each is told, equal ones of one look together; those that are hardware's stand as a fault of every device on that
card, also of one that is not listed any more, or of the NVSwitch. Where the log is not read, that is said as long as
it is so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from meshwright.wire.health import WORST_FIRST
from meshwright_agent.facts.model import CardFailure, HostFacts, SXid, Xid
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.history import History
from meshwright_agent.health.memory import Fault, HealthMemory
from meshwright_agent.health.rules import XidRule
from meshwright_agent.health.sxids import judge_sxid
from meshwright_agent.health.xids import judge_xid

KERNEL_LOG: Final = "kernel_log"
NVSWITCH: Final = "nvswitch"
"""Named by its PCI address: `nvswitch:0000:05:00.0`."""
_LIKE_XID: Final = {"fallen_off_the_bus": 79, "init_failed": 143}
"""Failures mean what these XIDs mean, which the driver did not write."""
_UNREADABLE: Final = (
    "let the agent read it (CAP_SYSLOG, and the device in its container), or set MESHWRIGHT_KERNEL_LOG= to do without"
)
_UNWATCHED: Final = "to watch them set MESHWRIGHT_KERNEL_LOG=/dev/kmsg; in the chart, features.kernelLog.enabled"
_OVERWRITTEN: Final = (
    "look for NVRM in the journal (journalctl -k); where it happens often, see what floods the kernel log, give it "
    "more room (log_buf_len) or lower MESHWRIGHT_PROBE_INTERVAL_S"
)


def report_kernel_log(board: HealthBoard, history: History, facts: HostFacts, at: datetime) -> None:
    """Writes what the kernel log tells onto the board and into the history; and whether XIDs are watched here.

    Args:
        board: gets faults of devices and switches.
        history: hears of each XID; remembers the faults, and how far the log was looked at.
        facts: a look.
        at: when it was.
    """
    log = facts.kernel_log
    if log is None:
        if KERNEL_LOG in board.names():
            board.forget(KERNEL_LOG)
        return
    if not log.is_wanted:
        reason = "XIDs are not watched here: the kernel log is not read (MESHWRIGHT_KERNEL_LOG is empty)"
        board.report(KERNEL_LOG, "initializing", reason, at=at, action=_UNWATCHED)
        return
    if log.error is not None:
        reason = f"XIDs are not watched here: the kernel log cannot be read: {log.error}"
        board.report(KERNEL_LOG, "degraded", reason, at=at, action=_UNREADABLE)
        return
    _report_xids(board, history, log.xids, facts, at)
    _report_failures(board, history, log.failures, facts, at)
    _report_sxids(board, history, log.sxids, at)
    history.memory.note_log(log.last_sequence)
    if log.lost_count:
        reason = f"{log.lost_count} records were overwritten before they were read; XIDs among them were not seen"
        board.report(KERNEL_LOG, "degraded", reason, at=at, action=_OVERWRITTEN, permanence="transient")
    else:
        board.report(KERNEL_LOG, "healthy", "read for XIDs and SXIDs of NVIDIA's drivers", at=at)


def _report_xids(board: HealthBoard, history: History, xids: tuple[Xid, ...], facts: HostFacts, at: datetime) -> None:
    """Tells each XID of the devices on its card; those that are hardware's stand."""
    for (component, _), equal in _group(xids, facts, history.memory).items():
        last = equal[-1]
        rule = judge_xid(last.code)
        told = _Told(component, f"xid_{last.code}", rule, _describe(last, rule.meaning), len(equal), last.age_s)
        _report(board, history, told, at)


def _report_failures(
    board: HealthBoard, history: History, failures: tuple[CardFailure, ...], facts: HostFacts, at: datetime
) -> None:
    """Lets failures stand against the devices on their card; one whose card is not named, against the driver.

    The driver writes a line each time that somebody opens such a card, this agent too: only the first is an event.
    """
    groups: dict[tuple[str, str], list[CardFailure]] = {}
    for failure in failures:
        address = failure.pci_bus_id
        for component in ["driver"] if address is None else _list_components(address, facts, history.memory):
            groups.setdefault((component, failure.code), []).append(failure)
    standing = {(fault.component, fault.code) for fault in history.memory.value.faults}
    for (component, code), equal in groups.items():
        last = equal[-1]
        rule = judge_xid(_LIKE_XID[last.code])
        reason = f"{rule.meaning}, by a line of the kernel log without an XID: {last.text}"
        told = _Told(component, code, rule, reason, len(equal), last.age_s)
        _report(board, history, told, at, is_news=(component, code) not in standing)


def _report_sxids(board: HealthBoard, history: History, sxids: tuple[SXid, ...], at: datetime) -> None:
    """Tells each SXID of its NVSwitch, which is a component from its first one on."""
    groups: dict[tuple[str, int, bool], list[SXid]] = {}
    for sxid in sxids:
        groups.setdefault((sxid.pci_bus_id, sxid.code, sxid.is_fatal), []).append(sxid)
    known = {component for component in board.names() if component.startswith(f"{NVSWITCH}:")}
    for component in sorted(known | {f"{NVSWITCH}:{address}" for address, _, _ in groups}):
        board.report(component, "healthy", "the kernel log tells no other SXID of it that stands", at=at)
    for (address, code, is_fatal), equal in groups.items():
        rule = judge_sxid(code, is_fatal=is_fatal)
        reason = f"SXID {code}, {rule.meaning}{_describe_place(equal)}"
        told = _Told(f"{NVSWITCH}:{address}", f"sxid_{code}", rule, reason, len(equal), equal[-1].age_s)
        _report(board, history, told, at)


def _describe_place(sxids: list[SXid]) -> str:
    links = sorted({sxid.link for sxid in sxids if sxid.link is not None})
    words = f" on link {', '.join(map(str, links))}" if links else ""
    return words + (f": {sxids[-1].text}" if sxids[-1].text else "")


@dataclass(frozen=True)
class _Told:
    """What a driver reported of a component, `count` times; the last of them `age_s` ago."""

    component: str
    code: str
    rule: XidRule
    reason: str
    count: int
    age_s: float


def _report(board: HealthBoard, history: History, told: _Told, at: datetime, *, is_news: bool = True) -> None:
    component, rule, when = told.component, told.rule, at - timedelta(seconds=told.age_s)
    now = board.state(component, at)
    if is_news:
        state = min((now, rule.state), key=WORST_FIRST.index) if rule.state else now
        times = f" ({told.count} times since the last look)" if told.count > 1 else ""
        reason = f"{told.reason}{times}"
        history.note_fault(component, told.code, state=state, reason=reason, action=rule.action, at=when)
    if rule.state is not None:
        fault = Fault(component, told.code, rule.state, told.reason, rule.action, when, count=told.count)
        board.add_fault(history.memory.add_fault(fault), at)


def _group(xids: tuple[Xid, ...], facts: HostFacts, memory: HealthMemory) -> dict[tuple[str, int], list[Xid]]:
    groups: dict[tuple[str, int], list[Xid]] = {}
    for xid in xids:
        for component in _list_components(xid.pci_bus_id, facts, memory):
            groups.setdefault((component, xid.code), []).append(xid)
    return groups


def _list_components(address: str, facts: HostFacts, memory: HealthMemory) -> list[str]:
    """Returns the devices at a PCI address: those listed by name, else those that were, else the address itself."""
    here = [gpu.key for gpu in facts.gpus if gpu.pci_bus_id == address and gpu.key != address]
    before = [device.key for device in memory.value.devices if device.pci_bus_id == address]
    return [f"device:{key}" for key in here or before or [address]]


def _describe(xid: Xid, meaning: str) -> str:
    who = f" by process {xid.pid}" if xid.pid is not None else ""
    name = f" ({xid.process})" if xid.process else ""
    text = f": {xid.text}" if xid.text else ""
    return f"XID {xid.code}, {meaning}{who}{name}{text}"
