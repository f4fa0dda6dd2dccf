"""Where the agent is: arguments, environment, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import AsyncClient, Client
from meshwright._client.settings import parse_address, read_settings
from meshwright.errors import MeshwrightError, SettingsError
from meshwright.testing import FakeAgent


def test_a_token_file_is_read_and_its_line_end_dropped(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert read_settings(None, None, {"MESHWRIGHT_TOKEN_FILE": str(file)}).token == "secret"


def test_a_socket_in_a_folder_that_may_not_be_searched_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", Mock(side_effect=PermissionError))
    assert read_settings(None, None, {}).address.shown == "http://127.0.0.1:8790"


@pytest.mark.parametrize("variable", ["MESHWRIGHT_TOKEN_FILE", "MESHWRIGHT_CA_FILE"])
def test_a_file_that_is_not_there_is_refused_by_its_variables_name(variable: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=variable):
        read_settings(None, None, {variable: str(tmp_path / "absent")})


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "schlüssel", "nul\0"])
def test_a_token_that_no_header_can_carry_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(None, token, {})
    assert token not in str(caught.value)


@pytest.mark.parametrize("text", [
    "localhost:8790", "127.0.0.1", "ftp://a", "unix://relative/path", "unix:///", "http://", "http://a:99999",
    "http://a..b:1", f"http://{'a' * 64}:1",
    "http://a:0", "http://user:pass@a", "http://a/?x=1", "http://a/#b", "http://[::1", " ",
])  # fmt: skip
def test_what_is_no_address_is_refused_with_one_that_works(text: str) -> None:
    with pytest.raises(SettingsError, match=r"http://127\.0\.0\.1:8790") as caught:
        parse_address(text)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MeshwrightError)


def test_an_address_that_is_shown_is_the_same_address() -> None:
    address = parse_address("unix:///run/a%2520b%3Fc")
    assert (address.socket, parse_address(address.shown)) == ("/run/a%20b?c", address)


@pytest.mark.parametrize(("text", "is_local"), [
    ("http://localhost:1", True), ("http://[::1]:1", True), ("http://127.9.9.9", True), ("http://10.0.0.1", False),
    ("https://agent.example", False),
])  # fmt: skip
def test_only_loopback_and_sockets_are_local(text: str, is_local: bool) -> None:
    assert parse_address(text).is_local is is_local


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_settings_error(text: str) -> None:
    try:
        address = parse_address(text)
    except SettingsError:
        return
    assert address.url.startswith(("http://", "https://"))


@pytest.mark.parametrize("text", [
    "http://user:s3cret@127.0.0.1:1", "https://s3cret@gw", "htp://u:s3cret@gw", "http://u:s3/cret@gw:1", "u:s3cret@gw",
])  # fmt: skip
def test_a_password_in_the_address_is_refused_by_name_and_not_shown(text: str) -> None:
    with pytest.raises(SettingsError, match="MESHWRIGHT_TOKEN") as caught:
        parse_address(text)
    assert "a user or a password" in str(caught.value)
    assert "s3" not in str(caught.value)


@pytest.mark.parametrize(("variable", "value"), [
    ("NO_PROXY", "localhost,fd00::/8"), ("ALL_PROXY", "socks5://127.0.0.1:1"), ("HTTP_PROXY", "socks4://a:1"),
])  # fmt: skip
def test_proxies_that_cannot_be_used_are_named(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    for opened in (Client, AsyncClient):
        with pytest.raises(SettingsError, match="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY cannot be used"):
            opened("http://192.0.2.1:8790")
        opened("http://127.0.0.1:8790")  # no proxy is between


def test_after_a_fork_a_process_has_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeAgent()
    pool = httpx.Client(base_url="http://a", transport=fake.transport())
    owned, given = Client("http://a", transport=fake.transport()), Client(http_client=pool)
    pools = [owned._http, given._http]
    assert owned.alive()
    assert given.alive()
    assert [owned._http, given._http] == pools
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert owned.alive()
    assert given.alive()
    assert owned._http is not pools[0]
    assert given._http is pools[1]  # which is the caller's own
    owned.close()
    assert not owned.alive()
