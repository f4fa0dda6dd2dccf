"""The id of the request that is being answered, for whatever is said or done on its behalf.

Rule: the gate sets it, once a request; tasks that a request starts inherit it. Knows nothing of HTTP.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

REQUEST_ID: Final[ContextVar[str]] = ContextVar("meshwright_request_id", default="")
"""Empty outside of requests."""
