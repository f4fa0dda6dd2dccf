from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from meshwright_agent.access.scopes import SCOPES, Scope
from meshwright_agent.access.tokens import (
    MOST_TOKENS,
    Token,
    TokenLineError,
    Tokens,
    format_time,
    hash_secret,
    make_token,
    parse_time,
    parse_tokens,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DIGEST = hashlib.sha256(b"secret").hexdigest()
LINE = f"ci operate sha256:{DIGEST}"

moments = st.datetimes(
    min_value=datetime(1990, 1, 1),
    max_value=datetime(2200, 1, 1),
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=0))
tokens = st.builds(
    Token,
    name=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z"),
    scope=st.sampled_from(SCOPES),
    digest=st.binary(min_size=32, max_size=32),
    expires=st.none() | moments,
)


# ---- the file's text ------------------------------------------------------------------------------------------------


def test_a_line_names_who_may_what_with_which_hash() -> None:
    (token,) = parse_tokens(LINE).all
    assert (token.name, token.scope, token.digest.hex(), token.expires) == ("ci", "operate", DIGEST, None)


def test_a_line_may_end_with_a_time_and_a_comment_and_lines_may_be_empty() -> None:
    text = f"# the node prolog\n\n  {LINE}  expires=2027-01-31T01:00:00+01:00 # until the new year\n"
    (token,) = parse_tokens(text).all
    assert token.expires == datetime(2027, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(("words", "scope"), [("read", "read"), ("read,operate", "operate"), ("admin,read", "admin")])
def test_of_several_scopes_the_largest_counts(words: str, scope: Scope) -> None:
    (token,) = parse_tokens(f"ci {words} sha256:{DIGEST}").all
    assert token.scope == scope


@given(st.lists(tokens, max_size=8, unique_by=(lambda token: token.name, lambda token: token.digest)))
def test_what_is_printed_is_read_again(printed: list[Token]) -> None:
    assert parse_tokens("\n".join(map(str, printed))).all == tuple(printed)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ci operate", "2 words"),
        (f"ci sha256:{DIGEST} operate", "no digest"),
        (f"ci root sha256:{DIGEST}", "read, operate, admin"),
        ("ci operate mw_mysecretmysecret", "no digest"),
        (f"ci operate sha256:{DIGEST[:-1]}", "no digest"),
        (f"ci operate sha256:{DIGEST.upper()}", "no digest"),
        (f"-ci operate sha256:{DIGEST}", "the name must be"),
        (f"{'c' * 65} operate sha256:{DIGEST}", "the name must be"),
        (f"{LINE} until=2027-01-01T00:00:00Z", "expires="),
        (f"{LINE} expires=2027-01-01", "RFC 3339"),
        (f"{LINE} expires=2027-13-01T00:00:00Z", "RFC 3339"),
        (f"{LINE} expires=2027-01-01T00:00:00", "RFC 3339"),
        (f"{LINE} expires=2027-01-01T00:00:00Z more", "5 words"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_never_quoted(line: str, said: str) -> None:
    with pytest.raises(TokenLineError, match=re.escape(said)) as caught:
        parse_tokens(f"# first\n{line}\n")
    assert caught.value.line == 2
    assert "line 2" in str(caught.value)
    assert "mysecret" not in str(caught.value)
    assert DIGEST[:16] not in str(caught.value)


def test_a_name_and_a_digest_stand_once() -> None:
    with pytest.raises(TokenLineError, match="line 2: the name ci"):
        parse_tokens(f"{LINE}\nci read sha256:{'0' * 64}")
    with pytest.raises(TokenLineError, match="line 2: other has the digest of ci"):
        parse_tokens(f"{LINE}\nother read sha256:{DIGEST}")


def test_there_are_no_more_tokens_than_can_be_compared_in_time() -> None:
    lines = [f"t{number} read sha256:{number:064x}" for number in range(MOST_TOKENS + 1)]
    assert len(parse_tokens("\n".join(lines[:-1])).all) == MOST_TOKENS
    with pytest.raises(TokenLineError, match=f"more than {MOST_TOKENS}"):
        parse_tokens("\n".join(lines))


@given(st.text(max_size=200))
@example(f"ci operate sha256:{DIGEST}\x00")
@example("ci operate sha256:" + "٠" * 64)
@example(f"{LINE} expires=２０２７-01-01T00:00:00Z")
@example(f"{LINE} expires=0001-01-01T00:00:00+23:59")
def test_any_text_is_tokens_or_a_numbered_refusal(text: str) -> None:
    with contextlib.suppress(TokenLineError):
        found = parse_tokens(text).all
        printed = parse_tokens("\n".join(map(str, found))).all
        assert [(t.name, t.scope, t.digest) for t in printed] == [(t.name, t.scope, t.digest) for t in found]


@given(moments)
def test_a_time_is_read_as_it_is_written(moment: datetime) -> None:
    assert parse_time(format_time(moment)) == moment


# ---- who shows a secret ---------------------------------------------------------------------------------------------


def _find(found: Tokens, secret: str, now: datetime = NOW) -> str | None:
    token = found.find(secret, lambda: now)
    return token.name if token else None


def test_a_secret_finds_its_own_token_and_no_other() -> None:
    made = [make_token(name, "read", None) for name in ("a", "b", "c")]
    all_tokens = Tokens(tuple(token for _, token in made))
    assert [_find(all_tokens, secret) for secret, _ in made] == ["a", "b", "c"]
    for secret, token in made:
        assert _find(all_tokens, secret + "x") is None
        assert _find(all_tokens, secret[:-1]) is None
        assert _find(all_tokens, token.digest.hex()) is None
        assert _find(all_tokens, f"sha256:{token.digest.hex()}") is None
    assert _find(all_tokens, "") is None


@given(st.text(max_size=100))
def test_no_text_but_the_secret_is_let_in(text: str) -> None:
    assume(text != "secret")
    assert _find(parse_tokens(LINE), text) is None
    assert _find(parse_tokens(LINE), "secret") == "ci"


def test_a_token_is_good_until_its_time_and_not_at_it() -> None:
    secret, token = make_token("a", "admin", NOW)
    assert _find(Tokens((token,)), secret, NOW - timedelta(seconds=1)) == "a"
    assert _find(Tokens((token,)), secret, NOW) is None


def test_every_token_is_compared_with_also_after_the_one_that_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def count(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return bool(compare(one, other))

    monkeypatch.setattr(hmac, "compare_digest", count)
    made = [make_token(name, "read", None) for name in ("a", "b", "c")]
    all_tokens = Tokens(tuple(token for _, token in made))
    for secret in (made[0][0], made[2][0], "unknown"):
        compared.clear()
        all_tokens.find(secret, lambda: NOW)
        assert compared == [token.digest for _, token in made]


def test_secrets_are_256_random_bits_that_a_scanner_can_tell() -> None:
    secrets = {make_token("a", "read", None)[0] for _ in range(100)}
    assert len(secrets) == 100
    assert all(re.fullmatch(r"mw_[A-Za-z0-9_-]{43}", secret) for secret in secrets)


def test_only_the_hash_is_kept() -> None:
    secret, token = make_token("a", "read", None)
    assert token.digest == hash_secret(secret) == hashlib.sha256(secret.encode()).digest()
    assert secret not in repr(token)
    assert secret not in str(token)
