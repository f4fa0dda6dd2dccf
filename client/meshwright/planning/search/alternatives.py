"""What else the devices of a plan could do with the same batch: the same mesh otherwise, and every other mesh.

Rule: whatever is offered was priced, is legal and fits. The plan's own mesh is priced in its own order, so that its
figures are the plan's; other meshes have no order yet and are priced by their sizes. Knows no words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshwright.planning.axis_names import find_role
from meshwright.planning.cost.layout import Layout
from meshwright.planning.divisors import list_divisors
from meshwright.planning.search.answer import ROLE_AXES, Question, read_layout, tell
from meshwright.planning.search.pricing import Priced
from meshwright.planning.search.ranking import rank
from meshwright.planning.search.request import ALL_REMATS, read_order
from meshwright.planning.search.space import AXES, REMATS, Bounds, list_space
from meshwright.wire.cost import PlanSchedule
from meshwright.wire.mesh import Plan
from meshwright.wire.model import Remat

Mask = NDArray[np.bool_]

PASSES_MOST: Final = 64
"""Numbers of passes that are looked at for a mesh: divisors of its part of the batch, the smallest first."""

EASED: Final = 0.9
"""Of what a part of the step takes now: an alternative that takes more has not eased it."""


@dataclass(frozen=True)
class Choice:
    """One candidate of those that were priced."""

    priced: Priced
    place: int

    @property
    def layout(self) -> Layout:
        """Its sizes."""
        return self.priced.layout.take(self.place)

    @property
    def total_s(self) -> float:
        """Of a step."""
        return float(self.priced.total_s[self.place])

    @property
    def memory_bytes(self) -> int:
        """Of the fullest device."""
        return int(self.priced.memory_bytes[self.place])

    def measure(self, part: str) -> float:
        """Returns the share of the step that a part takes."""
        return float(self.priced.parts[part][self.place]) / self.total_s


@dataclass(frozen=True)
class Alternatives:
    """A plan that was priced, and what its devices could do instead.

    Attributes:
        plan: for a mesh that somebody gave.
        question: what it was priced for.
    """

    plan: Plan
    question: Question

    @cached_property
    def names(self) -> Mapping[str, tuple[str, ...]]:
        """What the plan calls the axes of each role that it has, by the search's name; sizes of 1 are left out."""
        found: dict[str, list[str]] = {}
        for name, size in self.plan.mesh_shape.items():
            if size > 1:
                found.setdefault(ROLE_AXES[find_role(name) or "data"], []).append(name)
        return {axis: tuple(names) for axis, names in found.items()}

    @cached_property
    def own(self) -> Choice:
        """The plan itself."""
        return Choice(self._price_own(read_layout(self.plan.mesh_shape, self.question.training)), 0)

    def _price_own(self, layout: Layout) -> Priced:
        return self.question.price(layout, read_order(self.plan, self.question.hardware))

    @cached_property
    def meshes(self) -> Priced | None:
        """Every legal mesh of the same devices for the same batch; None: there is none."""
        question = self.question
        bounds = Bounds(moments=question.moments)
        space = list_space(question.hardware.devices, question.model, question.training, bounds)
        return question.price(space.layout) if space.size else None

    def vary(self, remats: Iterable[Remat] = ALL_REMATS) -> Priced:
        """Returns the plan's own mesh with each number of passes that divides the batch, and these remats."""
        own = self.own.layout
        share = self.question.training.global_batch // int(own.data_parts)
        passes = np.asarray(list_divisors(share)[:PASSES_MOST], dtype=np.int64)
        codes = np.asarray([REMATS[remat] for remat in remats], dtype=np.int64)
        return self._price_schedules(np.repeat(passes, len(codes)), share, np.tile(codes, len(passes)))

    def lengthen(self, passes: NDArray[np.int64]) -> Priced:
        """Returns the plan's own mesh and micro-batch with other numbers of passes: other global batches."""
        own = self.own.layout
        return self._price_schedules(passes, passes * int(own.micro_batch), np.full(len(passes), int(own.remat)))

    def _price_schedules(
        self, passes: NDArray[np.int64], share: int | NDArray[np.int64], remats: NDArray[np.int64]
    ) -> Priced:
        own = self.own.layout
        axes = {axis: np.full(len(passes), int(getattr(own, axis))) for axis in (*AXES, "moments")}
        return self._price_own(Layout(**axes, micro_batch=share // passes, passes=passes, remat=remats))

    # ---- what is found among them ----------------------------------------------------------------------

    def find_best(self) -> Choice | None:
        """Returns the fastest mesh that fits."""
        best = rank(self.meshes, 1).best if self.meshes is not None else ()
        return Choice(self.meshes, best[0]) if self.meshes is not None and best else None

    def relieve(self, part: str, *, saves: float, is_across: bool = False) -> Choice | None:
        """Returns a faster mesh that fits and spends less on a part: the one that changes least, by kind of change.

        First come the same mesh with other passes, then dp and fsdp in the place of the part's axis, then all.

        Args:
            part: of the step's time.
            saves: the least part of the step that is saved.
            is_across: the part is an axis that leaves its host or slice; one that does not is looked for first.
        """
        if self.meshes is None:
            return None
        spent = self.own.measure(part) * self.own.total_s
        eased = self.meshes.parts[part] < EASED * spent
        same = self._holds(AXES)
        near = self._holds(tuple(axis for axis in AXES if axis not in (part, "dp", "fsdp")))
        inside = ~self._crosses(part) if is_across else np.zeros_like(eased)
        wanted = (eased & inside & near, eased & inside, eased & same, eased & near, eased)
        found = (find_fastest(self.meshes, mask) for mask in wanted)
        most = self.own.total_s * (1 - saves)
        return next((choice for choice in found if choice and choice.total_s <= most), None)

    def _holds(self, axes: tuple[str, ...]) -> Mask:
        """Returns which meshes have these axes as the plan has them."""
        assert self.meshes is not None
        layout, own = self.meshes.layout, self.own.layout
        masks = [np.asarray(getattr(layout, axis)) == int(getattr(own, axis)) for axis in axes]
        return np.asarray(np.all(masks, axis=0), dtype=np.bool_)

    def _crosses(self, axis: str) -> Mask:
        """Returns which meshes have an axis that leaves its host or slice."""
        assert self.meshes is not None
        outer = np.asarray(self.meshes.spans[axis].outer.size)
        return np.asarray(np.broadcast_to(outer > 1, self.meshes.total_s.shape))

    # ---- as the wire has them --------------------------------------------------------------------------

    def rename(self, choice: Choice) -> dict[str, int]:
        """Returns the shape of a candidate, the outermost axis first, by the plan's own names where it has them."""
        sizes = {axis: int(getattr(choice.layout, axis)) for axis in AXES}
        wide = {axis: size for axis, size in sizes.items() if size > 1} or {"dp": 1}
        return {self.names.get(axis, (axis,))[0]: size for axis, size in wide.items()}

    def tell_schedule(self, choice: Choice) -> PlanSchedule:
        """Returns how the batch goes through a candidate."""
        schedule: PlanSchedule = tell(self.question, choice.priced, choice.place, {})["schedule"]
        return schedule


def find_fastest(priced: Priced, mask: Mask | None = None) -> Choice | None:
    """Returns the fastest candidate that fits, of those that a mask lets through; None: there is none."""
    places = np.flatnonzero(priced.fits if mask is None else priced.fits & mask)
    return Choice(priced, int(places[np.argmin(priced.total_s[places])])) if len(places) else None
