"""What lives from step to step: bytes of one parameter, and what data parallelism cuts of them.

Rule: they follow from the dtypes and the optimizer alone; over how many devices they are cut is reckoned in `memory`.
Knows no model and no axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from meshwright.planning.cost.layout import Numbers
from meshwright.wire.model import TrainingSpec, WeightDtype

Moments = tuple[WeightDtype, ...]
"""Dtypes of what an optimizer keeps of each parameter: two of AdamW, none of plain descent."""

_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class State:
    """What lives from step to step and with the gradients: bytes of one parameter, and what data parallelism cuts.

    Attributes:
        weight_bytes: of the weights that the step computes with; another copy that the optimizer has counts there.
        gradient_bytes: of all gradients at the end of the backward pass.
        optimizer_bytes: moments, and a master copy where there is one.
        zero_stage: what is cut over copies of the model: 0 nothing, 1 the optimizer's, 2 gradients too, 3 weights too.
        is_spread: what is cut over fsdp is cut over context and expert axes too.
    """

    weight_bytes: Numbers = 4.0
    gradient_bytes: Numbers = 4.0
    optimizer_bytes: Numbers = 8.0
    zero_stage: Numbers = 0
    is_spread: bool = True


def build_state(training: TrainingSpec, moments: Sequence[Moments] = (), chosen: Numbers = 0) -> State:
    """Returns the state of our own step: gradients in the weights' type, moments as asked, no other copy.

    Args:
        training: the weights, and the moments where there is nothing to choose.
        moments: dtypes of both to choose from; empty: those of `training`.
        chosen: which of them, by number: one, or one a candidate.
    """
    weight = _DTYPE_BYTES[training.weight_dtype]
    sizes = [sum(_DTYPE_BYTES[dtype] for dtype in both) for both in moments or (read_moments(training),)]
    return State(weight, weight, np.asarray(sizes)[np.asarray(chosen)])


def read_moments(training: TrainingSpec) -> Moments:
    """Returns the dtypes of the optimizer's moments: two of AdamW, else none."""
    if training.optimizer != "adamw":
        return ()
    asked = (training.first_moment_dtype, training.second_moment_dtype)
    return tuple(dtype or training.weight_dtype for dtype in asked)
