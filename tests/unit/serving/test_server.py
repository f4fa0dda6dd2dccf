"""The sockets as they are made; the life of the whole server is told in tests/process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from meshwright_agent.serving.server import (
    SEND_BUFFER_BYTES,
    AgentServer,
    CannotListenError,
    open_tcp,
    open_unix,
    serve,
)
from meshwright_agent.settings import Settings


@contextmanager
def closing(sock: socket.socket) -> Iterator[socket.socket]:
    with sock:
        yield sock


# ---- TCP ------------------------------------------------------------------------------------------------------------


def test_a_tcp_socket_says_its_protocol_so_that_asyncio_sets_nodelay() -> None:
    async def serve_one(sock: socket.socket) -> int:
        nodelay: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            nodelay.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(greet, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            await nodelay
            writer.close()
            await writer.wait_closed()
        return nodelay.result()

    with closing(open_tcp("127.0.0.1", 0)) as sock:
        assert sock.proto == socket.IPPROTO_TCP
        assert asyncio.run(asyncio.wait_for(serve_one(sock), 20)) != 0


def test_the_kernel_keeps_little_of_what_a_connection_does_not_read() -> None:
    with (
        closing(open_tcp("127.0.0.1", 0)) as sock,
        closing(socket.create_connection(sock.getsockname(), 20)),
        closing(sock.accept()[0]) as accepted,
    ):
        accepted.setblocking(False)
        written = 0
        with contextlib.suppress(BlockingIOError):
            while written < 1 << 24:
                written += accepted.send(bytes(1 << 16))
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER_BYTES
        assert written < 1 << 24


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_port_0_is_a_free_port_of_either_family(host: str, family: int) -> None:
    with closing(open_tcp(host, 0)) as sock:
        assert sock.family == family
        assert sock.getsockname()[1] > 0


def test_a_port_that_was_just_used_can_be_used_again() -> None:
    with closing(open_tcp("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            sock.accept()[0].close()  # the server's side closes first: TIME_WAIT is on its port
    with closing(open_tcp("127.0.0.1", port)) as again:
        assert again.getsockname()[1] == port


def test_a_port_that_is_taken_is_refused_even_before_the_other_answers() -> None:
    with closing(open_tcp("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(CannotListenError) as caught:
            open_tcp("127.0.0.1", port)
    for words in (f"127.0.0.1:{port}", "already in use", "is an agent running already", "--port 0"):
        assert words in str(caught.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid", "1.2.3.4.5", "fe80::zz"])
def test_an_address_that_is_none_of_this_host_is_refused(host: str) -> None:
    with pytest.raises(CannotListenError, match="cannot listen on"):
        open_tcp(host, 0)


# ---- unix -----------------------------------------------------------------------------------------------------------


def test_a_unix_socket_answers_at_once_and_is_for_owner_and_group_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folders" / "agent.sock"
    with closing(open_unix(path)) as sock:
        assert sock.family == socket.AF_UNIX
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_socket_left_by_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    open_unix(path).close()
    assert path.exists()
    with closing(open_unix(path)) as sock, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        sock.accept()[0].close()


def test_a_socket_on_which_another_agent_listens_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with closing(open_unix(path)):
        with pytest.raises(CannotListenError, match=r"another agent answers there; stop it or choose another --uds"):
            open_unix(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_another_agents_socket_with_a_full_queue_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as first:
        other.bind(str(path))
        other.listen(0)
        first.connect(str(path))
        with pytest.raises(CannotListenError):
            open_unix(path)
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_a_path_at_which_something_else_stands_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "agent.sock"
    match kind:
        case "file":
            path.write_text("precious")
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(path)
    with pytest.raises(CannotListenError, match="no socket stands there"):
        open_unix(path)
    assert path.exists()


def test_a_link_to_nowhere_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CannotListenError):
        open_unix(path)
    assert path.is_symlink()


def test_a_path_that_is_too_long_for_a_socket_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(CannotListenError, match="too long"):
        open_unix(tmp_path / ("x" * 200))


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotListenError, match="cannot listen on unix:"):
        open_unix(tmp_path / "file" / "agent.sock")


# ---- the server -----------------------------------------------------------------------------------------------------


async def _never(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("nothing is served here")


def _fail(addresses: list[str]) -> None:
    raise AssertionError("nothing listens here")


def test_without_any_address_there_is_nothing_to_serve() -> None:
    settings = Settings(host="")
    with pytest.raises(CannotListenError, match="--host is empty and --uds is not given"):
        serve(settings, lambda agent: _never, on_listening=_fail)


def test_a_unix_socket_that_cannot_be_had_gives_the_port_back(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with closing(open_tcp("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = Settings(port=port, uds=tmp_path / "taken")
    with pytest.raises(CannotListenError, match="no socket stands there"):
        serve(settings, lambda agent: _never, on_listening=_fail)
    with closing(open_tcp("127.0.0.1", port)):
        assert (tmp_path / "taken").exists()


def test_what_is_there_when_the_agent_has_started_is_walked_by_the_collector_no_more() -> None:
    class Agent(_DrainingAgent):
        async def start(self) -> None:
            self.kept = [{"number": number} for number in range(1000)]

    async def start(agent: Agent) -> int:
        agent.doorkeeper = SimpleNamespace(tls_context=lambda tell: None)  # type: ignore[attr-defined]
        agent.readiness = lambda: (True, "ready")  # type: ignore[attr-defined]
        config = uvicorn.Config(_never, log_config=None, lifespan="off")
        config.load()
        server = AgentServer(config, agent, lambda: None)  # type: ignore[arg-type]
        server.lifespan = config.lifespan_class(config)
        await server.startup([])
        return gc.get_freeze_count()

    try:
        assert asyncio.run(asyncio.wait_for(start(Agent(_end_at_once)), 20)) > 1000
    finally:
        gc.unfreeze()


class _DrainingAgent:
    """An agent whose drain does what the test says."""

    def __init__(self, drain: Any) -> None:
        self.drains = 0
        self._drain = drain

    async def drain(self) -> None:
        self.drains += 1
        await self._drain()


def _signal_and_wait(agent: _DrainingAgent, signals: int = 1) -> AgentServer:
    server = AgentServer(uvicorn.Config(_never, log_config=None), agent, lambda: None)  # type: ignore[arg-type]

    async def run() -> None:
        server._loop = asyncio.get_running_loop()
        for _ in range(signals):
            server.handle_exit(signal.SIGTERM, None)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert server._draining is not None
        if signals == 1:
            await server._draining

    asyncio.run(asyncio.wait_for(run(), 20))
    return server


async def _end_at_once() -> None:
    return None


async def _hang() -> None:
    await asyncio.Event().wait()


async def _break() -> None:
    raise RuntimeError("the store is gone")


def test_a_signal_drains_the_agent_first_and_stops_then() -> None:
    agent = _DrainingAgent(_end_at_once)
    server = _signal_and_wait(agent)
    assert (agent.drains, server.force_exit) == (1, False)


@pytest.mark.parametrize("drain", [_hang, _break])
def test_a_drain_that_hangs_or_fails_does_not_keep_the_server(
    drain: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright_agent.serving.server.DRAIN_TIMEOUT_S", 0.05)
    with caplog.at_level(logging.ERROR):
        server = _signal_and_wait(_DrainingAgent(drain))
    assert server.should_exit
    assert "draining did not end" in caplog.text


def test_a_second_signal_stops_at_once() -> None:
    agent = _DrainingAgent(_hang)
    server = _signal_and_wait(agent, signals=2)
    assert (agent.drains, server.should_exit) == (1, True)
