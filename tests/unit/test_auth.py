"""Token files, peers, callers and where an agent may listen."""

from __future__ import annotations

import grp
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.security import SecurityScopes

from meshwright.errors import ForbiddenError, UnauthorizedError
from meshwright_agent.auth import (
    MAX_TOKEN_FILE_BYTES,
    AccessSettingsError,
    Authenticator,
    Caller,
    Peer,
    authenticate,
    check_exposure,
    hash_secret,
    make_token,
    parse_expiry,
    parse_tokens,
    read_peer,
    read_token_file,
    resolves_to_loopback,
)
from meshwright_agent.settings import Settings
from tests.fakes.stored import EPOCH, ManualClock

DIGEST = "0" * 64
START = "start the agent with --uds PATH or --tokens-file FILE; on a machine of your own, with --insecure"
TCP = Peer("addr:127.0.0.1")


def _authenticate(clock: ManualClock | None = None, **settings: Any) -> Authenticator:
    return Authenticator(Settings(**settings), clock or ManualClock())


def _write(path: Path, *lines: str) -> Path:
    path.touch(mode=0o600)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(("settings", "hint"), [
    ({}, START), ({"uds": "/run/agent.sock"}, "use unix:///run/agent.sock as one of MESHWRIGHT_UDS_ADMINS"),
])  # fmt: skip
async def test_a_refusal_names_a_way_that_this_agent_has(settings: dict[str, Any], hint: str) -> None:
    agent = SimpleNamespace(settings=Settings(**settings))
    app = SimpleNamespace(state=SimpleNamespace(agent=agent, authenticator=_authenticate(**settings)))
    request: Any = SimpleNamespace(method="PUT", url=SimpleNamespace(path="/leases/a"), headers={}, app=app)
    request.state = SimpleNamespace(peer=TCP)
    with pytest.raises(ForbiddenError) as refused:
        await authenticate(request, SecurityScopes(["operate"]), None, None)
    assert refused.value.hint == hint


# ---- tokens ---------------------------------------------------------------------------------------------------------


def test_a_new_token_is_known_by_its_line_and_its_secret_stands_nowhere_in_it() -> None:
    secret, token = make_token("prolog", "operate", EPOCH + timedelta(days=1))
    assert parse_tokens(f"# ours\n\n{token}  # until tomorrow\n") == ((token,), ())
    assert hash_secret(secret) == token.digest
    assert secret.startswith("mw_")
    assert secret not in str(token)
    assert len({make_token("a", "read")[0] for _ in range(50)}) == 50


@pytest.mark.parametrize(("line", "words"), [
    ("prolog operate", "2 words"), (f"prolog operate sha256:{DIGEST} a b", "5 words"),
    (f"-x read sha256:{DIGEST}", "the name"), (f"prolog write sha256:{DIGEST}", "the scope"),
    (f"prolog read,operate sha256:{DIGEST}", "the scope"), (f"prolog read sha256:{DIGEST[1:]}", "third word"),
    (f"prolog read {DIGEST}", "third word"),
    (f"prolog read sha256:{DIGEST} until=2027-01-01T00:00:00Z", "fourth word"),
    (f"prolog read sha256:{DIGEST} expires=2027-01-01", "RFC 3339"),
    (f"prolog read sha256:{DIGEST} expires=2027-01-01T00:00:00", "RFC 3339"),
    (f"first read sha256:{'1' * 64}", "stands on a line before"),
    (f"second read sha256:{'f' * 64}", "stands on a line before"),
])  # fmt: skip
def test_a_wrong_line_is_named_by_its_number_and_its_digest_is_not_shown(line: str, words: str) -> None:
    tokens, (wrong,) = parse_tokens(f"first read sha256:{'f' * 64}\n{line}\nlast read sha256:{'e' * 64}\n")
    assert [token.name for token in tokens] == ["first", "last"]
    assert wrong.startswith("line 2: ")
    assert words in wrong
    assert DIGEST not in wrong


@pytest.mark.parametrize(
    ("text", "days"), [("90d", 90), ("12h", 0.5), ("36min", 0.025), ("1970-01-03T00:00:00+00:00", None)]
)
def test_a_time_to_expire_is_a_duration_or_a_moment(text: str, days: float | None) -> None:
    expected = datetime(1970, 1, 3, tzinfo=UTC) if days is None else EPOCH + timedelta(days=days)
    now = datetime(1970, 1, 2, tzinfo=UTC) if days is None else EPOCH
    assert parse_expiry(text, now) == expected


@pytest.mark.parametrize("text", ["", "soon", "0d", "5m", "2000-01-01T00:00:00Z"])
def test_a_time_that_is_none_or_past_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|past"):
        parse_expiry(text, datetime(2026, 1, 1, tzinfo=UTC))


def test_a_token_file_that_everybody_may_write_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "tokens", f"a read sha256:{DIGEST}")
    assert [token.name for token in read_token_file(path)[0]] == ["a"]
    path.chmod(0o602)
    with pytest.raises(AccessSettingsError, match="every user may write it"):
        read_token_file(path)
    path.chmod(0o600)
    path.write_text("#" * MAX_TOKEN_FILE_BYTES)
    assert read_token_file(path) == ((), ())
    path.write_text("#" * MAX_TOKEN_FILE_BYTES + "##")
    with pytest.raises(AccessSettingsError, match="longer than"):
        read_token_file(path)
    for wrong, words in ((tmp_path, "Is a directory"), (tmp_path / "none", "token new")):
        with pytest.raises(AccessSettingsError, match=words):
            read_token_file(wrong)


def test_a_deleted_token_ends_whatever_else_the_file_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = _write(tmp_path / "tokens", f"old read sha256:{hash_secret('old').hex()}")
    authenticator = _authenticate(tokens_file=path)
    old = authenticator.identify(TCP, "old")
    path.rename(tmp_path / "away")
    authenticator.refresh()
    assert authenticator.is_valid(old), "the file cannot be read, so nobody deleted the token"
    _write(path, "bash: meshwright-agent: command not found", f"new admin sha256:{hash_secret('new').hex()}")
    with path.open("ab") as file:
        file.write(b"\xff\n")
    for _ in range(2):
        authenticator.refresh()
    assert [each.partition(", such as ")[2].split(";")[0] for each in caplog.messages][1:] == ["line 1: 5 words"]
    assert not authenticator.is_valid(old)
    assert authenticator.identify(TCP, "new").scope == "admin"
    with pytest.raises(UnauthorizedError):
        authenticator.identify(TCP, "old")


def test_a_token_ends_at_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    secret, token = make_token("a", "operate", clock.now() + timedelta(seconds=60))
    authenticator = _authenticate(clock, tokens_file=_write(tmp_path / "tokens", str(token)))
    caller = authenticator.identify(TCP, secret)
    assert (caller.name, caller.scope, authenticator.is_valid(caller)) == ("token:a", "operate", True)
    for later_s in (60, 1):
        clock.advance(later_s)
        assert not authenticator.is_valid(caller)
        with pytest.raises(UnauthorizedError, match="expired"):
            authenticator.identify(TCP, secret)


# ---- callers --------------------------------------------------------------------------------------------------------


def test_tcp_without_tokens_may_read_and_with_insecure_everything() -> None:
    assert _authenticate().identify(TCP, None) == Caller(TCP.name, "read")
    assert _authenticate().identify(TCP, "any") == Caller(TCP.name, "read")
    assert _authenticate(insecure=True).identify(TCP, None) == Caller(TCP.name, "admin")


def test_insecure_does_not_lift_the_tokens_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UnauthorizedError):
        _authenticate(insecure=True, tokens_file=_write(tmp_path / "tokens")).identify(TCP, None)


def test_with_a_ca_for_clients_tcp_must_show_a_certificate(tmp_path: Path) -> None:
    files = dict.fromkeys(("tls_cert_file", "tls_key_file", "tls_client_ca_file"), tmp_path / "x")
    authenticator = _authenticate(**files)
    with pytest.raises(UnauthorizedError, match="certificate"):
        authenticator.identify(TCP, None)
    assert authenticator.identify(Peer("cert:node7"), None).name == "cert:node7"
    assert authenticator.identify(Peer("uid:0", 0), None).scope == "admin"


@pytest.mark.parametrize(("admins", "peer", "scope"), [
    ("root,self,@meshwright", Peer("uid:0", 0), "admin"),
    ("root,self,@meshwright", Peer(f"uid:{os.geteuid()}", os.geteuid()), "admin"),
    ("root,self,@meshwright", Peer("uid:4711", 4711, frozenset({4711})), "read"),
    ("4711", Peer("uid:4711", 4711), "admin"),
    ("@815", Peer("uid:4711", 4711, frozenset({9, 815})), "admin"),
    ("815", Peer("uid:4711", 4711, frozenset({815})), "read"), ("", Peer("uid:0", 0), "read"),
    ("nobody-of-this-name", Peer("uid:unknown"), "read"),
])  # fmt: skip
def test_on_the_unix_socket_one_setting_says_who_is_admin(admins: str, peer: Peer, scope: str) -> None:
    assert _authenticate(uds_admins=admins).identify(peer, None) == Caller(peer.name, scope)  # type: ignore[arg-type]


def test_a_group_of_admins_may_be_named_and_one_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture) -> None:
    group = grp.getgrall()[0]
    peer = Peer("uid:4711", 4711, frozenset({group.gr_gid}))
    assert _authenticate(uds_admins=f"@{group.gr_name}").identify(peer, None).scope == "admin"
    assert not caplog.messages
    assert _authenticate(uds_admins="@no-such-group,no-such-user,²").identify(peer, None).scope == "read"
    assert [message.split()[1] for message in caplog.messages] == ["@no-such-group", "no-such-user", "²"]


def test_a_peer_of_a_unix_socket_is_named_by_the_kernel() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        peer = read_peer(SimpleNamespace(get_extra_info={"socket": here}.get))
    assert (peer.name, peer.uid, peer.is_unix) == (f"uid:{os.geteuid()}", os.geteuid(), True)
    assert peer.groups >= {os.getegid(), *os.getgroups()}


def test_a_peer_of_tcp_is_named_by_its_certificate_or_its_address() -> None:
    def read(**known: Any) -> str:
        return read_peer(SimpleNamespace(get_extra_info=known.get)).name

    subject = ((("organizationName", "x"),), (("commonName", "node 7\n"),))
    assert read(peername=("10.0.0.7", 1)) == "addr:10.0.0.7"
    assert read(peercert={"subject": subject}) == "cert:node?7?"
    assert read(peercert={"subjectAltName": (("DNS", "node8"),)}) == "cert:node8"
    assert read(peercert={"serialNumber": "0A"}) == "cert:serial:0A"
    assert read_peer(None).name == "addr:unknown"


# ---- names and addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["http://gw.example", "gw.example:8790", "a b", "gw.example/x"])
def test_an_allowed_host_that_no_header_can_match_is_refused_at_the_start(names: str) -> None:
    with pytest.raises(AccessSettingsError, match="MESHWRIGHT_ALLOWED_HOSTS"):
        _authenticate(allowed_hosts=names)


@pytest.mark.parametrize(("names", "host"), [("*", "any.example"), ("*.example.org", "a.example.org"), ("gw", "GW:1")])
def test_allowed_hosts_are_names_and_stars(names: str, host: str) -> None:
    _authenticate(allowed_hosts=names).check_host(host)


@pytest.mark.parametrize("host", ["example.org", "evil-example.org", "a.example.org.evil"])
def test_a_star_stands_for_names_below_a_domain_alone(host: str) -> None:
    with pytest.raises(ForbiddenError):
        _authenticate(allowed_hosts="*.example.org").check_host(host)


@pytest.mark.parametrize(("host", "is_own"), [
    ("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.0.0.1", False), ("a..b", False),
])  # fmt: skip
def test_loopback_is_told_from_other_addresses(host: str, is_own: bool) -> None:
    assert resolves_to_loopback(host) == is_own


def test_beyond_loopback_an_agent_wants_tokens_or_insecure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(Settings())
    check_exposure(Settings(host=""))
    assert not caplog.messages
    with pytest.raises(AccessSettingsError, match="token new"):
        check_exposure(Settings(host="0.0.0.0"))
    check_exposure(Settings(host="0.0.0.0", insecure=True))
    check_exposure(Settings(host="0.0.0.0", tokens_file=tmp_path / "tokens"))
    said = [message.split(":")[0].split(" to ")[0] for message in caplog.messages]
    assert said == ["--insecure", "tokens travel unencrypted"]
