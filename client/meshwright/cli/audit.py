"""An audit on the command line: what the step is spent on, and the best that the same devices could do.

Rule: the agent's or the planner's own words, in their order; nothing is reckoned here.
"""

from __future__ import annotations

from meshwright.cli.output import clean
from meshwright.wire.cost import AuditRemark
from meshwright.wire.mesh import Plan


def write_audit(plan: Plan) -> list[str]:
    """Returns the remarks with their shares and hints, the greatest share first, and then the best mesh; nothing for a
    plan that was not audited."""
    if plan.audit is None:
        return []
    lines = ["where the step goes"]
    for remark in plan.audit.remarks:
        lines += _write_remark(remark)
    best = plan.audit.best
    said = "no mesh of these devices fits" if best is None else clean(best.message)
    return [*lines, "", f"the best of these devices: {said}"]


def _write_remark(remark: AuditRemark) -> list[str]:
    share = "" if remark.share_ratio is None else f"{remark.share_ratio:.0%}"
    lines = [f"  {share:>5}  {clean(remark.message)}"]
    return [*lines, f"         → {clean(remark.hint)}"] if remark.hint else lines
