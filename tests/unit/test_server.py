"""Sockets, the claim on a host, TLS files, the sweep, and what is used of uvicorn beyond its documentation."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from meshwright_agent import server
from meshwright_agent.server import (
    CannotListenError,
    HostTakenError,
    claim_host,
    describe_wait,
    find_owner,
    notify_systemd,
    sweep,
)


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


# ---- connections that do not move -----------------------------------------------------------------------------------


class _Transport:
    def __init__(self) -> None:
        self.unread = 0
        self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_aborted

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
    deaf.transport.abort()
    assert describe_wait(deaf) == ("end", 0)


async def test_what_does_not_move_is_aborted_and_what_moves_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_INTERVAL_S", 0.01)
    monkeypatch.setattr(server, "STALL_TIMEOUT_S", 0.15)
    silent, deaf, slow = (_connect() for _ in range(3))
    idle = _connect(cycle=_cycle(response_complete=True), timeout_keep_alive_task=object())
    deaf.transport.unread, slow.transport.unread = 100, 1 << 20
    state = SimpleNamespace(connections={silent, deaf, slow, idle})
    sweeping = asyncio.create_task(sweep([SimpleNamespace(server_state=state)]))  # type: ignore[list-item]
    for _ in range(40):
        slow.transport.unread -= 1
        await asyncio.sleep(0.01)
    sweeping.cancel()
    aborted = [connection for connection in (silent, deaf, slow, idle) if connection.transport.is_aborted]
    assert aborted == [silent, deaf]


async def test_uvicorn_has_what_the_server_uses_of_it() -> None:
    """`sweep` and `app.Wrapper` read these; pyproject has the upper bound of the release that was looked at."""
    config = uvicorn.Config(lambda *_: None, http="h11", lifespan="off", log_config=None)  # type: ignore[arg-type]
    config.load()
    made = uvicorn.Server(config)
    connection = H11Protocol(config, made.server_state, {})
    assert made.server_state.connections == set()
    assert {"started", "should_exit", "force_exit"} <= set(vars(made))
    assert callable(made.capture_signals)
    assert {"cycle", "transport", "timeout_keep_alive_task"} <= set(vars(connection))
    names = RequestResponseCycle.__init__.__code__.co_names
    assert {"transport", "response_complete", "more_body"} <= set(names)
    assert RequestResponseCycle.receive.__name__ == "receive"  # whose `__self__.transport` names the peer


def test_a_kernel_without_ipv6_is_told_what_to_listen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr(server.socket, "socket", refuse)
    with pytest.raises(CannotListenError, match=r"--host 0\.0\.0\.0 without IPv6"):
        server.open_tcp("::", 0)


def test_a_host_root_that_is_none_is_not_taken_for_another_agents(tmp_path: Path) -> None:
    with pytest.raises(CannotListenError, match="is MESHWRIGHT_HOST_ROOT a host's root"), claim_host(tmp_path):
        raise AssertionError


def test_a_process_that_only_has_the_name_of_a_hosts_agent_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(server._name_claim(tmp_path))
        with pytest.raises(HostTakenError, match="belongs to a process that does not listen"), claim_host(tmp_path):
            raise AssertionError


def test_a_hosts_owner_is_found_however_often_it_is_looked_for_and_its_name_is_free_after_it(tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    for _ in range(2):
        with claim_host(tmp_path):
            assert {find_owner(tmp_path) for _ in range(999)} == {(os.getpid(), os.getuid())}
    assert find_owner(tmp_path) == (0, 0)
