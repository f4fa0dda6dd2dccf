"""What Client and AsyncClient share besides the core: where the agent is.

Opens no connection.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

from meshwright import _http
from meshwright._calls.flows import Flow, Link, Step
from meshwright._calls.outcomes import RetryPolicy
from meshwright._calls.settings import Settings, read_settings

DEFAULT_TIMEOUT_S: Final = 30.0


def advance(flow: Flow[None], outcome: Any) -> Step | None:
    """Returns the flow's next step, None at its end."""
    try:
        return flow.send(outcome)
    except StopIteration:
        return None


class Connection:
    """What both clients hold besides their pool: settings and retry policy."""

    def __init__(self, base_url: str | None, token: str | None, max_retries: int, given_url: str) -> None:
        settings = read_settings(base_url or given_url or None, token, os.environ)
        self._shared = _http.Shared(settings)
        self._link = Link(settings.address.shown, RetryPolicy(max_retries))

    @property
    def base_url(self) -> str:
        """The agent's address, as a person would write it."""
        return self._link.host

    @property
    def _settings(self) -> Settings:
        return self._shared.settings

    def _warn(self, *texts: str) -> None:
        """Warns the caller of a context manager, at its end, of each text that is not empty."""
        for text in filter(None, texts):
            warnings.warn(text, UserWarning, stacklevel=4)
