"""Following the history of a host's health: each event once and in order, over streams that break. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from meshwright._calls import calls
from meshwright._calls.flows import Deadline, Flow, Link, Pause, Reader, exchange, listen
from meshwright.wire.health import HealthEvent


def follow_health(link: Link, *, emit: Callable[[HealthEvent], object], after: int | None) -> Flow[None]:
    """Emits each event after `after` (None: from now on), and never ends by itself.

    A broken stream is opened again after the last received event. If a stream brings no event, the history is
    requested. This distinguishes a broken stream from a dead agent, and gets the events where no stream works.

    Raises:
        MeshwrightError: the agent no longer answers, or rejects the request.
    """
    if after is None:
        known = yield from exchange(calls.events(None, None, 1), link)
        after = known.last_seq
    reader, fruitless = Reader(after, emit, HealthEvent), 0
    while True:
        seen = reader.last
        end = yield from listen(calls.event_stream(seen).request, reader, Deadline())
        fruitless = 0 if reader.last > seen else fruitless + 1
        if not fruitless:
            continue
        history = yield from exchange(calls.events(None, reader.last, None), link)
        if history.last_seq < reader.last:  # a new history has begun, whose first events have lower numbers
            reader.last = 0
            history = yield from exchange(calls.events(None, 0, None), link)
        for event in history.events:
            reader.note(event)
        if end != "silent":
            yield Pause(link.policy.delay_s(fruitless - 1))
