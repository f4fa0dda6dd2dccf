"""The best that the devices of a given mesh could do with the same batch.

Rule: an offered mesh was priced, is legal and fits. It has no order of devices yet, so it is priced by its sizes. Axes
are called as the plan calls them.
"""

from __future__ import annotations

from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import AXES
from meshwright.planning.parallelism import name_axis
from meshwright.planning.search.candidates import Bounds
from meshwright.planning.search.search import Question, build_schedule, list_leaders, read_layout, weigh
from meshwright.wire.cost import AuditAlternative, PlanAudit
from meshwright.wire.mesh import EQUAL_WITHIN, Plan


def audit_plan(plan: Plan, question: Question) -> PlanAudit:
    """Returns the fastest fitting mesh of a plan's devices, or the plan's own where no mesh is faster beyond the error.

    Args:
        plan: for a given mesh, with its cost.
        question: the question that it was priced for.
    """
    assert plan.step_time is not None
    assert plan.memory is not None
    assert plan.schedule is not None
    priced = question.price(question.list_space(Bounds(moments=question.moments)).layout)
    own = question.price(read_layout(plan.mesh_shape, question.training))
    weighed_s = plan.step_time.total_s * float(weigh(own)[0] / own.total_s[0])
    best = next((int(place) for place in list_leaders(priced)[:1] if priced.fits[place]), None)
    shape, schedule, own_s = plan.mesh_shape, plan.schedule, plan.step_time.total_s
    fits, total_s = plan.memory.fits is not False, own_s
    message = f"this is the best: no other mesh that fits saves {EQUAL_WITHIN:.0%} of the step"
    if best is None and not fits:
        return PlanAudit(best=None)
    if best is not None and not (fits and weigh(priced)[best] > weighed_s * (1 - EQUAL_WITHIN)):
        total_s, layout = float(priced.total_s[best]), priced.layout.take(best)
        shape, schedule, ratio = _name_axes(layout, plan), build_schedule(question, layout), total_s / own_s
        than = f"{abs(ratio - 1):.0%} {'less' if ratio < 1 else 'more'}" if round(ratio, 2) != 1 else "the same"
        mesh = " × ".join(f"{name}:{size}" for name, size in shape.items())
        count = schedule.gradient_accumulation_steps
        batch = f"{count} micro-batch{'es' * (count > 1)} of {schedule.micro_batch_size}"
        more = "" if fits else "; the mesh that was given does not fit"
        message = f"{mesh}, {batch}, remat {schedule.remat}: {total_s:.3g} s a step, {than}{more}"
    saved = max(0.0, 1 - total_s / own_s)
    alternative = AuditAlternative(
        mesh_shape=shape, schedule=schedule, total_s=total_s, saved_fraction=saved, message=message
    )
    return PlanAudit(best=alternative)


def _name_axes(layout: Layout, plan: Plan) -> dict[str, int]:
    """Returns the shape of a candidate, the outermost axis first, by the plan's own names where it has them."""
    names: dict[str, str] = {}
    for name, size in plan.mesh_shape.items():
        if size > 1:
            names.setdefault(name_axis(name), name)
    wide = {axis: int(getattr(layout, axis)) for axis in AXES if int(getattr(layout, axis)) > 1}
    return {names.get(axis, axis): size for axis, size in (wide or {"dp": 1}).items()}
