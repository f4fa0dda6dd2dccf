"""An audit on the command line: what the step is spent on, and the best that the same devices could do.

Rule: the agent's or the planner's own words, in their order; nothing is reckoned here.
"""

from __future__ import annotations

from typing import Final

from meshwright.cli.output import clean
from meshwright.wire.cost import AuditRemark
from meshwright.wire.mesh import Plan

MEMORY: Final = frozenset({"memory", "memory_tight"})
"""Codes of remarks whose share is one of the device's memory, not of the step's time."""


def write_audit(plan: Plan) -> list[str]:
    """Returns what is said of memory, what the step is spent on with its shares, and then the best mesh; nothing for a
    plan that was not audited."""
    if plan.audit is None:
        return []
    remarks = plan.audit.remarks
    lines = [line for remark in remarks if remark.code in MEMORY for line in _write_memory(remark)]
    lines.append("where the step goes")
    lines += [line for remark in remarks if remark.code not in MEMORY for line in _write_remark(remark)]
    best = plan.audit.best
    said = "no mesh of these devices fits" if best is None else clean(best.message)
    return [*lines, "", f"the best of these devices: {said}"]


def _write_memory(remark: AuditRemark) -> list[str]:
    return [f"memory: {clean(remark.message)}", *_write_hint(remark, indent=2), ""]


def _write_remark(remark: AuditRemark) -> list[str]:
    share = "" if remark.share_ratio is None else f"{remark.share_ratio:.0%}"
    return [f"  {share:>5}  {clean(remark.message)}", *_write_hint(remark, indent=9)]


def _write_hint(remark: AuditRemark, *, indent: int) -> list[str]:
    return [f"{' ' * indent}→ {clean(remark.hint)}"] if remark.hint else []
