"""What is said of the times of mixtures of experts on TPUs: no run of them was fitted to.

Rule: the figures are what `make accuracy` prints; its tests compare them. Knows no plan.

Source: seven runs of AI-Hypercomputer/tpu-recipes and AI-Hypercomputer/maxtext, tests/accuracy/data/experts.csv.
"""

from __future__ import annotations

from typing import Final, Literal

from meshwright.wire.base import Notice
from meshwright.wire.model import ModelSpec

RUNS: Final = 7
LEAST_RATIO: Final = 0.10
"""Part of a published step's seconds that the nearest prediction falls short by."""
MOST_RATIO: Final = 0.51
"""The same of the one that is furthest off."""

CODE: Final = "experts_on_tpu_unfitted"


def list_expert_notices(model: ModelSpec, platform: Literal["gpu", "tpu"]) -> tuple[Notice, ...]:
    """Returns the warning of a mixture of experts on TPUs; empty: no such model, or no TPU.

    Args:
        model: that is trained.
        platform: of the chip.
    """
    if platform != "tpu" or model.num_experts is None:
        return ()
    message = (
        f"mixtures of experts on TPUs were predicted {LEAST_RATIO:.0%} to {MOST_RATIO:.0%} too fast on the {RUNS} runs "
        "that are published, and no constant was fitted to them: low_s and high_s are of dense models"
    )
    hint = "compare meshes by it, but measure a step of your own before you count on its seconds"
    return (Notice(code=CODE, message=message, hint=hint),)
