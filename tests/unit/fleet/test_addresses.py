from __future__ import annotations

import functools
import socket
import time
from pathlib import Path

import httpx
import pytest

from meshwright import Client
from meshwright._fleet import read_addresses, resolve_name
from meshwright.errors import SettingsError
from meshwright.fleet import Fleet

RECORDS = {"agents.svc": {"10.0.0.10", "10.0.0.9", "fd00::2"}}


def resolve(host: str, port: int) -> set[str]:
    if host not in RECORDS:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return RECORDS[host]


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright._fleet.resolve_name", resolve)


def read(given: str | list[str] | None, **environ: str) -> list[str]:
    return [url.removeprefix("http://") for url in read_addresses(given, environ)]


@pytest.mark.parametrize(("text", "urls"), [
    ("node7", "node7:8790"), ("node7:9000", "node7:9000"), ("10.0.0.7", "10.0.0.7:8790"), ("::1", "[::1]:8790"),
    ("[::1]", "[::1]:8790"), ("[fd00::2]:9000", "[fd00::2]:9000"), ("a,b c\n d", "a:8790 b:8790 c:8790 d:8790"),
    ("a,a:9000", "a:8790 a:9000"), ("dns:agents.svc", "10.0.0.9:8790 10.0.0.10:8790 [fd00::2]:8790"),
    ("dns:agents.svc:9000", "10.0.0.9:9000 10.0.0.10:9000 [fd00::2]:9000"),
    ("http://a:1/,http://[::1]:8790", "a:1 [::1]:8790"), ("https://a", "https://a"),
    ("unix:///run/a.sock", "unix:///run/a.sock"), ("http://a/mesh", "a/mesh"),
])  # fmt: skip
def test_every_form_of_an_address_becomes_urls(text: str, urls: str) -> None:
    assert read(text) == urls.split()
    assert read(None, MESHWRIGHT_FLEET=text) == urls.split()
    assert read([text]) == urls.split()


def test_a_list_may_mix_forms_and_is_taken_before_the_variable() -> None:
    assert read(["b", "dns:agents.svc"], MESHWRIGHT_FLEET="x")[:2] == ["b:8790", "10.0.0.9:8790"]


def test_a_file_has_addresses_and_comments(tmp_path: Path) -> None:
    path = tmp_path / "fleet"
    path.write_text("# the fleet\nnode1, node2  # two\n\nhttps://b:1\n")
    assert read(f"@{path},c") == ["node1:8790", "node2:8790", "https://b:1", "c:8790"]


@pytest.mark.parametrize(("given", "words"), [
    (None, "MESHWRIGHT_FLEET is empty or not set"), ([], "no address is given"), ("", "no address is given"),
    (" , ", "no address is given"), ("dns:nobody.svc", "has no address"), ("dns:", "not a host"),
    ("dns:agents.svc:none", "from 1 to 65535"), ("@/nowhere/fleet", "cannot be read"), ("a:0", "from 1 to 65535"),
    ("a:65536", "from 1 to 65535"), ("a:b", "from 1 to 65535"), ("a/b", "not a host"), ("user@a", "not a host"),
    ("ftp://a", "not http://"), ("http://a?x=1", "query"), ("node[1-2]", "scontrol show hostnames"),
    ("a,b,http://a:8790", "names http://a:8790 twice"), ("10.0.0.9,dns:agents.svc", "10.0.0.9:8790 twice"),
])  # fmt: skip
def test_an_address_that_names_nobody_is_refused_with_one_that_does(given: str | list[str] | None, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(given)
    assert words in str(caught.value)
    assert any(word in str(caught.value) for word in ("write", "name", "such as"))


@pytest.mark.parametrize(("text", "said"), [("@/other/file\n", "names another file"), ("# no\n", "needs addresses")])
def test_a_file_that_names_another_file_or_nobody_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "fleet"
    path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        read(f"@{path}")


def test_the_resolver_of_the_system_finds_loopback() -> None:
    assert "127.0.0.1" in resolve_name("127.0.0.1", 8790)


def test_a_host_that_was_never_asked_is_not_called_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        time.sleep(1.0)
        raise httpx.ReadTimeout("", request=request)

    monkeypatch.setattr("meshwright.fleet.MAX_AT_ONCE", 1)
    slow = functools.partial(Client, transport=httpx.MockTransport(hang), max_retries=0)
    fleet = Fleet(["a", "b"], connect=slow)
    pools = [client._http for client in fleet.clients]
    first, second = fleet.devices(timeout_s=0.3).hosts
    assert [client._http is pool for client, pool in zip(fleet.clients, pools, strict=True)] == [False, True]
    assert pools[0].is_closed  # what the host still sends is read by nobody
    assert (first.state, first.detail) == ("unreachable", "no answer within 0.3 s")
    assert (second.state, second.detail) == ("error", "not asked within 0.3 s: 1 others did not answer")
