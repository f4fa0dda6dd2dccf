"""A plan's answer as pieces of JSON: what is kept, what is shown, and the reply around it. Pure; parses no plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from meshwright.wire.base import Notice
from meshwright.wire.mesh import Plans

_HOLE: Final = '"plans":[]'
"""Where the plans go in a reply that was written without any."""


@dataclass(frozen=True)
class PlanAnswer:
    """What `POST /mesh/plan` answers.

    Attributes:
        frame: the reply without its plans, JSON.
        fingerprints: of the plans, best first.
        kept: each plan with its devices, JSON: what is stored.
        shown: each plan as the request wants it, JSON.
    """

    frame: str
    fingerprints: tuple[str, ...]
    kept: tuple[str, ...]
    shown: tuple[str, ...]

    @classmethod
    def of(cls, pieces: Mapping[str, Any]) -> PlanAnswer:
        """Returns the answer that `worker.planner.write_plans` wrote."""
        kept = tuple(pieces["kept"])
        shown = kept if pieces["shown"] is None else tuple(pieces["shown"])
        return cls(pieces["frame"], tuple(pieces["fingerprints"]), kept, shown)

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


def frame_stored(plan: str) -> str:
    """Returns the reply that shows one stored plan."""
    return frame_plans(Plans(plans=()).model_dump_json(), plan)
