"""What libtpu scores, from 0 (well) to 10: each ICI link of a host's TPUs, and how much each device is throttled. Pure.

Rule: a line of another form is kept as it is, so that no link vanishes unread. Where a link is, and which device, is in
libtpu's words: it does not say which PCI address or JAX device that is.

Source: description() of the metrics `ici_link_health` and `tpu_throttle_score`, libtpu 0.0.42.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

WORST: Final = 10
MOST_LINES: Final = 1024
"""Of one metric: a host of eight v4 chips has 48 links."""
MOST_CHARS: Final = 128
_NO_ANSWER: Final = "libtpu's answer is none"


@dataclass(frozen=True)
class Score:
    """What is scored, as libtpu names it ("tray1.chip3.ici0.int", or a device's number), and its score."""

    name: str
    value: int


@dataclass(frozen=True)
class Scores:
    """What libtpu told of one metric.

    Attributes:
        known: each score.
        unread: lines of another form.
        unavailable: why it was not told; None: it was.
    """

    known: tuple[Score, ...] = ()
    unread: tuple[str, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class TpuScores:
    """What libtpu told.

    Attributes:
        links: its ICI links. 0: healthy; 1 to 5: a transient problem; 6 to 9: a persistent minor one; 10: not usable.
        throttles: its devices. 0: not throttled; 1 to 10: by 10 to 100 %.
    """

    links: Scores = Scores()
    throttles: Scores = Scores()


def parse_scores(told: Mapping[str, Any]) -> TpuScores:
    """Returns what `worker.libtpu.read_scores` told; what is none of its form is `unread`, never an error."""
    return TpuScores(_parse(told.get("links"), ":"), _parse(told.get("throttles"), "-"))


def _parse(told: object, mark: str) -> Scores:
    """Returns the scores of lines such as "tray1.chip3.ici0.int: 0" or "3-0"."""
    if not isinstance(told, dict) or not isinstance(told.get("lines", []), list):
        return Scores(unread=(_NO_ANSWER,))
    if (reason := told.get("unavailable")) is not None:
        return Scores(unavailable=str(reason))
    lines = [str(line)[:MOST_CHARS] for line in told.get("lines", [])[:MOST_LINES]]
    scores = {line: _parse_line(line, mark) for line in lines}
    return Scores(
        known=tuple(score for score in scores.values() if score is not None),
        unread=tuple(line for line, score in scores.items() if score is None),
    )


def _parse_line(line: str, mark: str) -> Score | None:
    name, _, value = (word.strip() for word in line.rpartition(mark))
    if name and value.isascii() and value.isdigit() and len(value) <= 2 and int(value) <= WORST:
        return Score(name, int(value))
    return None
