"""Bodies of requests, as runs show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

SAID_CHARS: Final = 1 << 14
"""Of one field of a request that a run shows: 1,000 runs are kept, and `GET /runs` lists 50 of them with theirs."""


def shorten_large(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request as its run shows it: a field of more than 16 Ki characters of JSON by its digest.

    That is a `config.json` with thousands of labels, or the names of very many devices.
    """
    return {name: _shorten(value) for name, value in said.items()}


def _shorten(value: Any) -> Any:
    if not isinstance(value, dict | list | str):
        return value
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return value if len(text) <= SAID_CHARS else {"sha256": hashlib.sha256(text.encode()).hexdigest()}
