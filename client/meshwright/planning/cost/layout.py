"""How a step is laid out over devices: axes, micro-batches, and the part that the backward pass computes again.

Rule: a struct of arrays. Each field is a whole number or an array of them over candidates; all broadcast together, so
that one run and a million candidates are priced by the same code. Independent of models and chips.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.wire.model import Remat

Numbers = int | float | NDArray[Any]
"""One figure, or one a candidate."""

REMATS: Final[tuple[Remat, ...]] = get_args(Remat)
"""The values that a layout's `remat` indexes: "none", "minimal", "full"."""

REMAT_NONE, REMAT_MINIMAL, REMAT_FULL = map(REMATS.index, ("none", "minimal", "full"))


@dataclass(frozen=True)
class Layout:
    """Sizes of the axes, and how the batch goes through them.

    Attributes:
        dp: copies of the whole model; each works on its part of the batch.
        fsdp: parts of weights, gradients and optimizer state, gathered a layer at a time; splits the batch too.
        tp: parts of each matmul and of the heads.
        cp: parts of the sequence.
        ep: parts of the experts; splits the batch too.
        pp: pipeline stages; where they do not divide the layers, the fullest has one more than others.
        micro_batch_size: sequences that one data-parallel part works on at a time.
        gradient_accumulation_steps: micro-batches one after the other in a step; a pipeline's too.
        remat: REMAT_NONE, REMAT_MINIMAL (all but matmuls) or REMAT_FULL (each layer).
        moments: the index of the chosen optimizer state; 0 where there is only one.
    """

    dp: Numbers = 1
    fsdp: Numbers = 1
    tp: Numbers = 1
    cp: Numbers = 1
    ep: Numbers = 1
    pp: Numbers = 1
    micro_batch_size: Numbers = 1
    gradient_accumulation_steps: Numbers = 1
    remat: Numbers = REMAT_FULL
    moments: Numbers = 0

    @property
    def devices(self) -> Numbers:
        """The number of devices."""
        return self.dp * self.fsdp * self.tp * self.cp * self.ep * self.pp

    @property
    def data_parts(self) -> Numbers:
        """Over how many parts the batch is laid."""
        return self.dp * self.fsdp * self.ep

    @property
    def global_batch_size(self) -> Numbers:
        """Sequences in one optimizer step."""
        return self.data_parts * self.micro_batch_size * self.gradient_accumulation_steps

    def take(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | int) -> Layout:
        """Returns the candidates that a mask or indices choose; single figures stay."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Layout(**{n: v[chosen] if isinstance(v, np.ndarray) and v.ndim else v for n, v in values.items()})
