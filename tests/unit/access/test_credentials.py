from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright_agent.access.credentials import LONGEST, parse_authorization

SECRET = "mw_87bzjR4P9C13fxErYOPQUyMkQS6MJzbva5PhIC1mD1s"


def _basic(pair: str) -> bytes:
    return b"Basic " + base64.b64encode(pair.encode())


@pytest.mark.parametrize(
    "value",
    [
        f"Bearer {SECRET}".encode(),
        f"bearer {SECRET}".encode(),
        f"BEARER   {SECRET}  ".encode(),
        _basic(f"anybody:{SECRET}"),
        _basic(f":{SECRET}"),
        b"basic  " + base64.b64encode(f"a:{SECRET}".encode()),
    ],
)
def test_the_secret_is_the_bearer_or_the_password(value: bytes) -> None:
    assert parse_authorization(value) == SECRET


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        SECRET.encode(),
        f"Token {SECRET}".encode(),
        f"Bearer {SECRET} more".encode(),
        f"Bearer {SECRET},{SECRET}".encode(),
        f"Bearer\t{SECRET}".encode(),
        f'Bearer "{SECRET}"'.encode(),
        f"Bearer {SECRET}é".encode(),
        f"Bearer {SECRET}\x00".encode(),
        f"Basic {SECRET}".encode(),
        _basic(SECRET),
        _basic("user:"),
        _basic(f"user:{SECRET}:more"),
        _basic(f"{SECRET}\n:x y"),
        b"Basic " + base64.b64encode(b"user:\xff\xfe"),
        b"Bearer " + b"a" * LONGEST,
    ],
)
def test_a_malformed_header_is_refused_without_a_word_of_it(value: bytes) -> None:
    with pytest.raises(ValueError, match="Authorization header") as caught:
        parse_authorization(value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: f"Bearer {text}".encode()))
@example(b"Basic Og==")
@example(b"Basic " + b"=" * 40)
def test_any_header_is_a_secret_of_plain_characters_or_refused(value: bytes) -> None:
    with contextlib.suppress(ValueError):
        secret = parse_authorization(value)
        assert secret
        assert secret.isascii()
        assert secret.isprintable()
        assert " " not in secret
