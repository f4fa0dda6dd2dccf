"""Bodies of requests, as runs show them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

MAX_FIELD_CHARS: Final = 1 << 14
"""Limit of one field of a request in a run: 1,000 runs are stored, and `GET /runs` lists 50 with their requests."""


def shorten_large(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request for display in its run, with each field above 16 Ki characters of JSON as its digest.

    Examples are a `config.json` with thousands of labels and the names of very many devices.
    """
    return {name: _shorten(value) for name, value in body.items()}


def _shorten(value: Any) -> Any:
    if not isinstance(value, dict | list | str):
        return value
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return value if len(text) <= MAX_FIELD_CHARS else {"sha256": hashlib.sha256(text.encode()).hexdigest()}
