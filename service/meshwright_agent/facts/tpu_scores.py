"""What libtpu scores, from 0 (well) to 10: each ICI link of a host's TPUs, and how much each device is throttled. Pure.

Rule: a line of another form is kept as it is, so that no link vanishes unread. Where a link is, and which device, is in
libtpu's words: it does not say which PCI address or JAX device that is.

Source: description() of the metrics `ici_link_health` and `tpu_throttle_score`, libtpu 0.0.42.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
class TpuScores:
    """What libtpu told.

    Attributes:
        links: its ICI links. 0: healthy; 1 to 5: a transient problem; 6 to 9: a persistent minor one; 10: not usable.
        throttles: its devices. 0: not throttled; 1 to 10: by 10 to 100 %.
        unread: lines of another form.
        unavailable: why links were not told; None: they were.
    """

    links: tuple[Score, ...] = ()
    throttles: tuple[Score, ...] = ()
    unread: tuple[str, ...] = ()
    unavailable: str | None = None


def parse_scores(told: Mapping[str, Any]) -> TpuScores:
    """Returns what `worker.libtpu.read_scores` told; what is none of its form is `unread`, never an error."""
    unread: list[str] = []
    links = _parse_lines(told.get("links"), ":", unread)
    throttles = _parse_lines(told.get("throttles"), "-", unread)
    reason = told.get("unavailable")
    return TpuScores(links, throttles, tuple(unread), None if reason is None else str(reason))


def _parse_lines(lines: object, mark: str, unread: list[str]) -> tuple[Score, ...]:
    """Returns the scores of lines such as "tray1.chip3.ici0.int: 0" or "3-0"."""
    if lines is None:
        return ()
    if not isinstance(lines, list):
        unread.append(_NO_ANSWER)
        return ()
    return tuple(_parse_known(lines[:MOST_LINES], mark, unread))


def _parse_known(lines: Iterable[object], mark: str, unread: list[str]) -> Iterable[Score]:
    for line in lines:
        text = str(line)[:MOST_CHARS]
        name, _, value = (word.strip() for word in text.rpartition(mark))
        if name and value.isascii() and value.isdigit() and len(value) <= 2 and int(value) <= WORST:
            yield Score(name, int(value))
        else:
            unread.append(text)
