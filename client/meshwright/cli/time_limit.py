"""One time limit over several questions to an agent.

Rule: the limit is of all of them together, and kept from outside: the HTTP library limits each read, and an answer of a
byte a second never reaches that. Knows no endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from meshwright._fleet.threads import run_all
from meshwright.errors import AgentTimeoutError

T = TypeVar("T")


class TimeLimit:
    """Runs from when it is made.

    Args:
        limit_s: for all questions together.
        host: who is asked, for the error.
        clock: steady.
    """

    def __init__(self, limit_s: float, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._host = host
        self._clock = clock
        self._over_at = clock() + limit_s

    def ask(self, question: Callable[[], T]) -> T:
        """Returns the answer.

        Raises:
            AgentTimeoutError: it has not come within what is left; the question goes on unheard.
            Exception: what the question raises.
        """
        answers: list[T] = []
        left_s = self._over_at - self._clock()
        if left_s > 0:
            run_all([lambda: answers.append(question())], limit_s=left_s, at_once=1)
        if not answers:
            raise AgentTimeoutError(
                f"no answer from {self._host} within {self._limit_s:g} s",
                host=self._host,
                hint="give it longer (--timeout), or look at the agent's log",
            )
        return answers[0]
