"""Asks the device worker what libtpu tells it alone of the TPUs that it has.

Rule: the worker is worth more than the answer. It is asked only while it is up, and once it hangs or dies of that, or
cannot be asked, it is not asked again in this life of the agent.
"""

from __future__ import annotations

import logging
from typing import Final

from meshwright.errors import ProblemError
from meshwright_agent.facts.tpu_scores import Scores, TpuScores, parse_scores
from meshwright_agent.worker.supervisor import CallCancelled, Supervisor

log = logging.getLogger(__name__)

LIMIT_S: Final = 10.0
"""libtpu answers in less than 0.1 s; where it has no metadata server it asks for minutes."""


class ScoreAsker:
    """Asks one worker."""

    def __init__(self, device: Supervisor) -> None:
        self._device = device
        self._is_given_up = False

    async def ask(self) -> TpuScores | None:
        """Returns what libtpu tells now; None: it was not asked."""
        if self._is_given_up or self._device.state != "ready":
            return None
        try:
            answer = await self._device.call("score", {}, deadline_s=LIMIT_S)
        except CallCancelled:
            return None
        except ProblemError as error:
            self._is_given_up = True
            cause = str(error).partition("\n")[0]
            log.warning("libtpu is not asked for its scores again: the worker failed of it: %s", cause)
            why = Scores(
                unavailable=f"libtpu was asked, and the worker failed: {cause}; an agent that is restarted asks again"
            )
            return TpuScores(why, why)
        return parse_scores(answer.result)
