"""Sockets, the claim on a host, TLS files, the sweep, and what is used of uvicorn beyond its documentation."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from meshwright_agent import server
from meshwright_agent.auth import AccessSettingsError
from meshwright_agent.server import (
    CannotListenError,
    HostTakenError,
    claim_host,
    describe_wait,
    find_owner,
    load_tls,
    notify_systemd,
    open_tcp,
    open_unix,
    sweep,
)
from meshwright_agent.settings import Settings


def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with open_tcp("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP
        with pytest.raises(CannotListenError, match="--port 0"):
            open_tcp("127.0.0.1", sock.getsockname()[1])
    with pytest.raises(CannotListenError):
        open_tcp("a..b", 0)


def test_a_stale_unix_socket_is_replaced_and_a_live_one_and_other_files_are_not(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "agent.sock"
    open_unix(path).close()
    with open_unix(path):
        assert path.stat().st_mode & 0o777 == 0o666
        with pytest.raises(CannotListenError, match="another agent answers there"):
            open_unix(path)
    (tmp_path / "file").touch()
    with pytest.raises(CannotListenError, match="not a socket"):
        open_unix(tmp_path / "file")


def test_a_host_has_one_agent_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    assert find_owner(tmp_path) == 0
    with claim_host(tmp_path):
        assert find_owner(tmp_path) == os.getpid()
        with pytest.raises(HostTakenError, match=f"process {os.getpid()}"), claim_host(tmp_path):
            pass
    with claim_host(tmp_path):
        pass


def test_systemd_is_told_and_a_manager_that_is_not_there_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_systemd("READY=1", "STATUS=ready")
        assert manager.recv(100) == b"READY=1\nSTATUS=ready"
    for address in (str(tmp_path / "notify"), "@nobody", "vsock:2", ""):
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify_systemd("READY=1")


# ---- TLS ------------------------------------------------------------------------------------------------------------


def _plant_tls(folder: Path) -> tuple[Settings, trustme.LeafCert]:
    own = trustme.CA().issue_cert("localhost")
    own.private_key_pem.write_to_path(str(folder / "key.pem"))
    own.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    return Settings(tls_cert_file=folder / "cert.pem", tls_key_file=folder / "key.pem"), own


def test_files_that_do_not_fit_each_other_are_refused_at_the_start(tmp_path: Path) -> None:
    settings, _ = _plant_tls(tmp_path)
    assert load_tls(Settings()) is None
    context = load_tls(settings)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    with pytest.raises(AccessSettingsError, match="key values mismatch"):
        load_tls(settings)
    (tmp_path / "key.pem").unlink()
    with pytest.raises(AccessSettingsError, match="no such file"):
        load_tls(settings)


def _shake_hands(context: ssl.SSLContext) -> bytes:
    """Returns the certificate that a server with a context shows."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ours.getpeercert(binary_form=True) or b""


def test_changed_files_are_used_as_soon_as_they_fit_and_not_before(tmp_path: Path) -> None:
    settings, _ = _plant_tls(tmp_path)
    context = load_tls(settings)
    assert context is not None
    files, before = server._TlsFiles(settings, context), _shake_hands(context)
    new = trustme.CA().issue_cert("localhost")
    (tmp_path / "cert.pem").unlink()
    new.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    files.refresh()
    assert _shake_hands(context) == before
    (tmp_path / "key.pem").unlink()
    new.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    files.refresh()
    assert _shake_hands(context) not in {before, b""}


# ---- connections that do not move -----------------------------------------------------------------------------------


class _Transport:
    def __init__(self) -> None:
        self.unread = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.is_aborted = True


def _connect(**parts: Any) -> Any:
    return type("Connection", (), {"cycle": None, "timeout_keep_alive_task": None, "transport": _Transport()} | parts)()


def _cycle(**parts: Any) -> Any:
    return SimpleNamespace(**{"response_complete": False, "more_body": False} | parts)


def test_a_connection_waits_for_its_client_or_does_not() -> None:
    idle, half = {"cycle": _cycle(response_complete=True)}, {"cycle": _cycle(more_body=True)}
    assert describe_wait(_connect()) == ("first request", 0)
    assert describe_wait(_connect(cycle=_cycle())) == ("", 0)  # the agent works on it
    assert describe_wait(_connect(**half))[0].startswith("body")
    assert describe_wait(_connect(**idle, timeout_keep_alive_task=object())) == ("", 0)
    assert describe_wait(_connect(**idle))[0].startswith("request after")
    deaf = _connect(cycle=_cycle())
    deaf.transport.unread = 7
    assert describe_wait(deaf) == ("reader", 7)


def test_what_does_not_move_is_aborted_and_what_moves_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.01)
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 0.15)
    silent, deaf, slow, idle = (
        _connect(),
        _connect(),
        _connect(),
        _connect(cycle=_cycle(response_complete=True), timeout_keep_alive_task=object()),
    )
    deaf.transport.unread, slow.transport.unread = 100, 1 << 20
    state = SimpleNamespace(connections={silent, deaf, slow, idle})

    async def run() -> None:
        sweeping = asyncio.create_task(sweep([SimpleNamespace(server_state=state)]))  # type: ignore[list-item]
        for _ in range(40):
            slow.transport.unread -= 1
            await asyncio.sleep(0.01)
        sweeping.cancel()

    asyncio.run(run())
    aborted = [connection for connection in (silent, deaf, slow, idle) if connection.transport.is_aborted]
    assert aborted == [silent, deaf]


def test_uvicorn_has_what_the_server_uses_of_it() -> None:
    """`sweep` and `app.Wrapper` read these; pyproject has the upper bound of the release that was looked at."""

    async def build() -> tuple[H11Protocol, uvicorn.Server]:
        config = uvicorn.Config(lambda *_: None, http="h11", lifespan="off", log_config=None)  # type: ignore[arg-type]
        config.load()
        made = uvicorn.Server(config)
        return H11Protocol(config, made.server_state, {}), made

    connection, made = asyncio.run(build())
    assert made.server_state.connections == set()
    assert {"started", "should_exit", "force_exit"} <= set(vars(made))
    assert callable(made.capture_signals)
    assert {"cycle", "transport", "timeout_keep_alive_task"} <= set(vars(connection))
    names = RequestResponseCycle.__init__.__code__.co_names
    assert {"transport", "response_complete", "more_body"} <= set(names)
    assert RequestResponseCycle.receive.__name__ == "receive"  # whose `__self__.transport` names the peer
