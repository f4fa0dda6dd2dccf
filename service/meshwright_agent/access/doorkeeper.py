"""The doorkeeper: says of each request who sent it, or why it is not answered. Joins hosts, tokens and peers.

Rule: microseconds a request, nothing that blocks: files are looked at once a second by a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from meshwright.errors import ForbiddenError, HostNotAllowedError, InvalidRequestError, UnauthorizedError
from meshwright_agent.access.callers import Caller
from meshwright_agent.access.credentials import parse_authorization
from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.hosts import HostNames, parse_allowed, parse_host, parse_origin
from meshwright_agent.access.peers import UNKNOWN, Peer
from meshwright_agent.access.scopes import SAFE_METHODS, Scope
from meshwright_agent.access.tls import TurningContext, watch_tls_files
from meshwright_agent.access.token_file import read_token_file
from meshwright_agent.access.tokens import Token, Tokens
from meshwright_agent.access.watched import Watched
from meshwright_agent.clock import Clock
from meshwright_agent.settings import Settings

log = logging.getLogger(__name__)

COMPONENT: Final = "access"
LOOK_INTERVAL_S: Final = 1.0
REPORT_INTERVAL_S: Final = 10.0
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""What probes ask without a token."""
METRICS_PATH: Final = "/metrics"
MOST_REMEMBERED: Final = 1024
MOST_RECENT: Final = 256
"""Good headers that are known again by their SHA-256, without the search: nobody can ask for one that he has not."""

CHALLENGE: Final = 'Bearer, Basic realm="meshwright"'
"""WWW-Authenticate of a 401: programs send Bearer, a browser asks its user for Basic."""
PEER_KEY: Final = "meshwright.peer"
"""Where the connection leaves its `Peer` in an ASGI scope."""

_TOKEN_HINT: Final = "send `Authorization: Bearer TOKEN`; the client reads MESHWRIGHT_TOKEN or MESHWRIGHT_TOKEN_FILE"
_UDS_HINT: Final = "raise MESHWRIGHT_UDS_SCOPE on the agent, or send a token of a larger scope"


class Report(Protocol):
    """Puts a component on the health board."""

    def __call__(self, name: str, state: Any, reason: str, *, at: datetime, action: str = "") -> None:
        """Keeps what was seen, and when."""


class Doorkeeper:
    """Who may, for one agent.

    Raises:
        AccessSettingsError: a file of the settings cannot be used, or a name that it should answer to.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._open = OPEN_PATHS | ({METRICS_PATH} if settings.public_metrics else set())
        own = (settings.host, socket.gethostname(), socket.gethostname().split(".")[0])
        self._hosts = HostNames([*own, *_read_allowed(settings)])
        self._tokens = _watch_tokens(settings)
        self._tls = _watch_tls(settings)
        self._needs_certificate = settings.tls_client_ca_file is not None
        self._known_hosts: set[tuple[bytes, str | None]] = set()
        self._callers: dict[tuple[str, Scope], Caller] = {}
        self._recent: dict[bytes, tuple[Token, Caller]] = {}
        self._recent_of: Tokens | None = None
        self._stopping = threading.Event()
        self._looked_at: datetime | None = None

    # ---- a request -------------------------------------------------------------------------------------------------

    def admit(self, scope: Mapping[str, Any]) -> Caller:
        """Returns who sent a request (an ASGI scope of type http).

        Raises:
            InvalidRequestError: it has no Host, two, or one that is none (400).
            HostNotAllowedError: it means another host.
            ForbiddenError: it comes from a page of another site.
            UnauthorizedError: it needs a token or a client certificate, and shows none that is good.
        """
        peer: Peer = scope.get(PEER_KEY) or _read_client(scope)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            _check_one_host(scope["headers"])
        if not peer.is_unix:
            self._check_host(scope, headers.get(b"host"))
            if scope["method"] not in SAFE_METHODS:
                check_site(scope)
        if scope["path"] in self._open:
            return self._know(peer.name, "read")
        if self._needs_certificate and not (peer.has_certificate or peer.is_unix):
            raise UnauthorizedError(
                "no client certificate was shown; this agent asks for one",
                hint="give MESHWRIGHT_CLIENT_CERT_FILE and MESHWRIGHT_CLIENT_KEY_FILE (curl: --cert, --key)",
            )
        return self._identify(peer, headers.get(b"authorization"))

    def name_peer(self, scope: Mapping[str, Any]) -> str:
        """Returns who sent a request that was not admitted, as far as the connection knows."""
        peer: Peer = scope.get(PEER_KEY) or _read_client(scope)
        return peer.name

    def _identify(self, peer: Peer, authorization: bytes | None) -> Caller:
        if self._tokens is None:
            return self._know(peer.name, self._settings.uds_scope if peer.is_unix else "admin")
        if authorization is not None:
            return self._find_token(self._tokens.value, authorization)
        if peer.is_unix:
            return self._know(peer.name, self._settings.uds_scope)
        raise UnauthorizedError("no token was sent; this agent asks for one", hint=_TOKEN_HINT)

    def _find_token(self, tokens: Tokens, authorization: bytes) -> Caller:
        if tokens is not self._recent_of:
            self._recent, self._recent_of = {}, tokens
        key = hashlib.sha256(authorization).digest()
        if (recent := self._recent.get(key)) is not None:
            token, caller = recent
            if token.expires is None or not token.is_expired(self._clock.now()):
                return caller
        token, caller = self._search_token(tokens, authorization)
        if len(self._recent) >= MOST_RECENT:
            self._recent.clear()
        self._recent[key] = token, caller
        return caller

    def _search_token(self, tokens: Tokens, authorization: bytes) -> tuple[Token, Caller]:
        try:
            token = tokens.find(parse_authorization(authorization), self._clock.now)
        except ValueError as error:
            raise UnauthorizedError(str(error), hint=_TOKEN_HINT) from None
        if token is None:
            raise UnauthorizedError(
                "the token is not one that this agent knows, or its time is over",
                hint="ask the agent's operator: `meshwright-agent token list` shows names, scopes and times",
            )
        return token, self._know(f"token:{token.name}", token.scope)

    def _know(self, name: str, scope: Scope) -> Caller:
        key = (name, scope)
        if (caller := self._callers.get(key)) is not None:
            return caller
        if len(self._callers) >= MOST_REMEMBERED:
            self._callers.clear()
        hint = {"how_to_rise": _UDS_HINT} if name.startswith("uid:") else {}
        return self._callers.setdefault(key, Caller(name, scope, **hint))

    def _check_host(self, scope: Mapping[str, Any], value: bytes | None) -> None:
        local = (scope.get("server") or (None,))[0]
        if (value, local) in self._known_hosts:
            return
        if value is None:
            if scope.get("http_version") == "1.0":
                return  # had no Host yet; a browser always sends it
            raise InvalidRequestError("the request has no Host header", status=400, hint="send Host: NAME or NAME:PORT")
        named = parse_host(value)
        if named is None:
            raise InvalidRequestError("the Host header is no host", status=400, hint="send Host: NAME or NAME:PORT")
        if not self._hosts.takes(named[0], local):
            raise HostNotAllowedError(
                f"this agent does not answer to the host {named[0]}",
                hint="ask by its address or host name; another name of its own belongs into MESHWRIGHT_ALLOWED_HOSTS",
            )
        if len(self._known_hosts) >= MOST_REMEMBERED:
            self._known_hosts.clear()
        self._known_hosts.add((value, local))

    # ---- files -----------------------------------------------------------------------------------------------------

    @property
    def is_watched(self) -> bool:
        """Whether there are files that may change, and so a component on the health board."""
        return self._tokens is not None or self._tls is not None

    def tls_context(self, tell: Callable[[ssl.SSLError], None] = lambda error: None) -> TurningContext | None:
        """Returns the TLS of TCP sockets, always as the files have it; None where the agent speaks plain HTTP.

        Args:
            tell: hears of each handshake that OpenSSL ends.
        """
        watched = self._tls
        return None if watched is None else TurningContext.over(lambda: watched.value, tell)

    def start(self) -> None:
        """Begins to look at the files, in a daemon thread: one that hangs (a dead file server) holds up nobody."""
        threading.Thread(target=self._look, name="access", daemon=True).start()

    def close(self) -> None:
        """Ends the looking."""
        self._stopping.set()

    def _look(self) -> None:
        with contextlib.suppress(OSError, UnicodeError):  # a name that IDNA does not take
            self._hosts.add(socket.getfqdn())  # may ask a name server: so here, and once
        while True:
            try:
                self.refresh()
            except Exception:
                log.exception("a look at the files of tokens and certificates failed")
            if not self.is_watched or self._stopping.wait(LOOK_INTERVAL_S):
                return

    def refresh(self) -> None:
        """Reads what has changed since; called by the thread."""
        for watched in (self._tokens, self._tls):
            if watched is not None:
                watched.refresh()
        self._looked_at = self._clock.now()

    async def tell(self, report: Report) -> None:
        """Keeps `access` on the health board: at each change, else every 10 s."""
        told: tuple[str, str] | None = None
        told_s = 0.0
        while self.is_watched:
            if (looked_at := self._looked_at) is not None:
                now_s = self._clock.monotonic()
                is_due = now_s - told_s >= REPORT_INTERVAL_S
                told_s = now_s if is_due else told_s
                state, reason, action = self.condition()
                if is_due or told != (state, reason):
                    report(COMPONENT, state, reason, at=looked_at, action=action)
                    told = state, reason
            await asyncio.sleep(LOOK_INTERVAL_S)

    def condition(self) -> tuple[str, str, str]:
        """Returns state, reason and action of the component `access`."""
        failures = [one.failure for one in (self._tokens, self._tls) if one is not None and one.failure]
        if failures:
            return "degraded", f"{'; '.join(failures)}; the last good one stays", "mend the file; it is read again"
        if self._tokens is not None:
            now = self._clock.now()
            good = [token for token in self._tokens.value.all if not token.is_expired(now)]
            if not good:
                action = "meshwright-agent token add NAME --scope operate"
                return "degraded", "no token is valid: nobody can ask over TCP", action
            return "healthy", f"{len(good)} tokens are valid", ""
        return "healthy", "the certificates can be used", ""


def _read_allowed(settings: Settings) -> tuple[str, ...]:
    try:
        return parse_allowed(settings.allowed_hosts)
    except ValueError as error:
        raise AccessSettingsError(f"allowed_hosts (MESHWRIGHT_ALLOWED_HOSTS): {error}") from None


def _watch_tokens(settings: Settings) -> Watched[Tokens] | None:
    path = settings.tokens_file
    return None if path is None else Watched("tokens file", [path], lambda: read_token_file(path))


def _watch_tls(settings: Settings) -> Watched[ssl.SSLContext] | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    return watch_tls_files(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)


def _read_client(scope: Mapping[str, Any]) -> Peer:
    """Returns the peer as ASGI has it, for servers that tell no more."""
    client = scope.get("client")
    return Peer(f"addr:{client[0]}") if client else UNKNOWN


def _check_one_host(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Refuses a second Host: a proxy may have gone by the first (RFC 9112 §3.2)."""
    if sum(name == b"host" for name, _ in headers) > 1:
        raise InvalidRequestError("the request has two Host headers", status=400, hint="send Host once")


def check_site(scope: Mapping[str, Any]) -> None:
    """Refuses what a browser sends for a page of another site; programs send neither header, and no browser a socket.

    The gate asks for whatever changes something, routes for what is a GET and costs work.

    Raises:
        ForbiddenError: such a page sent it.

    Source: https://www.w3.org/TR/fetch-metadata/ (Sec-Fetch-Site), RFC 6454 §7 (Origin).
    """
    if (scope.get(PEER_KEY) or UNKNOWN).is_unix:
        return
    headers: dict[bytes, bytes] = dict(scope["headers"])
    site = headers.get(b"sec-fetch-site", b"none")
    origin = headers.get(b"origin")
    if site in (b"cross-site", b"same-site") or (
        origin is not None and parse_origin(origin) != parse_host(headers.get(b"host", b""))
    ):
        raise ForbiddenError(
            "the request was sent by a page of another site (Origin, Sec-Fetch-Site)",
            hint="send it from the agent's own page, or from a program, which sends neither header",
        )
