"""What libtpu's scores mean: one component for a host's ICI links, one for the throttling of its TPUs. Pure.

Rule: only a process that has the TPUs is told, so these are looked at while the agent's worker has them: at its start,
after each bench, all the time with `hold: always`. What was well and is not looked at now is `initializing`, with when
it was well: neither green nor a fault. A link that was not well stays so until a look says otherwise: it does not mend
because nobody looks. Throttling does.

One component each and not one for each link: libtpu names links by tray and chip, which are neither PCI addresses nor
JAX's devices, and a bench would tell of dozens of changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from meshwright_agent.facts.tpu_scores import WORST, Score, TpuScores
from meshwright_agent.health.diagnosis import Finding, find_worst

ICI: Final = "ici"
THROTTLE: Final = "throttle"
SCORED: Final = (ICI, THROTTLE)

_MOST_NAMED: Final = 8
_PERSISTENT: Final = 6
_LOOK: Final = "`meshwright bench` looks, when no job has the TPUs; MESHWRIGHT_HOLD=always keeps looking"
_REPAIR: Final = "drain the host and have it repaired or replaced: each slice that it is in needs the link"
_WATCH: Final = "run a bench of collectives, which looks again; drain the host if it stays"
_COOL: Final = "check cooling and power of the host; benches and steps are slower meanwhile"


def judge_scores(
    scores: TpuScores | None, seen_at: datetime | None, *, chips: int, is_fresh: bool
) -> Mapping[str, Finding]:
    """Returns what is to be said, by component; what is left out has nothing to say on this host.

    Args:
        scores: what libtpu told last; None: it was not asked yet.
        seen_at: when it told.
        chips: TPUs of this host; one alone may have no link.
        is_fresh: that was so lately that it may be called well.
    """
    scores = scores or TpuScores(unavailable="nobody has asked yet: libtpu tells it to the process that has the TPUs")
    when = "" if seen_at is None or is_fresh else f" at {seen_at:%Y-%m-%d %H:%M:%S} UTC"
    links, throttle = _judge_links(scores, when, is_fresh), _judge_throttles(scores.throttles, when, is_fresh)
    if links is None and chips > 1:
        links = Finding("initializing", scores.unavailable or f"libtpu told of no ICI link{when}", _LOOK)
    return {name: finding for name, finding in ((ICI, links), (THROTTLE, throttle)) if finding is not None}


def _judge_links(scores: TpuScores, when: str, is_fresh: bool) -> Finding | None:
    if not scores.links and not scores.unread:
        return None
    bad = sorted((one for one in scores.links if one.value), key=lambda one: -one.value)
    if bad or scores.unread:
        return find_worst((*_tell_bad(bad, len(scores.links), when), *_tell_unread(scores.unread)))
    if not is_fresh:
        return Finding("initializing", f"all {len(scores.links)} ICI links scored 0{when}; nobody looks now", _LOOK)
    return Finding("healthy", f"all {len(scores.links)} ICI links score 0 of {WORST}: healthy")


def _tell_bad(bad: list[Score], count: int, when: str) -> Iterable[Finding]:
    if not bad:
        return
    named = _name(f"{one.name} scores {one.value} of {WORST} ({_mean(one.value)})" for one in bad)
    reason = f"{len(bad)} of {count} ICI links are not well{when}: {named}"
    worst = bad[0].value
    if worst == WORST:
        yield Finding("unhealthy", reason, _REPAIR, "permanent")
    elif worst >= _PERSISTENT:
        yield Finding("degraded", reason, _REPAIR, "permanent")
    else:
        yield Finding("degraded", reason, _WATCH, "transient")


def _tell_unread(unread: tuple[str, ...]) -> Iterable[Finding]:
    if unread:
        reason = f"libtpu's scores have a form that is not known here: {_name(repr(line) for line in unread)}"
        yield Finding("degraded", reason, "update meshwright; report the libtpu release and these words")


def _mean(value: int) -> str:
    if value == WORST:
        return "not usable"
    return "a persistent minor problem" if value >= _PERSISTENT else "a transient problem"


def _judge_throttles(throttles: tuple[Score, ...], when: str, is_fresh: bool) -> Finding | None:
    if not throttles:
        return None
    held = [one for one in throttles if one.value]
    if not is_fresh:
        was = f"{len(held)} of {len(throttles)} TPU devices were" if held else f"none of {len(throttles)} was"
        return Finding("initializing", f"{was} throttled{when}; nobody looks now", _LOOK)
    if not held:
        return Finding("healthy", f"none of {len(throttles)} TPU devices is throttled")
    named = _name(f"device {one.name} by {10 * one.value} %" for one in held)
    return Finding("degraded", f"throttled: {named}, as libtpu counts devices", _COOL, "transient")


def _name(words: Iterable[str]) -> str:
    words = list(words)
    more = f" and {len(words) - _MOST_NAMED} more" if len(words) > _MOST_NAMED else ""
    return "; ".join(words[:_MOST_NAMED]) + more
