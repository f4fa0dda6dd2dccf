"""What an existing configuration spends its step on, in words, and the best that its devices could do instead.

Rule: shares are of the plan's own step; what a hint offers was priced (`search.alternatives`), is legal and fits, and
what it saves is said only where it does. Axes are called as the plan calls them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from meshwright.errors import InvalidRequestError
from meshwright.planning.search.alternatives import Alternatives, Choice, find_fastest
from meshwright.planning.search.answer import Question
from meshwright.planning.search.pricing import Priced
from meshwright.planning.search.request import ALL_REMATS
from meshwright.planning.search.space import AXES
from meshwright.wire.cost import AuditAlternative, AuditRemark, PlanAudit, PlanMemory, PlanSchedule, PlanStepTime
from meshwright.wire.mesh import Plan

MATTERS: Final = 0.03
"""Share of a step from which a part is remarked on."""

SAVES: Final = 0.01
"""Share of a step that is worth a change."""

TIGHT: Final = 0.95
"""Share of the memory above which the error of the reckoning decides whether a step fits."""

BUBBLE: Final = 0.05
"""Share of a step that a pipeline may wait."""

TURNS_MOST: Final = 64
"""Passes a stage that are looked at to shrink a pipeline's bubble."""

_LINKS: Final = {"ici": "ICI", "nvlink": "NVLink", "pcie": "PCIe", "dcn": "the network", "host": "the host"}


def audit_plan(plan: Plan, question: Question) -> PlanAudit:
    """Returns whether memory is short, what a plan's step is spent on, and the best mesh of the same devices.

    Args:
        plan: for a mesh that somebody gave, with what it costs.
        question: what it was priced for.

    Raises:
        InvalidRequestError: the plan has no price.
    """
    audit = _Audit(plan, question)
    return PlanAudit(remarks=audit.remark(), best=audit.find_best())


class _Audit:
    """One plan's audit."""

    def __init__(self, plan: Plan, question: Question) -> None:
        if plan.step_time is None or plan.memory is None or plan.schedule is None:
            raise _refuse()
        self._plan, self._question = plan, question
        self._step: PlanStepTime = plan.step_time
        self._memory: PlanMemory = plan.memory
        self._schedule: PlanSchedule = plan.schedule
        self._others = Alternatives(plan, question)

    def remark(self) -> tuple[AuditRemark, ...]:
        """Returns what matters: of the memory, and then of the step's time, the greatest share first."""
        found = [
            *self._remark_axes(),
            *self._remark_bubble(),
            *self._remark_recompute(),
            *self._remark_optimizer(),
            *self._remark_waiting(),
            self._remark_compute(),
        ]
        return (*self._remark_memory(), *sorted(found, key=lambda remark: -(remark.share_ratio or 0.0)))

    # ---- words -----------------------------------------------------------------------------------------

    @property
    def _granule(self) -> str:
        """What an axis crosses when it leaves the fast wires, in the plural."""
        if self._plan.platform == "tpu":
            return "slices"
        largest = max((granule.device_count for granule in self._plan.granules), default=0)
        return "NVLink domains" if self._question.hardware.domain > largest > 0 else "hosts"

    def _write_axis(self, axis: str) -> str:
        """Returns the plan's axes of one role with their sizes: tp:16."""
        names = self._others.names.get(axis, (axis,))
        return " × ".join(f"{name}:{self._plan.mesh_shape.get(name, 1)}" for name in names)

    def _name_axis(self, axis: str) -> str:
        return " × ".join(self._others.names.get(axis, (axis,)))

    def _share(self, seconds: float) -> float:
        return seconds / self._step.total_s

    def _compare(self, choice: Choice) -> str:
        """Returns how a candidate's step compares with the plan's: 1.92 s a step, 31% less."""
        ratio = choice.total_s / self._step.total_s
        word = f"{abs(ratio - 1):.0%} {'less' if ratio < 1 else 'more'}" if round(ratio, 2) != 1 else "the same"
        return f"{choice.total_s:.3g} s a step, {word}"

    def _offer_mesh(self, choice: Choice) -> str:
        shape = ",".join(f"{name}:{size}" for name, size in self._others.rename(choice).items())
        return f'mesh "{shape}" with {self._offer_schedule(choice)}'

    def _offer_schedule(self, choice: Choice) -> str:
        schedule = self._others.tell_schedule(choice)
        return f"gradient_accumulation {schedule.passes} and remat {schedule.remat}"

    # ---- memory ----------------------------------------------------------------------------------------

    def _remark_memory(self) -> Iterator[AuditRemark]:
        capacity, needed = self._memory.capacity_bytes, self._memory.per_device_bytes
        if not capacity or needed <= TIGHT * capacity:
            return
        ratio, largest = needed / capacity, max(self._memory.parts, key=lambda name: self._memory.parts[name])
        said = f"the step needs {_write_gib(needed)} of the {_write_gib(capacity)} GiB that a job may use of a device"
        most = f"most of it is {largest}, {_write_gib(self._memory.parts[largest])} GiB"
        if needed > capacity:
            over = f"{ratio - 1:.0%} too much" if ratio < 2 else f"{ratio:.1f} times that"
            code, message = "memory", f"{said}, {over}; {most}"
        else:
            code, message = "memory_tight", f"{said}, {ratio:.0%}, which is within the reckoning's error; {most}"
        yield AuditRemark(code=code, part=largest, share_ratio=ratio, message=message, hint=self._hint_memory(capacity))

    def _hint_memory(self, capacity: int) -> str:
        """Returns the fastest schedule of the same mesh with memory to spare, else the fastest such mesh."""
        schedules, meshes = self._others.vary(), self._others.meshes
        found = find_fastest(schedules, schedules.memory_bytes <= TIGHT * capacity)
        if found is not None:
            return f"{self._offer_schedule(found)} needs {_write_gib(found.memory_bytes)} GiB, {self._compare(found)}"
        if meshes is not None and (other := find_fastest(meshes, meshes.memory_bytes <= TIGHT * capacity)):
            return f"{self._offer_mesh(other)} needs {_write_gib(other.memory_bytes)} GiB, {self._compare(other)}"
        return "no mesh of these devices needs less: more devices, a shorter sequence or a smaller global_batch do"

    # ---- time ------------------------------------------------------------------------------------------

    def _remark_axes(self) -> Iterator[AuditRemark]:
        spent = self._step.communication_s
        for axis in AXES:
            if self._share(spent.get(axis, 0.0)) >= MATTERS:
                yield self._remark_axis(axis, spent[axis])

    def _remark_axis(self, axis: str, seconds: float) -> AuditRemark:
        made = [each for each in self._plan.axes if each.name in self._others.names.get(axis, ())]
        crossed = max((each.dcn_size for each in made), default=1)
        is_across = crossed > 1 and axis != "pp"
        links = " and ".join(dict.fromkeys(_LINKS.get(each.link or "", each.link or "its wires") for each in made))
        share = self._share(seconds)
        spent = f"{share:.0%} of the step, {seconds:.3g} s of communication that nothing hides"
        if is_across:
            message = f"{self._write_axis(axis)} crosses {self._granule}, {crossed} a group: that is {spent}"
        else:
            message = f"{self._write_axis(axis)} over {links or 'its wires'} is {spent}"
        return AuditRemark(
            code="axis_crosses" if is_across else "communication",
            part=self._name_axis(axis),
            share_ratio=share,
            message=message,
            hint=self._hint_relief(axis, is_across=is_across),
        )

    def _hint_relief(self, part: str, *, is_across: bool = False) -> str:
        found = self._others.relieve(part, saves=SAVES, is_across=is_across)
        if found is None:
            return "no mesh of these devices that fits spends less on it and is faster"
        return f"{self._offer_mesh(found)}: {self._compare(found)}"

    def _remark_bubble(self) -> Iterator[AuditRemark]:
        share = self._share(self._step.bubble_s)
        if share < MATTERS:
            return
        stages, passes = int(self._others.own.layout.pp), self._schedule.passes
        yield AuditRemark(
            code="bubble",
            part=self._name_axis("pp"),
            share_ratio=share,
            message=f"the pipeline of {self._write_axis('pp')} fills and empties for {share:.0%} of the step: of "
            f"{passes + stages - 1} turns of a stage {stages - 1} are waits, with {passes} passes",
            hint=self._hint_bubble(stages),
        )

    def _hint_bubble(self, stages: int) -> str:
        """Returns the fewest passes that bring the bubble below `BUBBLE`, with this batch or the least larger one."""
        told = f"below {BUBBLE:.0%}"
        found = _find_short_bubble(self._others.vary((self._schedule.remat,)))
        if found is not None:
            return f"gradient_accumulation {int(found.layout.passes)} brings it {told}: {self._compare(found)}"
        more = np.arange(1, TURNS_MOST * stages + 1, dtype=np.int64)
        larger = _find_short_bubble(self._others.lengthen(more))
        if larger is None:
            return "no number of passes that fits brings it there; fewer stages do"
        batch, passes = int(larger.layout.global_batch), int(larger.layout.passes)
        return f"this batch has too few sequences; a global_batch of {batch} in {passes} passes brings it {told}"

    def _remark_recompute(self) -> Iterator[AuditRemark]:
        share, remat = self._share(self._step.remat_s), self._schedule.remat
        if share < MATTERS:
            return
        message = f"{share:.0%} of the step is spent on computing again what remat {remat} does not keep"
        yield AuditRemark(
            code="recompute", part="remat", share_ratio=share, message=message, hint=self._hint_recompute()
        )

    def _hint_recompute(self) -> str:
        less = ALL_REMATS[: ALL_REMATS.index(self._schedule.remat)]
        if not less:
            return ""
        priced = self._others.vary(less)
        found = find_fastest(priced)
        if found is None:
            needed, capacity = float(priced.memory_bytes.min()), priced.capacity_bytes
            least = f"less needs {_write_gib(needed)} GiB of a device's {_write_gib(capacity)} at least"
            return f"{least}, on this mesh; {self._hint_relief('remat')}"
        if found.total_s > self._step.total_s * (1 - SAVES):
            return f"{self._offer_schedule(found)} fits on this mesh and is not faster: {self._compare(found)}"
        return f"{self._offer_schedule(found)} fits, {_write_gib(found.memory_bytes)} GiB: {self._compare(found)}"

    def _remark_optimizer(self) -> Iterator[AuditRemark]:
        share = self._share(self._step.optimizer_s)
        if share >= MATTERS:
            message = f"the optimizer's update is {share:.0%} of the step: it reads and writes all of its state"
            hint = self._hint_relief("optimizer")
            yield AuditRemark(code="compute", part="optimizer", share_ratio=share, message=message, hint=hint)

    def _remark_waiting(self) -> Iterator[AuditRemark]:
        share = self._share(self._step.other_s)
        if share >= MATTERS:
            message = (
                f"{share:.0%} of the step is what comes beside it, and what slower {self._granule} let others wait"
            )
            yield AuditRemark(code="communication", part="other", share_ratio=share, message=message)

    def _remark_compute(self) -> AuditRemark:
        """Returns what is left: matmuls, attention and the loss; or that a pass has too little for a device."""
        step, chip = self._step, self._question.hardware.chip
        share, mfu = self._share(step.compute_s), self._plan.mfu_ratio or 0.0
        layout = self._others.own.layout
        tokens = self._schedule.micro_batch * self._schedule.sequence_length / int(layout.cp)
        is_small = tokens < chip.critical_batch_tokens
        message = f"compute is {share:.0%} of the step, at {mfu / share:.0%} of the devices' peak; MFU {mfu:.1%}"
        if is_small:
            message += (
                f"; a pass has {tokens:.0f} tokens a device, and below {chip.critical_batch_tokens:.0f} a matmul on "
                f"{chip.name} waits for its weights"
            )
        return AuditRemark(
            code="compute",
            part="micro_batch" if is_small else "compute",
            share_ratio=share,
            message=message,
            hint=self._hint_compute(),
        )

    def _hint_compute(self) -> str:
        found = find_fastest(self._others.vary((self._schedule.remat,)))
        if found is None or found.total_s > self._step.total_s * (1 - SAVES):
            return ""
        return f"{self._offer_schedule(found)}: {self._compare(found)}"

    # ---- the best --------------------------------------------------------------------------------------

    def find_best(self) -> AuditAlternative | None:
        """Returns the fastest mesh that fits: the plan's own where none is faster by more than `SAVES`."""
        found = self._others.find_best()
        fits = self._memory.fits is not False
        if found is None and not fits:
            return None
        if found is None or (fits and found.total_s > self._step.total_s * (1 - SAVES)):
            return self._praise()
        shape, schedule = self._others.rename(found), self._others.tell_schedule(found)
        mesh = " × ".join(f"{name}:{size}" for name, size in shape.items())
        passes = f"{schedule.passes} pass{'es' * (schedule.passes > 1)} of {schedule.micro_batch}"
        more = "" if fits else "; the mesh that was given does not fit"
        return AuditAlternative(
            mesh_shape=shape,
            schedule=schedule,
            total_s=found.total_s,
            saved_ratio=max(0.0, 1 - found.total_s / self._step.total_s),
            message=f"{mesh}, {passes}, remat {schedule.remat}: {self._compare(found)}{more}",
        )

    def _praise(self) -> AuditAlternative:
        return AuditAlternative(
            mesh_shape=dict(self._plan.mesh_shape),
            schedule=self._schedule,
            total_s=self._step.total_s,
            saved_ratio=0.0,
            message=f"this is the best: no other mesh that fits saves {SAVES:.0%} of the step",
        )


def _find_short_bubble(priced: Priced) -> Choice | None:
    """Returns the first candidate that fits and waits for less than `BUBBLE` of its step."""
    places = np.flatnonzero((priced.parts["bubble"] < BUBBLE * priced.total_s) & priced.fits)
    return Choice(priced, int(places[0])) if len(places) else None


def _write_gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"


def _refuse() -> InvalidRequestError:
    message = "audit: the plan has no price; one needs a model, its training, and devices of which figures are known"
    hint = 'give model and training, and name the hardware, as in "target": "8*h100:8"'
    return InvalidRequestError(message, hint=hint, errors=[{"field": "audit", "message": message}])
