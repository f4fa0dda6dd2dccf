"""Files that options name: JSON objects, and kept replies of `GET /devices`.

Rule: what cannot be read, or is something else, is refused with the option, the file and what it should hold.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from meshwright.errors import SettingsError
from meshwright.wire.devices import Devices


def read_object(path: Path, option: str) -> dict[str, Any]:
    """Returns the JSON object that a file holds.

    Raises:
        SettingsError: it cannot be read, or holds none.
    """
    found = _read_json(path, option, "it holds one object, such as {…}")
    if not isinstance(found, dict):
        raise SettingsError(
            f"{option} {path}: its JSON is a {type(found).__name__}; it holds one object, such as {{…}}"
        )
    return found


def read_request(path: str) -> dict[str, Any]:
    """Returns the JSON object of a request, which `--request` names; "-" is stdin.

    Raises:
        SettingsError: it cannot be read, or is not a JSON object.
    """
    try:
        found = json.loads(sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"--request {path}: cannot be read: {error.strerror}; name a file that exists, or - for stdin"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"--request {path}: is not JSON: {error}; write one object, such as {{…}}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"--request {path}: is a JSON {type(found).__name__}; write one object, such as {{…}}")
    return found


def _read_json(path: Path, option: str, remedy: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}; name a file that is there") from None
    except ValueError as error:
        raise SettingsError(f"{option} {path}: no JSON: {error}; {remedy}") from None


def read_topology(paths: list[Path]) -> tuple[dict[str, Any], ...]:
    """Returns the replies of `GET /devices` that files hold: one each, or a list of them.

    Raises:
        SettingsError: a file cannot be read, or holds neither.
    """
    return tuple(reply for path in paths for reply in _read_replies(path))


def _read_replies(path: Path) -> list[dict[str, Any]]:
    found = _read_json(path, "--topology", f"keep one with `curl …/devices > {path}`")
    replies = found if isinstance(found, list) else [found]
    try:
        for reply in replies:
            Devices.model_validate(reply)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        wrong = f"{where}: {first['msg']}" if where else first["msg"]
        raise SettingsError(
            f"--topology {path}: no reply of GET /devices, nor a list of them ({wrong}); keep what `curl …/devices` "
            f"prints"
        ) from None
    return replies
