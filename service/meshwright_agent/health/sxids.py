"""What an SXID means for an NVSwitch and the GPUs behind it: one table.

Rule: the driver's own word, Fatal or Non-fatal, is believed; the table adds which are fatal to the whole fabric, and
which others are nothing, or more than their word. A number that stands in no row is told and never passed over. A fatal
one reaches the GPU at the link's other end as XID 74, which has its own rule. Knows nothing of logs and boards.

Source: NVIDIA, Fabric Manager User Guide, appendix on NVSwitch SXids: non-fatal, fatal, always fatal
(docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf), read in the table that github.com/leptonai/gpud
makes of it (components/accelerator/nvidia/sxid/sxid.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshwright_agent.health.rules import XidRule

ALWAYS_FATAL: Final = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
"""Fatal to the whole fabric, whatever link they are about."""

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


def judge_sxid(code: int, *, is_fatal: bool) -> XidRule:
    """Returns what an SXID means.

    Args:
        code: its number.
        is_fatal: what the driver says beside it.
    """
    if code in ALWAYS_FATAL:
        return XidRule("fatal to the whole fabric", "unhealthy", f"{_RESET_ALL}; ask NVIDIA's support if it returns")
    if is_fatal:
        action = f"{_RESET_ALL}; check nvidia-fabricmanager; ask NVIDIA's support if it returns"
        return XidRule("fatal to the jobs whose GPUs use the link", "unhealthy", action)
    unknown = XidRule(
        "not fatal, and a number that this agent has no words for",
        "degraded",
        "look it up in NVIDIA's Fabric Manager User Guide; ask NVIDIA's support if it happens again",
    )
    return _NON_FATAL.get(code, unknown)
