"""The server process: its sockets, two uvicorn servers in one loop, TLS, the watchdog, and the shutdown.

TCP and the unix socket each have their own uvicorn server, so that neither can use up all connections. Only TCP uses
TLS. After SIGTERM, /readyz fails, runs are cancelled, requests in progress are answered, and the process exits with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import stat
import struct
import threading
import time
from asyncio import constants
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from meshwright.errors import MeshwrightError
from meshwright_agent.agent import DRAIN_TIMEOUT_S, Agent
from meshwright_agent.auth import UCRED, AccessSettingsError, Authenticator, check_exposure, read_mark
from meshwright_agent.clock import SystemClock
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 512
"""Connections of each server. uvicorn answers further connections with 503."""
STALL_TIMEOUT_S: Final = 10.0
"""How long a request may take to arrive, and an answer may wait for its reader."""
SWEEP_INTERVAL_S: Final = 1.0
KEEP_ALIVE_S: Final = 75
SOCKET_MODE: Final = 0o666
"""Every user may connect: the kernel identifies the peer (`auth.read_peer`)."""
SEND_BUFFER_BYTES: Final = 1 << 17
"""Send buffer of the kernel for each connection, for unread answers. Linux doubles it. Its default is 4 MB."""
MAX_DESCRIPTORS: Final = 65536
PING_INTERVAL_S: Final = 5.0
_BACKLOG: Final = 128


class CannotListenError(MeshwrightError):
    """An address that the agent cannot listen on."""


class HostTakenError(MeshwrightError):
    """Another agent has this host's devices."""


# ---- sockets --------------------------------------------------------------------------------------------------------


def open_tcp(host: str, port: int) -> socket.socket:
    """Returns a TCP socket that listens.

    It names IPPROTO_TCP because asyncio sets TCP_NODELAY only then; without it, answers wait for delayed ACKs.

    Raises:
        CannotListenError: the address is taken, or does not belong to this host.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:  # a name with empty or too long labels
        hint = "; --host 0.0.0.0 without IPv6" if getattr(error, "errno", 0) == errno.EAFNOSUPPORT else ""
        raise CannotListenError(f"cannot listen on {host}:{port}: {error}{hint}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        hint = "; is an agent running already? --port 0 picks a free port" if error.errno == errno.EADDRINUSE else ""
        raise CannotListenError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return sock


def open_unix(path: Path) -> socket.socket:
    """Returns a listening unix socket. The file of an agent that has ended is replaced.

    Raises:
        CannotListenError: a process listens on the path, or the path is another file, or it cannot be created.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _remove_stale(path)
        sock.bind(str(path))
        path.chmod(SOCKET_MODE)
        sock.listen(_BACKLOG)
    except (OSError, CannotListenError) as error:
        sock.close()
        raise CannotListenError(f"cannot listen on unix:{path}: {error}") from error
    return sock


def _remove_stale(path: Path) -> None:
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise CannotListenError("a file that is not a socket stands there; choose another --uds")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.settimeout(1.0)
        probe.connect(str(path))
        raise CannotListenError("another agent answers there; stop it or choose another --uds")
    path.unlink()


def _open_sockets(settings: Settings) -> list[socket.socket]:
    sockets = [open_tcp(settings.host, settings.port)] if settings.host else []
    try:
        sockets += [open_unix(settings.uds)] if settings.uds else []
    except CannotListenError:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise AccessSettingsError("no address to listen on: --host is empty and --uds is not given; give one of them")
    return sockets


def _describe(sock: socket.socket, scheme: str) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix://{os.fspath(sock.getsockname())}"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# ---- one agent per host ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def claim_host(root: Path) -> Iterator[None]:
    """Holds the devices of this host against other agents, as far as the network namespace reaches.

    The claim is the name of an abstract unix socket (unix(7)): it ends with the process and leaves no file.

    Raises:
        HostTakenError: another agent has the devices.
        CannotListenError: the host's /sys cannot be read.
    """
    try:
        name = _name_claim(root)
    except OSError as error:
        raise CannotListenError(f"{root / 'sys'}: {error.strerror}; is MESHWRIGHT_HOST_ROOT a host's root?") from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.bind(name)
        except OSError as error:
            pid, uid = find_owner(root)
            holder = f"process {pid} of user {uid}" if pid else "a process that does not listen (sudo ss -xap)"
            raise HostTakenError(
                f"the name of this host's agent, @{name[1:]}, belongs to {holder}; one agent owns a host: end that "
                "process, or start this agent with --cpu-devices or --simulate, which own no device"
            ) from error
        sock.listen(_BACKLOG)
        dropping = threading.Thread(target=_drop_connections, args=(sock,), daemon=True)
        dropping.start()
        try:
            yield
        finally:
            sock.shutdown(socket.SHUT_RDWR)  # ends the thread, which holds the name
            dropping.join()


def _drop_connections(sock: socket.socket) -> None:
    """Closes each connection of `find_owner`, which only reads who listens: a full queue would refuse the next."""
    with contextlib.suppress(OSError):
        while True:
            sock.accept()[0].close()


def find_owner(root: Path) -> tuple[int, int]:
    """Returns the ids of the process that has the devices of this host and of its user; zeros without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))  # waits if the queue is full
        try:
            asking.connect(_name_claim(root))
            pid, uid, _ = UCRED.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
            return pid, uid
        except OSError:
            return 0, 0


def _name_claim(root: Path) -> str:
    status = (root / "sys").stat()  # one for the host, unlike a container's root
    return f"\0meshwright-agent/{status.st_dev:x}.{status.st_ino:x}"


# ---- TLS ------------------------------------------------------------------------------------------------------------


def load_tls(settings: Settings) -> ssl.SSLContext | None:
    """Returns the TLS context of TCP from its files; None if the settings do not name files.

    With a CA for clients, TLS requests a client certificate. The authenticator requires it, because probes have none.

    Raises:
        AccessSettingsError: a file cannot be read, is not PEM, is encrypted, or the key is not the certificate's.
    """
    certificate, key, client_ca = settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
        if client_ca is not None:
            context.load_verify_locations(cafile=client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = str(getattr(error, "reason", None) or error).lower().replace("_", " ")
        if "mismatch" in reason or "no certificate assigned" in reason:  # the second: of another type
            reason = "the key is not the certificate's"
        elif "pem lib" in reason:
            reason = "a file has no certificate, or no key"
        files = ", ".join(str(path) for path in (certificate, key, client_ca) if path)
        raise AccessSettingsError(
            f"TLS files {files} cannot be used: {reason}; give a certificate (with its chain), its own key without a "
            "passphrase, and the CA of clients, all PEM"
        ) from None
    return context


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")  # else OpenSSL would prompt on the terminal, and wait


def _refresh_tls(settings: Settings, context: ssl.SSLContext, marks: tuple[object, ...]) -> tuple[object, ...]:
    """Uses changed files for new connections, if they can be loaded, and returns their marks.

    asyncio calls `wrap_bio` for each connection, here of a context that has loaded nothing else: a context keeps one
    certificate for each type of key, and the CA that it had.
    """
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    if (found := tuple(map(read_mark, files))) != marks:
        try:
            newest = load_tls(settings)
            assert newest is not None
            context.wrap_bio = newest.wrap_bio  # type: ignore[method-assign]
            log.info("TLS files read: %s", settings.tls_cert_file)
        except AccessSettingsError as error:
            log.error("the certificate before it stays in use: %s", error)
    return found


# ---- stalled connections --------------------------------------------------------------------------------------------


async def sweep(servers: Sequence[uvicorn.Server]) -> None:
    """Aborts connections without progress for `STALL_TIMEOUT_S`: a partial request, or an unread answer.

    uvicorn limits neither. Closed connections are reference cycles, and glibc keeps their memory: after many, both are
    returned at once.
    """
    stalled: dict[Any, tuple[str, int, float]] = {}
    most = 0
    while True:
        await asyncio.sleep(SWEEP_INTERVAL_S)
        now_s, seen, has_aborted = time.monotonic(), {}, False
        connections = [each for server in servers for each in server.server_state.connections]
        for connection in connections:
            what, size = describe_wait(connection)
            if not what:
                continue
            before = stalled.get(connection, (what, size, now_s))
            since_s = before[2] if before[0] == what and size >= before[1] else now_s
            if now_s - since_s < STALL_TIMEOUT_S:
                seen[connection] = (what, size, since_s)
                continue
            connection.transport.abort()
            has_aborted = True
        stalled, most = seen, max(most, len(connections))
        if has_aborted or most - len(connections) > MAX_CONNECTIONS // 8:
            most = len(connections)
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)


def describe_wait(connection: Any) -> tuple[str, int]:
    """Returns what an h11 connection of uvicorn expects from its client ("" for nothing) and the unread bytes."""
    if connection.transport.is_closing():  # over TLS it has no buffer any more
        return "end", 0
    cycle, unread = connection.cycle, connection.transport.get_write_buffer_size()
    if unread:
        return "reader", unread
    if cycle is None:
        return "first request", 0
    if not cycle.response_complete:
        return (f"body {id(cycle)}", 0) if cycle.more_body else ("", 0)
    return ("", 0) if connection.timeout_keep_alive_task is not None else (f"request after {id(cycle)}", 0)


# ---- systemd --------------------------------------------------------------------------------------------------------


def notify_systemd(*fields: str) -> None:
    """Sends fields such as READY=1 to the service manager, if it exists: sd_notify(3). Never fails."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.sendto("\n".join(fields).encode(), "\0" + address[1:] if address[0] == "@" else address)


async def _ping_systemd(agent: Agent) -> None:
    """Pings from the event loop only, so that systemd kills and restarts a process whose event loop hangs."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    interval_s = min(PING_INTERVAL_S, int(usec) / 2e6) if usec.isdecimal() and int(usec) else PING_INTERVAL_S
    while True:
        notify_systemd("WATCHDOG=1", f"STATUS={' '.join(agent.readiness()[1].split())}")
        await asyncio.sleep(interval_s)


# ---- serving --------------------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """A uvicorn server that shares its loop with another one. `_serve` handles the signals of both."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    settings: Settings,
    build_app: Callable[[Agent, Authenticator], ASGIApp],
    authenticator: Authenticator,
    *,
    on_listening: Callable[[list[str]], None],
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        build_app: returns the application of an agent.
        on_listening: receives the addresses once they accept requests.

    Raises:
        CannotListenError: an address is taken.
        AccessSettingsError: other hosts could reach the agent without a token, or TLS files are wrong.
        StoreUnavailableError: the state directory cannot be used.
    """
    check_exposure(settings)
    context = load_tls(settings)
    logging.getLogger("uvicorn.error").addFilter(lambda line: "WebSocket library" not in line.msg)  # none would help
    constants.SSL_HANDSHAKE_TIMEOUT = STALL_TIMEOUT_S  # uvicorn does not pass one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY:
        most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    sockets = _open_sockets(settings)
    own = read_mark(settings.uds)
    try:
        asyncio.run(_serve(settings, build_app, authenticator, sockets, context, on_listening))
    finally:
        if settings.uds and read_mark(settings.uds) == own:  # not the socket of an agent that started meanwhile
            settings.uds.unlink(missing_ok=True)


async def _serve(
    settings: Settings,
    build_app: Callable[[Agent, Authenticator], ASGIApp],
    authenticator: Authenticator,
    sockets: list[socket.socket],
    context: ssl.SSLContext | None,
    on_listening: Callable[[list[str]], None],
) -> None:
    async with Store.open(settings.database_path, clock=SystemClock()) as store, contextlib.AsyncExitStack() as stack:
        agent = Agent(settings, store)
        app = build_app(agent, authenticator)
        servers = [_build_server(app, sock, context, has_lifespan=sock is sockets[0]) for sock in sockets]
        stack.push_async_callback(agent.close)
        await agent.start()
        gc.collect()
        gc.freeze()  # the collector skips code, tables and stored data
        _handle_signals(agent, servers)
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(server.serve([sock])) for server, sock in zip(servers, sockets, strict=True)]
            while not all(server.started or server.should_exit for server in servers):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if not agent.draining:
                on_listening([_describe(sock, "https" if context else "http") for sock in sockets])
                notify_systemd("READY=1", f"STATUS={agent.readiness()[1]}")
            keeping = [
                group.create_task(sweep(servers)),
                group.create_task(_refresh(authenticator, settings, context)),
                group.create_task(_ping_systemd(agent)),
            ]
            await asyncio.wait(serving)
            for task in keeping:
                task.cancel()
            for server in servers if any(server.force_exit for server in servers) else ():
                with contextlib.suppress(TimeoutError):  # uvicorn leaves it out, and logs a traceback at its end
                    await asyncio.wait_for(server.lifespan.shutdown(), 1.0)


def _build_server(app: ASGIApp, sock: socket.socket, context: ssl.SSLContext | None, *, has_lifespan: bool) -> _Server:
    """Returns the server of one socket. One of the servers runs FastAPI's lifespan, which sets up tracing."""
    tls = None if sock.family == socket.AF_UNIX else context
    return _Server(
        uvicorn.Config(
            app,
            http="h11",  # httptools does not limit headers
            ws="none",
            loop="asyncio",
            lifespan="on" if has_lifespan else "off",
            access_log=False,
            log_config=None,
            log_level="warning",  # the agent logs its addresses itself
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            backlog=_BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(DRAIN_TIMEOUT_S),
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
    )


async def _refresh(authenticator: Authenticator, settings: Settings, context: ssl.SSLContext | None) -> None:
    """Reloads changed tokens and certificates once a second. Runs in a thread, because a file server may hang."""
    marks: tuple[object, ...] = ()
    while True:
        await asyncio.to_thread(authenticator.refresh)
        if context is not None:
            marks = await asyncio.to_thread(_refresh_tls, settings, context, marks)
        await asyncio.sleep(1.0)


def _handle_signals(agent: Agent, servers: Sequence[uvicorn.Server]) -> None:
    """Handles SIGTERM, SIGINT and SIGHUP: the first drains, then stops; the second stops at once."""
    draining: list[asyncio.Task[None]] = []

    async def drain() -> None:
        notify_systemd("STOPPING=1", "STATUS=draining")
        try:
            await asyncio.wait_for(agent.drain(), DRAIN_TIMEOUT_S)
        except Exception:
            log.exception("draining did not end within %s s", DRAIN_TIMEOUT_S)
        for server in servers:
            server.should_exit = True

    def stop() -> None:
        for server in servers if draining else ():
            server.should_exit = server.force_exit = True
        if not draining:
            draining.append(asyncio.create_task(drain()))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # by nohup
            asyncio.get_running_loop().add_signal_handler(number, stop)
