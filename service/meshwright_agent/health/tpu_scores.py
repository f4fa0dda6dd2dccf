"""What libtpu's scores mean: one component for a host's ICI links, one for the throttling of its TPUs.

Rule: only a process that has the TPUs is told, so these are looked at while the agent's worker has them: at its start,
after each bench, all the time with `hold: always`. What nobody looks at now is `initializing`, with what was seen last
and when: neither green nor a fault. A link with a persistent problem is a fault of its own, which stands until that
link is seen well: it does not mend because nobody looks, or because libtpu leaves it out. Knows no board.

One component each and not one for each link: libtpu names links by tray and chip, which are neither PCI addresses nor
JAX's devices, and a bench would tell of dozens of changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from meshwright_agent.facts.tpu_scores import WORST, Score, Scores, TpuScores
from meshwright_agent.health.diagnosis import Finding, find_worst
from meshwright_agent.health.memory import Fault

ICI: Final = "ici"
THROTTLE: Final = "throttle"
SCORED: Final = (ICI, THROTTLE)

_MOST_NAMED: Final = 8
_PERSISTENT: Final = 6
"""From this score on libtpu calls a problem persistent."""
_LOOK: Final = "`meshwright bench` looks, when no job has the TPUs; MESHWRIGHT_HOLD=always keeps looking"
_REPAIR: Final = "drain the host and have it repaired or replaced: each slice that it is in needs the link"
_WATCH: Final = "run a bench of collectives, which looks again; drain the host if it stays"
_COOL: Final = "check cooling and power of the host; benches and steps are slower meanwhile"
_REPORT: Final = "update meshwright; report the libtpu release and these words"


@dataclass
class _Last:
    """What was told of one metric last, and why it was not told since."""

    scores: Scores | None = None
    at: datetime | None = None
    why: str = ""
    most: int = 0

    def note(self, told: Scores, at: datetime) -> None:
        if told.known or told.unread:
            self.scores, self.at, self.why = told, at, ""
            self.most = max(self.most, len(told.known))
        else:
            self.why = told.unavailable or "libtpu tells of none"


@dataclass
class ScoreHealth:
    """Remembers what was told last in this life of the agent."""

    _links: _Last = field(default_factory=_Last)
    _throttles: _Last = field(default_factory=_Last)

    def note(self, scores: TpuScores, at: datetime) -> None:
        """Takes what libtpu told."""
        self._links.note(scores.links, at)
        self._throttles.note(scores.throttles, at)

    def judge(
        self, *, chips: int, is_fresh: Callable[[datetime], bool]
    ) -> Mapping[str, tuple[Finding, datetime | None]]:
        """Returns what is to be said, by component, and when it was seen if that was lately.

        Args:
            chips: TPUs of this host; one alone may have no link.
            is_fresh: whether what was seen then may be called well.
        """
        found: dict[str, tuple[Finding, datetime | None]] = {}
        if self._links.scores is not None or chips > 1:
            found[ICI] = _judge(self._links, is_fresh, _judge_links, _sum_up_links)
        if self._throttles.scores is not None:
            found[THROTTLE] = _judge(self._throttles, is_fresh, _judge_throttles, _sum_up_throttles)
        return found


def build_faults(scores: TpuScores, at: datetime) -> Mapping[str, Fault | None]:
    """Returns each link that was told of with the fault that stands against it, by its code; None: it has none."""
    return {one.name: _build_fault(one, at) for one in scores.links.known}


def _build_fault(link: Score, at: datetime) -> Fault | None:
    if link.value < _PERSISTENT:
        return None
    meaning = "not usable" if link.value == WORST else "a persistent minor problem"
    reason = f"ICI link {link.name} scored {link.value} of {WORST}: {meaning}"
    return Fault(ICI, link.name, "unhealthy" if link.value == WORST else "degraded", reason, _REPAIR, at)


def _judge(
    last: _Last,
    is_fresh: Callable[[datetime], bool],
    judge: Callable[[_Last, Scores], Finding],
    sum_up: Callable[[tuple[Score, ...]], str],
) -> tuple[Finding, datetime | None]:
    if last.scores is None or last.at is None:
        why = last.why or "nobody has asked yet: libtpu tells it to the process that has the TPUs"
        return Finding("initializing", why, "" if last.why else _LOOK), None
    if is_fresh(last.at):
        return judge(last, last.scores), last.at
    seen = f"{sum_up(last.scores.known)} at {last.at:%Y-%m-%d %H:%M:%S} UTC; {last.why or 'nobody looks now'}"
    return Finding("initializing", seen, "" if last.why else _LOOK), None


def _judge_links(last: _Last, scores: Scores) -> Finding:
    findings = [Finding("healthy", _sum_up_links(scores.known)), *_judge_unread(scores)]
    if bad := [one for one in scores.known if 0 < one.value < _PERSISTENT]:
        named = _name(f"ICI link {one.name} scores {one.value} of {WORST}: a transient problem" for one in bad)
        findings.append(Finding("degraded", named, _WATCH, "transient"))
    if missing := last.most - len(scores.known):
        reason = f"libtpu tells of {len(scores.known)} ICI links, and told of {missing} more before"
        findings.append(Finding("degraded", reason, _WATCH))
    return find_worst(findings) or findings[0]


def _sum_up_links(links: tuple[Score, ...]) -> str:
    well = sum(not one.value for one in links)
    return f"{'all ' if well == len(links) else f'{well} of '}{len(links)} ICI links scored 0 of {WORST}, healthy"


def _judge_throttles(_last: _Last, scores: Scores) -> Finding:
    findings = [Finding("healthy", _sum_up_throttles(scores.known)), *_judge_unread(scores)]
    if held := [one for one in scores.known if one.value]:
        named = _name(f"device {one.name} by {10 * one.value} %" for one in held)
        findings.append(Finding("degraded", f"throttled: {named}, as libtpu counts devices", _COOL, "transient"))
    return find_worst(findings) or findings[0]


def _sum_up_throttles(devices: tuple[Score, ...]) -> str:
    held = sum(bool(one.value) for one in devices)
    return f"{held or 'none'} of {len(devices)} TPU devices {'were' if held > 1 else 'was'} throttled"


def _judge_unread(scores: Scores) -> Iterable[Finding]:
    if scores.unread:
        named = _name(map(repr, scores.unread))
        yield Finding("degraded", f"libtpu's scores have a form that is not known here: {named}", _REPORT)


def _name(words: Iterable[str]) -> str:
    words = list(words)
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; ".join(words[:_MOST_NAMED]) + more
