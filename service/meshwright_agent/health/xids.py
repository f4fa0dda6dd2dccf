"""What an XID means for a card and what an operator should do about it: one table.

Rule: what NVIDIA's catalogue settles by restarting the application, or by nothing, is an event and no fault; all others
stay until a reboot or an operator's word. A number that stands in no row is told as such and never passed over. Knows
nothing of logs and boards.

Source: NVIDIA, Xid catalogue for Ampere and newer, column "Resolution Bucket (Immediate Action)"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html); of 13, 31, 43, 45, 68, 109 NVIDIA/k8s-device-plugin,
docs of DP_DISABLE_HEALTHCHECKS, which takes them for the application's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshwright_agent.health.rules import RESET, RMA, XidRule

APPLICATION: Final = frozenset({13, 31, 43, 45, 68, 109})
"""The application's own, whatever the catalogue advises."""

_INFORMATIONAL: Final = frozenset(
    {8, 11, 14, 25, 32, *range(37, 42), 44, 60, 66, 67, *range(69, 73), *range(75, 78), 80, *range(82, 90), 93}
    | {*range(96, 109), *range(126, 136), 137, 139, 141, 152, 153, 154, 160, 161, 162, 163}
)
"""RESTART_APP, IGNORE, or about another XID (154: NVML tells the recovery action itself)."""

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
    143: XidRule("the GPU did not initialise", "unhealthy", _REPEATED),
    **{
        code: XidRule(f"NVLink error ({unit})", "degraded", f"look at the kernel log's line; {_SUPPORT}")
        for code, unit in zip(range(144, 151), ("SAW", "RLW", "TLW", "TREX", "NVLPW", "NETIR", "MSE"), strict=True)
    },
    151: XidRule("key rotation error", "unhealthy", "restart the virtual machine, or reboot the host"),
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


def judge_xid(code: int) -> XidRule:
    """Returns what an XID means."""
    if code in APPLICATION:
        return XidRule("the application's own error", None, "look at the job: its process ended, or reads wrong memory")
    if code in _INFORMATIONAL:
        return XidRule("an error that ends with its job", None, "restart the job")
    rule = _RULES.get(code)
    if rule is None:
        action = "look it up in NVIDIA's Xid catalogue; ask NVIDIA's support if it happens again"
        return XidRule("a number that this agent has no words for", "degraded", action)
    return rule
