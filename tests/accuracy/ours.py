"""The cost model as it is judged: seconds of steps on TPUs and on GPUs, and bytes, each by its own fit.

Rule: puts parts together, and knows no formula. What a part does not predict stays silent.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Final

from tests.accuracy.cost import COST
from tests.accuracy.evaluate import Prediction, Predictor
from tests.accuracy.memory import MEMORY, show_peaks
from tests.accuracy.run import Run
from tests.accuracy.tpu import TPU

PARTS: Final[tuple[Predictor[Any], ...]] = (TPU, COST, MEMORY)


@dataclass(frozen=True)
class Fits:
    """What each part was fitted to, in the order of `PARTS`."""

    parts: tuple[Any, ...]


def fit(runs: Sequence[Run]) -> Fits:
    """Returns each part's constants."""
    return Fits(tuple(part.fit(runs) for part in PARTS))


def predict(fits: Fits, runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Returns what the parts say of each run; where two say the same thing, the first counts."""
    told = [part.predict(constants, runs) for part, constants in zip(PARTS, fits.parts, strict=True)]
    return tuple(_join(each) for each in zip(*told, strict=True))


def _join(predictions: Sequence[Prediction]) -> Prediction:
    joined = predictions[0]
    for other in predictions[1:]:
        said = {name: value for name, value in vars(other).items() if getattr(joined, name) is None}
        joined = replace(joined, **said)
    return joined


OURS: Final = Predictor("the cost model", fit, predict)


def write_peaks() -> str:
    """Returns the table of our own step's peaks, beside the compiler's, left out by model and by chip."""
    text = io.StringIO()
    with redirect_stdout(text):
        show_peaks(has_rows=False)
    return text.getvalue()
