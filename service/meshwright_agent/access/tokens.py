"""Tokens: lines of a file that hold their hashes, and who it is that shows one.

    name scopes sha256:<64 hex digits> [expires=2027-01-31T00:00:00Z]      # a comment

Rule: a token itself stands nowhere: not in the file, not in an error, not in memory after its request. SHA-256 without
salt or stretching is enough because tokens are 256 random bits (`make_token`), which no dictionary holds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from meshwright_agent.access.scopes import SCOPES, Scope

PREFIX: Final = "mw_"
"""So that a scanner for leaked secrets can tell a token of ours."""
TOKEN_BYTES: Final = 32
MOST_TOKENS: Final = 1000
"""Each is compared with at every request: this bounds the time."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)")
_FORM: Final = "name scopes sha256:<64 hex digits> [expires=2027-01-31T00:00:00Z]"


class TokenLineError(ValueError):
    """A line that is no token; `line` is its number, from 1."""

    def __init__(self, message: str, *, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


@dataclass(frozen=True)
class Token:
    """Whoever shows the secret of this digest, what they may do, and until when (None: for ever)."""

    name: str
    scope: Scope
    digest: bytes
    expires: datetime | None = None

    def __str__(self) -> str:
        line = f"{self.name} {self.scope} sha256:{self.digest.hex()}"
        return f"{line} expires={format_time(self.expires)}" if self.expires else line

    def is_expired(self, now: datetime) -> bool:
        """Returns whether its time is over."""
        return self.expires is not None and now >= self.expires


class Tokens:
    """All tokens of a file."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self.all = tokens

    def find(self, secret: str, now: Callable[[], datetime]) -> Token | None:
        """Returns the token with this secret; None for one that is unknown or expired.

        Compares with every token, so that the time says neither whether one matched nor which.
        """
        digest = hash_secret(secret)
        found: Token | None = None
        for token in self.all:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return None if found is None or (found.expires is not None and found.is_expired(now())) else found


def hash_secret(secret: str) -> bytes:
    """Returns the SHA-256 digest of a token, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def make_token(name: str, scope: Scope, expires: datetime | None) -> tuple[str, Token]:
    """Returns a new secret, which is told once, and the token that knows it again.

    Raises:
        TokenLineError: the name cannot stand in the file.
    """
    secret = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return secret, Token(_read_name(name), scope, hash_secret(secret), expires)


def parse_tokens(text: str) -> Tokens:
    """Returns the tokens of a file's text.

    Raises:
        TokenLineError: with the number of the first line that is wrong; never with what stands in a digest's place.
    """
    found: dict[str, Token] = {}
    digests: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            token = _parse_words(words)
            _check_new(token, found, digests)
        except TokenLineError as error:
            raise TokenLineError(str(error), line=number) from None
        found[token.name] = token
        digests[token.digest] = token.name
    return Tokens(tuple(found.values()))


def _check_new(token: Token, found: dict[str, Token], digests: dict[bytes, str]) -> None:
    if token.name in found:
        raise TokenLineError(f"the name {token.name} stands on a line before; each token has a name of its own")
    if token.digest in digests:
        raise TokenLineError(f"{token.name} has the digest of {digests[token.digest]}; make a token for each")
    if len(found) >= MOST_TOKENS:
        raise TokenLineError(f"more than {MOST_TOKENS} tokens; remove those that are not used")


def _parse_words(words: list[str]) -> Token:
    if not 3 <= len(words) <= 4:
        raise TokenLineError(f"{len(words)} words; a line is: {_FORM}")
    digest = _DIGEST.fullmatch(words[2])
    if digest is None:
        raise TokenLineError(
            f"the third word is no digest; a line is: {_FORM}; `meshwright-agent token add` writes one"
        )
    expires = _parse_expiry(words[3]) if len(words) == 4 else None
    return Token(_read_name(words[0]), _parse_scopes(words[1]), bytes.fromhex(digest[1]), expires)


def _read_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise TokenLineError(
            "the name must be 1 to 64 of A-Z a-z 0-9 . _ @ -, and begin with a letter or digit, such as prolog"
        )
    return name


def _parse_scopes(text: str) -> Scope:
    """Returns the largest of the scopes: each holds those before it."""
    largest = -1
    for word in text.split(","):
        if word not in SCOPES:
            raise TokenLineError(f"the second word is no scope; scopes are {', '.join(SCOPES)}")
        largest = max(largest, SCOPES.index(word))
    return SCOPES[largest]


def _parse_expiry(word: str) -> datetime:
    key, _, text = word.partition("=")
    if key != "expires":
        raise TokenLineError(f"the fourth word is not expires=…; a line is: {_FORM}")
    return parse_time(text)


def parse_time(text: str) -> datetime:
    """Returns a moment, in UTC.

    Raises:
        TokenLineError: it is no RFC 3339 time.
    """
    try:
        if not _TIME.fullmatch(text) or not text.isascii():
            raise ValueError
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise TokenLineError("the time is not as in RFC 3339, such as 2027-01-31T00:00:00Z") from None


def format_time(moment: datetime) -> str:
    """Returns a moment as it stands in the file, in whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
