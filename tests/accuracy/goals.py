"""What is to be reached, set by set, beside what the published null of the collection has.

Rule: figures as they were set, as shares; whether they are reached is said by `judge`. Knows no predictor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Goal:
    """One set's figures. None: nothing is asked.

    Attributes:
        name: of the set.
        label: what the page calls it.
        null: median and p90 that the collection's null has, on its own rows.
        errors: median and p90 to reach.
        is_scaled: whether errors count after one scale a chip, as those of the null do.
        null_tau, median_tau, least_tau: Kendall's τ of the null; to reach in the median, and in each group.
        null_regret, median_regret: of the null; to reach in the median.
        least_rows: of a group that is ranked.
    """

    name: str
    label: str
    null: tuple[float, float] | None = None
    errors: tuple[float, float] | None = None
    is_scaled: bool = False
    null_tau: float | None = None
    median_tau: float | None = None
    least_tau: float | None = None
    null_regret: float | None = None
    median_regret: float | None = None
    least_rows: int = 2

    @property
    def is_ranked(self) -> bool:
        """Whether its order counts."""
        return self.median_tau is not None


STEP_GOALS: Final = (
    Goal("maxtext", "MaxText dense bf16 (TPU)", (0.057, 0.182), (0.05, 0.15)),
    Goal("llm-foundry", "LLM-Foundry (A100, H100)", (0.070, 0.196), (0.06, 0.17)),
    Goal("megatron-bridge", "Megatron-Bridge (H100 … GB300)", (0.219, 1.01), (0.12, 0.35)),
    Goal(
        "vtrain-multi",
        "vTrain multi-node",
        (0.102, 0.288),
        (0.08, 0.25),
        is_scaled=True,
        null_tau=0.65,
        median_tau=0.75,
        least_tau=0.5,
        null_regret=0.033,
        median_regret=0.02,
    ),
    Goal(
        "vtrain-single",
        "vTrain single node",
        (0.435, 0.96),
        (0.20, 0.50),
        is_scaled=True,
        null_tau=0.21,
        median_tau=0.6,
        null_regret=0.266,
        median_regret=0.08,
        least_rows=6,
    ),
    Goal(
        "bloom",
        "BLOOM sweep",
        (0.074, 0.174),
        (0.06, 0.15),
        is_scaled=True,
        null_tau=-0.14,
        median_tau=0.4,
        null_regret=0.085,
    ),
    Goal("simumax", "SimuMax (B200)"),
    Goal("torchtitan", "torchtitan (H100, H200)"),
    Goal("korthikanti", "Korthikanti et al. (A100)"),
    Goal("sc21", "SC21, table 1 (A100)"),
)
"""All sets. Of the last four no seconds are asked for."""

MEMORY_SETS: Final = ("simumax", "torchtitan", "bloom", "korthikanti")
"""Sets with peaks; the first two are judged by them, as are the compiler's peaks (`peaks`)."""

MEMORY_ERRORS: Final = {"simumax": (0.05, 0.12), "torchtitan": (0.05, 0.12)}
OUT_OF_MEMORY_SETS: Final = ("bloom",)
"""Sets whose verdicts on memory are judged."""
COVERAGE: Final = (0.70, 0.90)
MOST_MISSES, MOST_FALSE_ALARMS = 0, 2


def judge(figure: float | None, bound: float | None, *, is_least: bool = False) -> str:
    """Returns "yes", "no", or "–" where nothing is asked or told. `is_least`: the figure may not be below the bound."""
    if figure is None or bound is None:
        return "–"
    return "yes" if (figure >= bound if is_least else figure <= bound) else "no"
