from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.token_file import LARGEST_BYTES, add_token, read_token_file, remove_token
from meshwright_agent.access.tokens import Token, TokenLineError, make_token
from meshwright_agent.cli import app
from meshwright_agent.commands.token import parse_expiry

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def _token(name: str) -> Token:
    return make_token(name, "read", None)[1]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- reading --------------------------------------------------------------------------------------------------------


def test_a_file_that_anybody_may_write_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, _token("a"))
    path.chmod(0o602)
    with pytest.raises(AccessSettingsError, match=f"chmod 600 {path}"):
        read_token_file(path)


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_file_that_more_may_use_than_need_is_read_with_a_warning(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    add_token(path, _token("a"))
    path.chmod(mode)
    assert [token.name for token in read_token_file(path).all] == ["a"]
    assert f"{mode:04o}" in caplog.text


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_a_file_of_its_owner_and_group_is_read_without_one(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    add_token(path, _token("a"))
    path.chmod(mode)
    assert len(read_token_file(path).all) == 1
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.mkfifo(path), "is no file"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (lambda path: path.write_text("#" * (LARGEST_BYTES + 1)), "longer than"),
        (lambda path: path.write_text("# one\na b\n"), "line 2"),
    ],
)
def test_what_is_no_token_file_is_refused_and_never_waited_for(tmp_path: Path, make: object, said: str) -> None:
    path = tmp_path / "tokens"
    make(path)  # type: ignore[operator]
    with pytest.raises(AccessSettingsError, match=said) as caught:
        read_token_file(path)
    assert str(path) in str(caught.value)


# ---- changing -------------------------------------------------------------------------------------------------------


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    before = os.umask(0)
    try:
        add_token(path, _token("a"))
    finally:
        os.umask(before)
    assert _mode(path) == 0o600


def test_the_mode_and_the_other_lines_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# ours\n{_token('a')} # the first\n\n{_token('b')}")
    path.chmod(0o640)
    before = path.read_text()
    added = _token("c")
    add_token(path, added)
    assert path.read_text() == f"{before}\n{added}\n"
    assert _mode(path) == 0o640
    remove_token(path, "c")
    remove_token(path, "b")
    assert path.read_text() == before.rsplit("\n", 1)[0] + "\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokens"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "tokens"
    add_token(real, _token("a"))
    link.symlink_to(real)
    add_token(link, _token("b"))
    assert link.is_symlink()
    assert [token.name for token in read_token_file(real).all] == ["a", "b"]


def test_a_name_that_is_there_is_refused_and_the_file_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, _token("a"))
    before = path.read_bytes()
    with pytest.raises(AccessSettingsError, match="remove it first"):
        add_token(path, _token("a"))
    with pytest.raises(AccessSettingsError, match="has no b; it has a"):
        remove_token(path, "b")
    assert path.read_bytes() == before


def test_a_damaged_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("nonsense\n")
    with pytest.raises(AccessSettingsError, match="line 1"):
        add_token(path, _token("a"))
    assert path.read_text() == "nonsense\n"


def test_of_tokens_that_are_added_at_once_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    names = [f"t{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: add_token(path, _token(name)), names))
    assert sorted(token.name for token in read_token_file(path).all) == sorted(names)


# ---- the command ----------------------------------------------------------------------------------------------------


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["token", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_token_is_printed_once_alone_on_stdout_and_stands_in_no_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    code, secret, said = _run("add", "prolog", "--scope", "operate", "--expires", "90d", "--file", str(path))
    assert code == 0
    assert secret.count("\n") == 1
    (token,) = read_token_file(path).all
    assert read_token_file(path).find(secret.strip(), lambda: datetime.now(UTC)) == token
    assert secret.strip() not in path.read_text() + said
    code, listed, _ = _run("list", "--file", str(path))
    assert code == 0
    assert listed.split()[:2] == ["prolog", "operate"]
    assert token.digest.hex() not in listed
    assert _run("remove", "prolog", "--file", str(path))[0] == 0
    assert read_token_file(path).all == ()


def test_the_file_is_the_agents_setting_where_none_is_given(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    result = CliRunner().invoke(app, ["token", "add", "a"], env={"MESHWRIGHT_TOKENS_FILE": str(path)})
    assert result.exit_code == 0
    assert read_token_file(path).all[0].scope == "read"


def test_a_token_whose_time_is_over_is_listed_as_such(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, make_token("old", "read", NOW - timedelta(days=4000))[1])
    assert "its time is over" in _run("list", "--file", str(path))[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "a", "--scope", "root"], "read, operate, admin"),
        (["add", "a b"], "the name must be"),
        (["add", "a", "--expires", "soon"], "RFC 3339"),
        (["add", "a", "--expires", "2020-01-01T00:00:00Z"], "is past"),
        (["remove", "a"], "No such file"),
        (["list"], "token add"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_says_what_works(tmp_path: Path, arguments: list[str], said: str) -> None:
    code, out, err = _run(*arguments, "--file", str(tmp_path / "tokens"))
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "tokens").exists()


def test_without_a_file_the_command_asks_for_it() -> None:
    assert _run("list")[0] == 2


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("90d", timedelta(days=90)),
        ("12h", timedelta(hours=12)),
        ("5min", timedelta(minutes=5)),
        ("1s", timedelta(seconds=1)),
        ("999999d", timedelta(days=999999)),
        ("2026-11-22T13:00:00Z", timedelta(hours=1)),
    ],
)
def test_a_time_is_a_duration_or_a_moment(text: str, after: timedelta) -> None:
    assert parse_expiry(text, NOW) - NOW == after


@pytest.mark.parametrize("text", ["0d", "d", "-1d", "1.5d", "5m", "2w", "2026-11-22T12:00:00Z", "１d"])
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(TokenLineError):
        parse_expiry(text, NOW)
