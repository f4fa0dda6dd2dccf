"""XIDs of one look at the kernel log: which device each is of, what stands from now on, and what is only told.

Rule: each XID is told, equal ones of one look together; those that are hardware's stand as a fault of every device on
that card, also of one that is not listed any more. A log that cannot be read is said as long as that is so.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from meshwright_agent.facts.health import Xid
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.health.board import WORST_FIRST, HealthBoard
from meshwright_agent.health.history import History
from meshwright_agent.health.memory import Fault, HealthMemory
from meshwright_agent.health.xids import judge_xid

KERNEL_LOG: Final = "kernel_log"
_UNREADABLE: Final = (
    "let the agent read it (CAP_SYSLOG, and the device in its container), or set MESHWRIGHT_KERNEL_LOG= to do without"
)


def report_kernel_log(
    board: HealthBoard, memory: HealthMemory, history: History | None, facts: HostFacts, at: datetime
) -> None:
    """Writes what the kernel log tells onto the board, into memory and history.

    Args:
        board: gets the log's own component, and faults of devices.
        memory: keeps the faults, and how far the log was looked at.
        history: hears of each XID; None: nobody does.
        facts: a look, with the log.
        at: when it was.
    """
    log = facts.kernel_log
    assert log is not None, "the caller has looked"
    if log.error is not None:
        reason = f"cannot be read, so XIDs are not seen: {log.error}"
        board.report(KERNEL_LOG, "degraded", reason, at=at, action=_UNREADABLE)
        return
    for (component, _), xids in _group(log.xids, facts, memory).items():
        _report_xid(board, memory, history, component, xids, at)
    memory.note_log(log.last_sequence)
    board.report(KERNEL_LOG, "healthy", "read for XIDs of NVIDIA's driver", at=at)


def _group(xids: tuple[Xid, ...], facts: HostFacts, memory: HealthMemory) -> dict[tuple[str, int], list[Xid]]:
    groups: dict[tuple[str, int], list[Xid]] = {}
    for xid in xids:
        for component in _list_components(xid.pci_bus_id, facts, memory):
            groups.setdefault((component, xid.code), []).append(xid)
    return groups


def _list_components(address: str, facts: HostFacts, memory: HealthMemory) -> list[str]:
    """Returns the devices at a PCI address: those listed, else those that were, else the address itself."""
    here = [gpu.key for gpu in facts.gpus if gpu.pci_bus_id == address]
    before = [device.key for device in memory.value.devices if device.pci_bus_id == address]
    return [f"device:{key}" for key in here or before or [address]]


def _report_xid(
    board: HealthBoard, memory: HealthMemory, history: History | None, component: str, xids: list[Xid], at: datetime
) -> None:
    last = xids[-1]
    rule = judge_xid(last.code, last.text)
    when = at - timedelta(seconds=last.age_s)
    code, reason = f"xid_{last.code}", _describe(last, rule.meaning)
    now = board.state(component, at)
    if history is not None:
        state = min((now, rule.state), key=WORST_FIRST.index) if rule.state else now
        times = f" ({len(xids)} times since the last look)" if len(xids) > 1 else ""
        history.note_fault(component, code, state=state, reason=f"{reason}{times}", action=rule.action, at=when)
    if rule.state is not None:
        fault = Fault(component, code, rule.state, reason, rule.action, when, count=len(xids))
        board.add_fault(memory.add_fault(fault), at)


def _describe(xid: Xid, meaning: str) -> str:
    who = f" by process {xid.pid}" if xid.pid is not None else ""
    name = f" ({xid.process})" if xid.process else ""
    text = f": {xid.text}" if xid.text else ""
    return f"XID {xid.code}, {meaning}{who}{name}{text}"
