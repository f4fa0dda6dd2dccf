from __future__ import annotations

import asyncio
import base64
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from meshwright.errors import (
    ForbiddenError,
    HostNotAllowedError,
    InvalidRequestError,
    ProblemError,
    UnauthorizedError,
)
from meshwright_agent.access.doorkeeper import COMPONENT, PEER_KEY, Doorkeeper
from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.exposure import check_exposure, is_loopback
from meshwright_agent.access.peers import Peer, name_certificate
from meshwright_agent.access.scopes import SCOPES, Scope
from meshwright_agent.access.token_file import add_token, remove_token
from meshwright_agent.access.tokens import make_token
from meshwright_agent.settings import Settings

UNIX = Peer("uid:1000", is_unix=True)


class EnoughError(Exception):
    """Ends what would go on for ever."""


class Standing:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 22, 12, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()


@pytest.fixture
def clock() -> Standing:
    return Standing()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def _add(path: Path, name: str, scope: Scope = "read", expires: datetime | None = None) -> str:
    secret, token = make_token(name, scope, expires)
    add_token(path, token)
    return secret


def _scope(method: str = "GET", path: str = "/devices", peer: Peer | None = None, **headers: str) -> dict[str, Any]:
    named = {"host": "localhost:8790"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
        "server": ("127.0.0.1", 8790),
        "client": ("127.0.0.1", 50000),
        PEER_KEY: peer,
    }


def _bearer(secret: str) -> str:
    return f"Bearer {secret}"


# ---- without tokens ------------------------------------------------------------------------------------------------


def test_without_a_token_file_whoever_is_on_this_host_may_everything(clock: Standing) -> None:
    caller = Doorkeeper(Settings(), clock).admit(_scope("POST"))
    assert (caller.name, caller.scope) == ("addr:127.0.0.1", "admin")


@pytest.mark.parametrize("scope", SCOPES)
def test_callers_on_the_unix_socket_may_what_its_setting_says(clock: Standing, scope: Scope) -> None:
    caller = Doorkeeper(Settings(uds_scope=scope), clock).admit(_scope(peer=UNIX))
    assert (caller.name, caller.scope) == ("uid:1000", scope)


# ---- with tokens ---------------------------------------------------------------------------------------------------


def test_a_token_is_its_name_and_its_scope(clock: Standing, token_file: Path) -> None:
    secret = _add(token_file, "prolog", "operate")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    basic = "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()
    for value in (_bearer(secret), basic):
        caller = keeper.admit(_scope(authorization=value))
        assert (caller.name, caller.scope) == ("token:prolog", "operate")


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer wrong", "Digest a=b", "Basic !", "Bearer mw_ x"])
def test_a_header_that_holds_no_token_of_ours_is_unauthorized(clock: Standing, token_file: Path, value: str) -> None:
    _add(token_file, "prolog")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    for peer in (None, UNIX):  # on the unix socket too: a wrong token is a mistake to be told
        with pytest.raises(UnauthorizedError) as caught:
            keeper.admit(_scope(authorization=value, peer=peer))
        assert "wrong" not in str(caught.value)


def test_only_probes_go_without_a_token_and_metrics_where_they_are_public(clock: Standing, token_file: Path) -> None:
    _add(token_file, "prolog")
    closed = Doorkeeper(Settings(tokens_file=token_file), clock)
    public = Doorkeeper(Settings(tokens_file=token_file, public_metrics=True), clock)
    for path in ("/healthz", "/readyz"):
        assert closed.admit(_scope(path=path)).scope == "read"
    assert public.admit(_scope(path="/metrics")).scope == "read"
    for keeper, path in [
        (closed, "/metrics"),
        (public, "/devices"),
        (public, "/healthz/"),
        (public, "/"),
        (public, "/x"),
    ]:
        with pytest.raises(UnauthorizedError):
            keeper.admit(_scope(path=path))


def test_a_token_ends_at_its_time(clock: Standing, token_file: Path) -> None:
    secret = _add(token_file, "prolog", expires=clock.at + timedelta(hours=1))
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    assert keeper.admit(_scope(authorization=_bearer(secret))).name == "token:prolog"
    clock.at += timedelta(hours=1)
    with pytest.raises(UnauthorizedError):
        keeper.admit(_scope(authorization=_bearer(secret)))
    assert keeper.condition()[0] == "degraded"


def test_tokens_come_and_go_without_a_restart_and_a_damaged_file_changes_nothing(
    clock: Standing, token_file: Path
) -> None:
    old = _add(token_file, "old")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    assert keeper.admit(_scope(authorization=_bearer(old))).name == "token:old"
    new = _add(token_file, "new", "admin")
    keeper.refresh()
    assert keeper.admit(_scope(authorization=_bearer(new))).scope == "admin"
    remove_token(token_file, "old")
    keeper.refresh()
    with pytest.raises(UnauthorizedError):
        keeper.admit(_scope(authorization=_bearer(old)))
    token_file.write_text("nonsense\n")
    keeper.refresh()
    assert keeper.admit(_scope(authorization=_bearer(new))).name == "token:new"
    state, reason, _ = keeper.condition()
    assert state == "degraded"
    assert "line 1" in reason


def test_the_board_hears_of_each_change(clock: Standing, token_file: Path) -> None:
    _add(token_file, "prolog")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    keeper.refresh()
    told: list[tuple[str, str]] = []

    def report(name: str, state: Any, reason: str, *, at: datetime, action: str = "") -> None:
        assert (name, at) == (COMPONENT, clock.at)
        told.append((state, reason))
        if len(told) == 2:
            raise EnoughError
        token_file.unlink()
        keeper.refresh()

    with pytest.raises(EnoughError):
        asyncio.run(asyncio.wait_for(keeper.tell(report), 60))
    assert [state for state, _ in told] == ["healthy", "degraded"]


# ---- scopes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has", SCOPES)
@pytest.mark.parametrize("needed", SCOPES)
def test_each_scope_holds_those_before_it(clock: Standing, has: Scope, needed: Scope) -> None:
    caller = Doorkeeper(Settings(uds_scope=has), clock).admit(_scope(peer=UNIX))
    if SCOPES.index(has) >= SCOPES.index(needed):
        caller.check(needed, "GET /x")
    else:
        with pytest.raises(ForbiddenError, match=f"needs the scope {needed}; uid:1000 has {has}"):
            caller.check(needed, "GET /x")


# ---- hosts and sites -------------------------------------------------------------------------------------------------


def test_a_request_for_another_host_is_refused_also_where_no_token_is_needed(clock: Standing) -> None:
    keeper = Doorkeeper(Settings(), clock)
    for path in ("/devices", "/healthz"):
        with pytest.raises(HostNotAllowedError, match=r"evil\.example"):
            keeper.admit(_scope(path=path, host="evil.example:8790"))
    keeper.admit(_scope(host="127.0.0.1"))
    keeper.admit(_scope(host="evil.example", peer=UNIX))  # which no browser reaches


def test_a_host_that_was_taken_once_is_taken_only_on_such_connections(clock: Standing) -> None:
    keeper = Doorkeeper(Settings(), clock)
    here = {**_scope(host="10.0.0.7"), "server": ("10.0.0.7", 8790)}
    keeper.admit(here)
    keeper.admit(here)
    with pytest.raises(HostNotAllowedError):
        keeper.admit({**here, "server": ("10.0.0.8", 8790)})


def test_a_request_without_a_host_is_refused_but_for_http_1_0(clock: Standing) -> None:
    keeper = Doorkeeper(Settings(), clock)
    bare = {**_scope(), "headers": []}
    with pytest.raises(InvalidRequestError) as caught:
        keeper.admit(bare)
    assert caught.value.status == 400
    keeper.admit({**bare, "http_version": "1.0"})
    with pytest.raises(InvalidRequestError):
        keeper.admit(_scope(host="a b"))


@pytest.mark.parametrize("second", [b"localhost", b"evil.example"])
@pytest.mark.parametrize("peer", [None, Peer("uid:0", is_unix=True)])
def test_a_request_with_two_hosts_is_refused_whatever_they_are(
    clock: Standing, second: bytes, peer: Peer | None
) -> None:
    doorkeeper = Doorkeeper(Settings(), clock)
    for headers in ([(b"host", b"localhost"), (b"host", second)], [(b"host", second), (b"host", b"localhost")]):
        with pytest.raises(InvalidRequestError, match="two Host headers") as refused:
            doorkeeper.admit(_scope(path="/healthz", peer=peer) | {"headers": headers})
        assert refused.value.status == 400
    doubled = [(b"host", b"localhost"), (b"accept", b"a"), (b"accept", b"b")]
    assert doorkeeper.admit(_scope(peer=peer) | {"headers": doubled})


def test_allowed_hosts_are_names_beside_its_own(clock: Standing) -> None:
    keeper = Doorkeeper(Settings(allowed_hosts="gateway.example, *.cluster.local"), clock)
    for host in ("gateway.example", "a.cluster.local:80", "localhost"):
        keeper.admit(_scope(host=host))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site", "origin": "http://localhost:8790"},
        {"origin": "http://evil.example", "sec_fetch_site": "same-origin"},
    ],
)
def test_a_page_of_another_site_changes_nothing(clock: Standing, headers: dict[str, str]) -> None:
    keeper = Doorkeeper(Settings(), clock)
    for method in ("POST", "DELETE", "PUT", "PATCH", "TRACE"):
        with pytest.raises(ForbiddenError):
            keeper.admit(_scope(method, **headers))


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://localhost:8790", "sec_fetch_site": "same-origin"}, {"sec_fetch_site": "none"}],
)
def test_the_agents_own_page_and_programs_do(clock: Standing, headers: dict[str, str]) -> None:
    assert Doorkeeper(Settings(), clock).admit(_scope("POST", **headers)).scope == "admin"


# ---- where it may listen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no.such.host.invalid"])
def test_beyond_loopback_it_needs_a_token_file_or_the_word_insecure(host: str, token_file: Path) -> None:
    with pytest.raises(AccessSettingsError, match="--insecure"):
        check_exposure(Settings(host=host))
    check_exposure(Settings(host=host, insecure=True))
    check_exposure(Settings(host=host, tokens_file=token_file))


def test_insecure_with_a_ca_for_clients_says_whose_word_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {f"tls_{name}_file": tmp_path / name for name in ("cert", "key", "client_ca")}
    with pytest.raises(AccessSettingsError, match="whoever holds a client certificate could"):
        check_exposure(Settings(host="0.0.0.0", **files))
    check_exposure(Settings(host="0.0.0.0", insecure=True, **files))
    assert f"whoever holds a certificate of {tmp_path / 'client_ca'} and reaches 0.0.0.0 may do" in caplog.text
    caplog.clear()
    check_exposure(Settings(host="0.0.0.0", insecure=True))
    assert "whoever reaches 0.0.0.0 may do everything here" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", ""])
def test_loopback_and_the_unix_socket_need_neither(host: str) -> None:
    check_exposure(Settings(host=host))
    assert not host or is_loopback(host)


@pytest.mark.parametrize("host", ["1..2", "a" * 64 + ".example", "\udc80x"])
def test_a_name_that_is_none_is_not_loopback_and_ends_nothing(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(AccessSettingsError, match="can be reached"):
        check_exposure(Settings(host=host))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_cert_file": "/c"}, "tls_key_file is missing"),
        ({"tls_key_file": "/k"}, "tls_cert_file is missing"),
        ({"tls_client_ca_file": "/a"}, "give tls_cert_file"),
        ({"uds_mode": "0999"}, "pattern"),
        ({"uds_scope": "root"}, "admin"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**settings)


def test_files_that_cannot_be_used_are_refused_at_the_start(clock: Standing, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    with pytest.raises(AccessSettingsError, match="No such file"):
        Doorkeeper(Settings(tokens_file=tmp_path / "none"), clock)
    with pytest.raises(AccessSettingsError, match="PEM"):
        Doorkeeper(Settings(tls_cert_file=empty, tls_key_file=empty), clock)


# ---- peers -----------------------------------------------------------------------------------------------------------


def test_a_certificate_is_named_by_its_common_name_else_its_first_other() -> None:
    subject = ((("organizationName", "ours"),), (("commonName", "node7"),))
    assert name_certificate({"subject": subject}) == "node7"
    assert name_certificate({"subject": (), "subjectAltName": (("DNS", "node8"),)}) == "node8"
    assert name_certificate({"serialNumber": "0A"}) == "serial:0A"


@pytest.mark.parametrize("name", ["x\nscope=admin", "x scope=admin", "x\u2028y", "x\x1b[2J"])
def test_a_name_in_a_certificate_changes_no_line_of_the_audit(name: str) -> None:
    told = name_certificate({"subject": ((("commonName", name),),)})
    assert told.startswith("x?")
    assert told.isprintable()
    assert " " not in told


def test_with_a_ca_for_clients_all_but_probes_and_the_unix_socket_show_a_certificate(
    clock: Standing, tmp_path: Path
) -> None:
    ca = trustme.CA()
    server = ca.issue_cert("localhost")
    cert, key, client_ca = tmp_path / "cert", tmp_path / "key", tmp_path / "ca"
    server.private_key_and_cert_chain_pem.write_to_path(str(cert))
    server.private_key_pem.write_to_path(str(key))
    ca.cert_pem.write_to_path(str(client_ca))
    keeper = Doorkeeper(Settings(tls_cert_file=cert, tls_key_file=key, tls_client_ca_file=client_ca), clock)
    with pytest.raises(UnauthorizedError, match="certificate"):
        keeper.admit(_scope())
    shown = Peer("cert:node7", has_certificate=True)
    assert keeper.admit(_scope(peer=shown)).name == "cert:node7"
    assert keeper.admit(_scope(peer=UNIX)).name == "uid:1000"
    assert keeper.admit(_scope(path="/readyz")).scope == "read"


def test_no_header_makes_anything_but_a_problem(clock: Standing, token_file: Path) -> None:
    secret = _add(token_file, "prolog")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    for value in (
        "\x00",
        "é" * 100,
        "," * 5000,
        "Basic " + "=" * 100,
        f"Bearer {secret}\xff",
        "Bearer " + "\ud83d"[:0],
    ):
        for name in ("host", "authorization", "origin", "sec_fetch_site"):
            with pytest.raises(ProblemError) as caught:
                keeper.admit(_scope("POST", **{name: value}))
            assert secret not in str(caught.value)


def test_files_are_looked_at_whatever_befell_a_look_or_the_search_for_the_hosts_name(
    clock: Standing, token_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = _add(token_file, "ci")
    keeper = Doorkeeper(Settings(tokens_file=token_file), clock)
    refresh, befell = keeper.refresh, [MemoryError()]

    def fail_once() -> None:
        if befell:
            raise befell.pop()
        refresh()

    def find_no_name() -> str:
        raise UnicodeError("label too long")

    monkeypatch.setattr(keeper, "refresh", fail_once)
    monkeypatch.setattr("socket.getfqdn", find_no_name)
    monkeypatch.setattr("meshwright_agent.access.doorkeeper.LOOK_INTERVAL_S", 0.01)
    remove_token(token_file, "ci")
    keeper.start()
    try:
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            try:
                keeper.admit(_scope(authorization=_bearer(secret)))
            except UnauthorizedError:
                break
            time.sleep(0.01)
        else:
            pytest.fail("a token that was taken back is still let in")
    finally:
        keeper.close()
    assert "MemoryError" in caplog.text
