"""Reports of the kernel log on NVIDIA's cards: XIDs, SXIDs of NVSwitches and failures, with their meaning.

Errors of the application, and errors that end with the job by NVIDIA's catalog, are only events. All others are also
active faults of every device on that card, even if the device is no longer listed. For an NVSwitch, or a line that does
not name a card, they are faults of `driver`. A number without a row is reported as unknown and never dropped.

Sources: NVIDIA, Xid catalog for Ampere and newer, column "Resolution Bucket (Immediate Action)"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); of 13, 31, 43, 45, 68, 109 NVIDIA/k8s-device-plugin,
docs of DP_DISABLE_HEALTHCHECKS, which treats them as errors of the application. SXIDs: NVIDIA, Fabric Manager User
Guide, appendix on NVSwitch SXids (docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf), read in the
table of github.com/leptonai/gpud (components/accelerator/nvidia/sxid/sxid.go): the driver's classification, Fatal or
Non-fatal, is used. The table adds the numbers that are fatal to the whole fabric, harmless, or more severe than
classified.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from meshwright.wire.health import WORST_FIRST, State
from meshwright_agent.facts.model import HostFacts, KernelLog, SXid, Xid
from meshwright_agent.health.events import Fault, Finding, HealthMemory, History
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.health.rules import RESET, RMA


@dataclass(frozen=True)
class XidRule:
    """The meaning of one XID or SXID.

    Attributes:
        meaning: NVIDIA's text, shortened.
        state: state of the device or driver while the fault is active; None: an event, not a fault.
        action: the operator's action, as a sentence.
    """

    meaning: str
    state: State | None
    action: str = ""


APPLICATION: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the application, regardless of the catalog's advice."""

_INFORMATIONAL: Final = frozenset(
    {8, 11, 14, 25, 32, *range(37, 42), 44, 60, 66, 67, *range(69, 73), *range(75, 78), 80, *range(82, 90), 93}
    | {*range(96, 109), *range(126, 136), 137, 139, 141, 152, 153, 160, 161, 162, 163}
)
"""RESTART_APP, IGNORE, or about another XID."""

_REPEATED: Final = f"{RESET}; {RMA} if it happens again"
_SUPPORT: Final = f"{RESET}; ask NVIDIA's support if it happens again"

_RULES: Final[Mapping[int, XidRule]] = {
    46: XidRule("the GPU stopped processing", "unhealthy", _SUPPORT),
    48: XidRule("double-bit ECC error", "unhealthy", _REPEATED),
    54: XidRule("auxiliary power is not connected", "unhealthy", "check the card's power cables, and reseat them"),
    62: XidRule("its micro-controller halted", "unhealthy", _REPEATED),
    63: XidRule("a memory row or page is to be retired", "degraded", "reset the GPU at the next chance, so that it is"),
    64: XidRule("a memory row or page could not be retired", "unhealthy", f"{RESET}; {RMA} if it fails again"),
    74: XidRule(
        "NVLink error",
        "unhealthy",
        "drain the host; reset all GPUs of the NVLink domain; reseat or replace bridge or card if it happens again",
    ),
    78: XidRule("vGPU did not start", "degraded", "update host driver and vGPU software to releases that fit"),
    79: XidRule(
        "the GPU has fallen off the bus",
        "unhealthy",
        "drain the host and reboot it, with a power cycle if the card stays away; reseat the card; RMA if it returns",
    ),
    92: XidRule("many single-bit ECC errors", "degraded", "run NVIDIA's field diagnostics at the next chance"),
    94: XidRule(
        "contained memory error: its job was ended", "degraded", "restart the job; reset the GPU when it is idle"
    ),
    95: XidRule("uncontained memory error", "unhealthy", _REPEATED),
    110: XidRule("security fault", "unhealthy", _SUPPORT),
    119: XidRule("its GSP firmware does not answer", "unhealthy", _SUPPORT),
    120: XidRule("error of its GSP firmware", "unhealthy", _SUPPORT),
    121: XidRule("error of the link between CPU and GPU (C2C)", "degraded", "ask NVIDIA's support if it happens again"),
    136: XidRule("an NVLink did not train", "unhealthy", f"{RESET}; check NVLink cables and bridges"),
    140: XidRule("an ECC error was not recovered", "unhealthy", _REPEATED),
    142: XidRule("video encoder error", "degraded", "ask NVIDIA's support if it happens again"),
    143: XidRule("the GPU did not initialize", "unhealthy", _REPEATED),
    **{
        code: XidRule(f"NVLink error ({unit})", "degraded", f"look at the kernel log's line; {_SUPPORT}")
        for code, unit in zip(range(144, 151), ("SAW", "RLW", "TLW", "TREX", "NVLPW", "NETIR", "MSE"), strict=True)
    },
    151: XidRule("key rotation error", "unhealthy", "restart the virtual machine, or reboot the host"),
    154: XidRule("the driver's recovery action changed", None, "do what the line says"),
    155: XidRule("NVLink error that software defines", "unhealthy", _SUPPORT),
    156: XidRule("a part of the GPU is to be retired", "degraded", "reset the GPU at the next chance, so that it is"),
    157: XidRule("a part of the GPU could not be retired", "degraded", f"{RESET}; {RMA} if it fails again"),
    158: XidRule("fatal timeout", "unhealthy", _REPEATED),
    167: XidRule("fatal timeout on PCIe", "unhealthy", f"{RESET}; reseat the card if it happens again"),
    168: XidRule("part of its memory is not used", "degraded", f"{RESET}; {RMA} if it happens again"),
    169: XidRule("its security processor halted", "unhealthy", _REPEATED),
    171: XidRule("uncorrectable error in DRAM (details of XID 48)", "unhealthy", _REPEATED),
    172: XidRule("uncorrectable error in SRAM (details of XID 48)", "unhealthy", _REPEATED),
}


_SEVERE: Final = {154: re.compile(r"to 0x[1267]\b"), **dict.fromkeys(range(144, 151), re.compile(r"\bFatal\b"))}
"""XIDs that are unhealthy if their line has these words: a reset or reboot is required; a fatal error."""


def find_xid_rule(code: int, text: str = "") -> XidRule:
    """Returns the rule of an XID with this text."""
    if code in _SEVERE and _SEVERE[code].search(text):
        return replace(_RULES[code], state="unhealthy")
    if code in APPLICATION:
        return XidRule("the application's own error", None, "look at the job: its process ended, or reads wrong memory")
    if code in _INFORMATIONAL:
        return XidRule("an error that ends with its job", None, "restart the job")
    action = "look it up in NVIDIA's Xid catalog; ask NVIDIA's support if it happens again"
    return _RULES.get(code, XidRule("a number that this agent does not know", "degraded", action))


ALWAYS_FATAL: Final = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
"""Fatal to the whole fabric, for any link."""

_CORRECTED: Final = frozenset(
    {11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 24001, 24002, 24003}
    | {19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071}
)
"""Single-bit ECC errors, which the switch corrects."""

_RESET_ALL: Final = "drain the host; reset all GPUs and NVSwitches together (nvidia-smi --gpu-reset), or reboot it"
_STALLED: Final = "restart the jobs on the GPU behind this link; if they hang, " + _RESET_ALL

_NON_FATAL: Final[Mapping[int, XidRule]] = {
    **dict.fromkeys(_CORRECTED, XidRule("single-bit ECC error, corrected", None)),
    11004: XidRule("ingress invalid ACL: traffic of its GPU stands", "degraded", f"check the partitions; {_STALLED}"),
    12028: XidRule("egress non-posted PRIV error: traffic of its GPU stands", "degraded", _STALLED),
    19084: XidRule("AN1 heartbeat timeout: a fatal SXID mostly comes with it", "degraded", _RESET_ALL),
    20001: XidRule("packets were sent again", None, "if it goes on, have the NVLink looked at"),
    20009: XidRule("errors were received at a higher rate", None, "if it goes on, have the NVLink looked at"),
    20012: XidRule("broken or inconsistent connection", "degraded", "check the link's mechanical connections"),
    22013: XidRule("an interrupt that can be ignored", None),
}


def find_sxid_rule(code: int, *, is_fatal: bool) -> XidRule:
    """Returns the rule of an SXID."""
    if code in ALWAYS_FATAL:
        return XidRule("fatal to the whole fabric", "unhealthy", f"{_RESET_ALL}; ask NVIDIA's support if it returns")
    if is_fatal:
        action = f"{_RESET_ALL}; check nvidia-fabricmanager; ask NVIDIA's support if it returns"
        return XidRule("fatal to the jobs whose GPUs use the link", "unhealthy", action)
    unknown = XidRule(
        "not fatal, and a number that this agent does not know",
        "degraded",
        "look it up in NVIDIA's Fabric Manager User Guide; ask NVIDIA's support if it happens again",
    )
    return _NON_FATAL.get(code, unknown)


KERNEL_LOG: Final = "kernel_log"
DRIVER: Final = "driver"
_LIKE_XID: Final = {"fallen_off_the_bus": 79, "init_failed": 143}
"""Failures have the meaning of these XIDs, which the driver did not write."""
_UNREADABLE: Final = (
    "let the agent read it (CAP_SYSLOG, and the device in its container), or set MESHWRIGHT_KERNEL_LOG= to do without"
)
_UNWATCHED: Final = "to watch them set MESHWRIGHT_KERNEL_LOG=/dev/kmsg; in the chart, features.kernelLog.enabled"
_OVERWRITTEN: Final = (
    "look for NVRM in the journal (journalctl -k); where it happens often, see what floods the kernel log, give it "
    "more room (log_buf_len) or lower MESHWRIGHT_PROBE_INTERVAL_S"
)


def report_kernel_log(registry: HealthRegistry, history: History, facts: HostFacts, at: datetime) -> None:
    """Writes the kernel log's reports to the registry and the history, and whether XIDs are monitored.

    Args:
        history: records each XID, the faults, and the position in the log.
    """
    log = facts.kernel_log
    if log is None:
        if KERNEL_LOG in registry.names():
            registry.forget(KERNEL_LOG)
        return
    if not log.is_wanted:
        reason = "XIDs are not watched here: the kernel log is not read (MESHWRIGHT_KERNEL_LOG is empty)"
        registry.report(KERNEL_LOG, Finding("initializing", reason, _UNWATCHED), at=at)
        return
    if log.error is not None:
        reason = f"XIDs are not watched here: the kernel log cannot be read: {log.error}"
        registry.report(KERNEL_LOG, Finding("degraded", reason, _UNREADABLE), at=at)
        return
    groups: dict[tuple[str, str], list[_Report]] = {}
    for components, report in _list_reports(facts, log, history.memory):
        for component in components:
            groups.setdefault((component, report.code), []).append(report)
    for (component, code), reports in groups.items():
        _report(registry, history, component, reports, at, is_new=code not in registry.faults(component))
    if log.last_sequence is not None:
        history.memory.log_sequence = log.last_sequence
    finding = Finding("healthy", "read for XIDs and SXIDs of NVIDIA's drivers")
    if log.lost_count:
        reason = f"{log.lost_count} records were overwritten before they were read; XIDs among them were not seen"
        finding = Finding("degraded", reason, _OVERWRITTEN, "transient")
    registry.report(KERNEL_LOG, finding, at=at)


def _list_reports(facts: HostFacts, log: KernelLog, memory: HealthMemory) -> Iterator[tuple[list[str], _Report]]:
    """Yields each line of the log that reports something, with its components."""
    for xid in log.xids:
        rule = find_xid_rule(xid.code, xid.text)
        report = _Report(f"xid_{xid.code}", rule, _describe_xid(xid, rule.meaning), xid.age_s)
        yield _list_components(xid.pci_bus_id, facts, memory), report
    for failure in log.failures:
        rule, address = find_xid_rule(_LIKE_XID[failure.code]), failure.pci_bus_id
        reason = f"{rule.meaning}, by a line of the kernel log without an XID: {failure.text}"
        report = _Report(failure.code, rule, reason, failure.age_s, is_repeated=True)
        yield [DRIVER] if address is None else _list_components(address, facts, memory), report
    for sxid in log.sxids:
        rule = find_sxid_rule(sxid.code, is_fatal=sxid.is_fatal)
        yield [DRIVER], _Report(f"sxid_{sxid.code}", rule, _describe_sxid(sxid, rule.meaning), sxid.age_s)


@dataclass(frozen=True)
class _Report:
    """One line of the log. `is_repeated`: the driver writes it each time a process opens the card."""

    code: str
    rule: XidRule
    reason: str
    age_s: float
    is_repeated: bool = False


def _report(
    registry: HealthRegistry, history: History, component: str, reports: list[_Report], at: datetime, *, is_new: bool
) -> None:
    """Reports equal lines of one probe together, by the worst: as an event if new, and as a fault if they last."""
    last = min(reversed(reports), key=lambda report: WORST_FIRST.index(report.rule.state or "healthy"))
    rule, when = last.rule, at - timedelta(seconds=last.age_s)
    now = registry.state(component, at)
    if is_new or not last.is_repeated:
        state = min((now, rule.state), key=WORST_FIRST.index) if rule.state else now
        times = f" ({len(reports)} times since the last probe)" if len(reports) > 1 else ""
        reason = f"{last.reason}{times}"
        history.record_fault(component, last.code, state=state, reason=reason, action=rule.action, at=when)
    if rule.state is not None:
        fault = Fault(component, last.code, rule.state, last.reason, rule.action, when, count=len(reports))
        registry.add_fault(fault, at)


def _list_components(address: str, facts: HostFacts, memory: HealthMemory) -> list[str]:
    """Returns the devices at a PCI address: those listed now, else those seen before, else the address itself."""
    here = [gpu.key for gpu in facts.gpus if gpu.pci_bus_id == address and gpu.key != address]
    before = [device.key for device in memory.devices.values() if device.pci_bus_id == address]
    return [f"device:{key}" for key in here or before or [address]]


def _describe_xid(xid: Xid, meaning: str) -> str:
    process = f" by process {xid.pid}" if xid.pid is not None else ""
    name = f" ({xid.process})" if xid.process else ""
    text = f": {xid.text}" if xid.text else ""
    return f"XID {xid.code}, {meaning}{process}{name}{text}"


def _describe_sxid(sxid: SXid, meaning: str) -> str:
    link = f" on link {sxid.link}" if sxid.link is not None else ""
    text = f": {sxid.text}" if sxid.text else ""
    return f"NVSwitch {sxid.pci_bus_id}: SXID {sxid.code}, {meaning}{link}{text}"
