"""A plan's answer as pieces of JSON: what is kept, what is shown, and the reply around it. Pure; parses no plan."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.planning.compile_request import order_verified
from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plans

_HOLE: Final = '"plans":[]'
"""Where the plans go in a reply that was written without any."""
_UNTOLD: Final = '"model":null'
"""Where a model's facts go in a plan that was written without any. In a text inside JSON the quotes are escaped."""
_UNVERIFIED: Final = '"verification":null'
"""Likewise of a verification."""
RUN_CHARS: Final = 1 << 18
"""Of plans in the result of a run, which is read and written whole whenever somebody looks: some 1,400 devices."""


@dataclass(frozen=True)
class PlanAnswer:
    """What `POST /mesh/plan` answers.

    Attributes:
        frame: the reply without its plans, JSON.
        fingerprints: of what is kept: the plans, best first, and the one for when a device fails.
        kept: each plan with its devices and with nothing of a model, JSON: what is stored.
        shown: each plan as the request wants it, JSON.
        tasks: what is to be compiled for each plan, a `worker.compile_task.CompileTask` as JSON; none where nothing is.
        bare: each plan without its devices, JSON; where something is to be compiled.
        request: what was asked, JSON; likewise.
    """

    frame: str
    fingerprints: tuple[str, ...]
    kept: tuple[str, ...]
    shown: tuple[str, ...]
    tasks: tuple[Mapping[str, Any], ...] = ()
    bare: tuple[str, ...] = ()
    request: str = "{}"

    @classmethod
    def of(cls, pieces: Mapping[str, Any]) -> PlanAnswer:
        """Returns the answer that `worker.planner.write_plans` wrote."""
        kept = tuple(pieces["kept"])
        models = pieces.get("models", ("null",) * len(kept))
        shown = tuple(map(_tell_model, kept, models)) if pieces["shown"] is None else tuple(pieces["shown"])
        answer = cls(pieces["frame"], tuple(pieces["fingerprints"]), kept, shown)
        if "tasks" not in pieces:
            return answer
        return replace(answer, tasks=tuple(pieces["tasks"]), bare=tuple(pieces["bare"]), request=pieces["request"])

    def verify(self, verifications: Sequence[str]) -> PlanAnswer:
        """Returns the answer with what the compiler says of each plan, JSON; not in what is stored.

        Plans that the compiler refuses go behind the others.
        """
        order = order_verified([json.loads(each)["status"] for each in verifications])

        def fill(plans: tuple[str, ...]) -> tuple[str, ...]:
            filled = [_verify_plan(*each) for each in zip(plans, verifications, strict=True)]
            return tuple(filled[place] for place in order)

        return replace(self, shown=fill(self.shown), bare=fill(self.bare))

    def cut_for_run(self) -> PlanAnswer:
        """Returns the answer as a run's result has it: of very many devices the plans are shown without them."""
        if sum(map(len, self.shown)) <= RUN_CHARS:
            return self
        message = "the plans are too large for a run's result, which leaves their devices out"
        hint = "GET /mesh/plan/{fingerprint} has them"
        return replace(self, shown=self.bare).warn(Notice(code="devices_left_out", message=message, hint=hint))

    def warn(self, notice: Notice) -> PlanAnswer:
        """Returns the answer with one warning more, about the request and not about a plan."""
        frame = Plans.model_validate_json(self.frame)
        warned = frame.model_copy(update={"warnings": (*frame.warnings, notice)})
        return replace(self, frame=warned.model_dump_json())

    def write(self) -> str:
        """Returns the reply: the same text as of the models."""
        return frame_plans(self.frame, *self.shown)


def frame_plans(frame: str, *plans: str) -> str:
    """Returns a reply with these plans, JSON; `frame` is one without."""
    return frame.replace(_HOLE, f'"plans":[{",".join(plans)}]', 1)


def _tell_model(plan: str, model: str) -> str:
    return plan if model == "null" else _fill(plan, _UNTOLD, f'"model":{model}')


def _verify_plan(plan: str, verification: str) -> str:
    return _fill(plan, _UNVERIFIED, f'"verification":{verification}')


def _fill(plan: str, hole: str, text: str) -> str:
    before, found, after = plan.rpartition(hole)
    assert found, "a plan is written with all its fields"
    return f"{before}{text}{after}"


def frame_stored(plan: str) -> str:
    """Returns the reply that shows one stored plan."""
    return frame_plans(Plans(plans=()).model_dump_json(), plan)
