"""Files that options name: each holds a JSON object.

Rule: an unreadable or wrong file is an error that names the option, the file and its expected contents.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from meshwright.errors import SettingsError

STDIN: Final = "-"


def read_request(path: str) -> dict[str, Any]:
    """Returns the JSON object that the file of --request holds, or that stdin gives where the path is "-".

    Raises:
        SettingsError: the text cannot be read, or is not a JSON object.
    """
    return read_object(path, "--request")


def read_object(path: str | os.PathLike[str], option: str) -> dict[str, Any]:
    """Returns the JSON object that a file holds, or that stdin gives where the path is "-".

    Raises:
        SettingsError: the file cannot be read, or does not hold a JSON object.
    """
    try:
        found = json.loads(_read(path))
    except OSError as error:
        raise SettingsError(f"{option} {path}: cannot be read: {error.strerror}; name a file that is there") from None
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{option} {path}: no JSON: {error}; it holds one object, such as {{…}}") from None
    if not isinstance(found, dict):
        raise SettingsError(
            f"{option} {path}: its JSON is a {type(found).__name__}; it holds one object, such as {{…}}"
        )
    return found


def _read(path: str | os.PathLike[str]) -> bytes:
    if path != STDIN:
        return Path(path).read_bytes()
    with open(0, "rb", closefd=False) as stdin:
        return stdin.read()
