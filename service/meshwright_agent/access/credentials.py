"""The Authorization header: the secret in it, of Bearer (RFC 6750) or as the password of Basic (RFC 7617).

Rule: what is wrong with a header is said without a word of what stood in it.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

LONGEST: Final = 2048
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""RFC 6750 §2.1: b64token."""


def parse_authorization(value: bytes) -> str:
    """Returns the secret.

    Raises:
        ValueError: the header is not of a scheme that is taken, or is malformed.
    """
    if len(value) > LONGEST:
        raise ValueError(f"the Authorization header is longer than {LONGEST} bytes")
    try:
        scheme, _, rest = value.decode("ascii").strip(" ").partition(" ")
    except UnicodeDecodeError:
        raise ValueError("the Authorization header is not ASCII") from None
    match scheme.lower():
        case "bearer":
            return _check_token(rest.strip(" "))
        case "basic":
            return _check_token(_read_password(rest.strip(" ")))
        case _:
            raise ValueError("the Authorization header is neither Bearer nor Basic")


def _read_password(text: str) -> str:
    try:
        pair = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        raise ValueError("the Authorization header says Basic and is not base64 of user:password") from None
    _, colon, password = pair.partition(":")
    if not colon:
        raise ValueError("the Authorization header says Basic and has no colon between user and password")
    return password


def _check_token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise ValueError("the Authorization header holds no token")
    return text
