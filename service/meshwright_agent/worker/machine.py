"""Machine: a place in `states.TABLE`, its one timer, and the hands that carry the actions out.

Rule: an event moves the state first, ends the old state's timer, tells the listener, and then does the actions in
order. Lives on an event loop. Knows no child: its actions are functions that it was given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from meshwright_agent.clock import Clock
from meshwright_agent.worker.states import Action, Event, State, step

_log = logging.getLogger("meshwright.worker")


class Machine:
    """The state of one child.

    Args:
        name: whose, for the log.
        actions: how to do each action of the table.
        on_timeout: called when the state's timer runs out.
        clock: for `since`. The timer is the event loop's.
        on_change: called after each change of state.
    """

    def __init__(
        self,
        name: str,
        actions: Mapping[Action, Callable[[], None]],
        *,
        on_timeout: Callable[[], None],
        clock: Clock,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.state: State = "stopped"
        self.since: datetime = clock.now()
        self._name = name
        self._actions = actions
        self._on_timeout = on_timeout
        self._clock = clock
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, event: Event) -> None:
        """Lets `event` happen.

        Raises:
            ImpossibleEventError: the table has no such pair.
        """
        before, after = self.state, step(self.state, event)
        if after.state != before:
            self.disarm()
            self.state, self.since = after.state, self._clock.now()
            _log.debug("%s: %s → %s (%s)", self._name, before, after.state, event)
            if self._on_change is not None:
                self._on_change()
        for action in after.actions:
            self._actions[action]()

    def arm(self, seconds: float | None) -> None:
        """Sets the state's timer anew; None: this state may last."""
        self.disarm()
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._on_timeout)

    def disarm(self) -> None:
        """Ends the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
