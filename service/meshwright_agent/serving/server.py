"""The server: sockets made as they must be, one uvicorn process, and a shutdown that says so first.

Rule: SIGTERM flips /readyz, ends runs as cancelled, answers what is under way, and exits 0. Knows nothing of routes.
TLS is spoken on TCP only: on the unix socket the kernel says who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import signal
import socket
import ssl
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from meshwright.errors import MeshwrightError
from meshwright_agent.access.doorkeeper import Doorkeeper
from meshwright_agent.access.exposure import check_exposure
from meshwright_agent.access.tls import say_failure
from meshwright_agent.agent import DRAIN_TIMEOUT_S, Agent
from meshwright_agent.clock import Clock, SystemClock
from meshwright_agent.descriptors import OWN, fit_connections, raise_descriptor_limit
from meshwright_agent.serving.accepting import ACCEPTED_FROM, REFUSING, Listener, Room
from meshwright_agent.serving.ahead import read_ahead, spare_collector
from meshwright_agent.serving.connections import Connection, Limits
from meshwright_agent.serving.notify import Notifier
from meshwright_agent.serving.refused import RefusalLines, RefusedConnections
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store

log = logging.getLogger(__name__)
BACKLOG = 2048
SEND_BUFFER_BYTES = 1 << 17
"""What the kernel keeps of an answer that nobody reads, for each connection; Linux doubles it. Else it is 4 MB,
and the agent wrote for minutes into 200 event streams that nobody read."""
ACCEPTS_A_TURN = 1
"""Connections that asyncio takes in one turn of its loop. Without descriptors it fails as often as this, each time with
a traceback and a retry of its own (CPython 3.11 to 3.13, `_accept_connection`): with 2048 the loop stood still."""
SHUTDOWN_LIMIT_S = 2.0
"""How long a TLS connection may take to say goodbye."""


class CannotListenError(MeshwrightError):
    """An address that the agent cannot listen on."""


def open_tcp(host: str, port: int) -> socket.socket:
    """Returns a TCP socket that listens: what connects before the agent has started waits for it.

    It listens at once because two sockets with SO_REUSEADDR can be bound to one port while neither listens.

    Made with IPPROTO_TCP on purpose: asyncio sets TCP_NODELAY only on sockets that say their protocol, and without it
    a kept-alive connection waits for delayed ACKs (183 requests/s instead of 10,000).

    Raises:
        CannotListenError: the address is taken, or is none of this host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:  # a name that is none: empty or too long labels
        raise CannotListenError(f"cannot listen on {host}:{port}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # what is accepted has it too
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        message = (
            f"cannot listen on {host}:{port}: {error.strerror}; is an agent running already? --port 0 picks a free port"
        )
        raise CannotListenError(message) from error
    return sock


def open_unix(path: Path, mode: int = 0o660) -> socket.socket:
    """Returns a unix socket that listens; a stale file is removed, one that somebody listens on is not.

    Args:
        path: where it stands.
        mode: the permissions of its file: who may write it may connect (unix(7)).

    Raises:
        CannotListenError: somebody listens there, or the path is something else, or cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _remove_stale(path)
        return _bind_unix(path, mode)
    except OSError as error:
        raise CannotListenError(f"cannot listen on unix:{path}: {error}") from error


def _bind_unix(path: Path, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(mode)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def identify_file(path: Path) -> tuple[int, int] | None:
    """Returns what tells a file from another at the same path; None: none is there."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _remove_stale(path: Path) -> None:
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise CannotListenError(
            f"cannot listen on unix:{path}: a file that is no socket stands there; choose another --uds"
        )
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe,
        contextlib.suppress(ConnectionRefusedError),
    ):
        probe.settimeout(1.0)
        probe.connect(str(path))
        raise CannotListenError(
            f"cannot listen on unix:{path}: another agent answers there; stop it or choose another --uds"
        )
    path.unlink()


class AgentServer(uvicorn.Server):
    """uvicorn, drained before it stops."""

    def __init__(
        self,
        config: uvicorn.Config,
        agent: Agent,
        on_listening: Callable[[], None],
        lines: RefusalLines | None = None,
    ) -> None:
        super().__init__(config)
        self._agent = agent
        self._lines = lines or RefusalLines()
        self._on_listening = on_listening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._notifier = Notifier(os.environ, lambda: agent.readiness())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the agent, then listens; the agent first, so that its error is raised here and not only logged."""
        self._loop = asyncio.get_running_loop()
        await read_ahead()
        await self._agent.start()
        spare_collector()
        context = self._agent.doorkeeper.tls_context(self._tell_failure)
        secret = [sock for sock in sockets or () if context is not None and sock.family != socket.AF_UNIX]
        await super().startup([sock for sock in sockets or () if sock not in secret])
        self.servers += [await self._listen(sock, context) for sock in secret]
        for sock in sockets or ():
            sock.listen(BACKLOG)  # asyncio has listened with the number of its turns
        if not self.should_exit:
            self._on_listening()
            self._notifier.begin()

    def _tell_failure(self, error: ssl.SSLError) -> None:
        """Says why a handshake failed; `Room` counts it when its socket is closed."""
        self._lines.tell("handshake", ACCEPTED_FROM.get(), say_failure(error))

    async def _listen(self, sock: socket.socket, context: ssl.SSLContext | None) -> asyncio.Server:
        """Returns a server that speaks TLS. Ours and not uvicorn's, which bounds no handshake (asyncio: 60 s)."""
        make_protocol: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        make = functools.partial(
            make_protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        limit_s = self._agent.settings.header_timeout_s
        return await asyncio.get_running_loop().create_server(
            make,
            sock=sock,
            ssl=context,
            backlog=ACCEPTS_A_TURN,
            ssl_handshake_timeout=limit_s,
            ssl_shutdown_timeout=min(limit_s, SHUTDOWN_LIMIT_S),
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain, then stop. Second: stop at once."""
        if self._loop is None or self._draining is not None:
            super().handle_exit(sig, frame)
            return
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
            self._notifier.begin_stopping()

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self._agent.drain(), DRAIN_TIMEOUT_S)
        except Exception:
            log.exception("draining did not end within %s s", DRAIN_TIMEOUT_S)
        finally:
            self.should_exit = True


def serve(
    settings: Settings,
    build_app: Callable[[Agent], ASGIApp],
    *,
    on_listening: Callable[[list[str]], None],
    refused: RefusedConnections | None = None,
    clock: Clock | None = None,
) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit status: 0, or 1 if the agent could not start.

    Args:
        settings: of the agent.
        build_app: returns what answers the requests, and leads the agent's life.
        on_listening: gets the addresses once they answer.
        refused: where connections are counted that end without a request.
        clock: the agent's; None: the machine's.

    Raises:
        CannotListenError: an address is taken.
        AccessSettingsError: others could reach the agent, and it would ask them for nothing.
        StoreUnavailableError: the state directory cannot be used.
    """
    check_exposure(settings)
    clock = clock or SystemClock()
    doorkeeper = Doorkeeper(settings, clock)
    limits = Limits.of(settings, connections=_fit_connections(settings.connection_limit))
    room = Room(limits.connections + REFUSING, Counter() if refused is None else refused)
    sockets: list[socket.socket] = [Listener.over(sock, room) for sock in _open_sockets(settings)]
    own = identify_file(settings.uds) if settings.uds else None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)  # uvicorn raises the signal again after its shutdown: exit 0, not 143
    try:
        has_started = asyncio.run(_serve(settings, build_app, sockets, limits, room, on_listening, doorkeeper, clock))
    finally:
        if settings.uds and identify_file(settings.uds) == own:  # and not of one that has begun while this one drained
            settings.uds.unlink(missing_ok=True)
    sys.stdout.flush()
    return 0 if has_started else 1


async def _serve(
    settings: Settings,
    build_app: Callable[[Agent], ASGIApp],
    sockets: list[socket.socket],
    limits: Limits,
    room: Room,
    on_listening: Callable[[list[str]], None],
    doorkeeper: Doorkeeper,
    clock: Clock,
) -> bool:
    """Opens the store, then serves an agent with it; returns whether it has started."""
    addresses = [_describe(sock, "http" if settings.tls_cert_file is None else "https") for sock in sockets]
    async with Store.open(settings.database_path, clock=clock) as store:
        agent = Agent(settings, store, doorkeeper=doorkeeper, clock=clock)
        config = _build_config(build_app(agent), limits, room)
        server = AgentServer(config, agent, lambda: on_listening(addresses), room.lines)
        agent.count_connections = lambda: len(server.server_state.connections)
        await server.serve(sockets=sockets)
    return server.started


def _build_config(app: ASGIApp, limits: Limits, room: Room) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(Connection, limits=limits, room=room),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=ACCEPTS_A_TURN,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(DRAIN_TIMEOUT_S),
    )


def _fit_connections(wanted: int) -> int:
    """Returns how many connections there may be; says so where these are fewer than the settings want."""
    descriptors = raise_descriptor_limit()
    most = fit_connections(wanted, descriptors)
    if most < wanted:
        log.warning(
            "at most %d connections, and not the %d of MESHWRIGHT_CONNECTION_LIMIT: this process may have %d file "
            "descriptors, and keeps %d for its children and files; raise LimitNOFILE (systemd) or ulimit -n to %d",
            *(most, wanted, descriptors, OWN, wanted + OWN),
        )
    return most


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler rather than SIG_IGN, which children would inherit."""


def _open_sockets(settings: Settings) -> list[socket.socket]:
    sockets = [open_tcp(settings.host, settings.port)] if settings.host else []
    try:
        sockets += [open_unix(settings.uds, int(settings.uds_mode, 8))] if settings.uds else []
    except CannotListenError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise CannotListenError("no address to listen on: --host is empty and --uds is not given; give one of them")
    return sockets


def _describe(sock: socket.socket, scheme: str) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix://{os.fspath(sock.getsockname())}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
