"""Access control: tokens and scopes, peers of the unix socket, the Host and Origin checks, and the audit log.

Each scope includes the scopes before it: `read` < `operate` (benches, preflights, leases, releases, cancels) < `admin`
(acknowledgements, leases of others). The token file holds only the hash of a token. Log lines and errors never contain
a token. SHA-256 without a salt is enough because a token has 256 random bits.
"""

from __future__ import annotations

import contextlib
import grp
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import pwd
import re
import secrets
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer, SecurityScopes
from starlette.datastructures import Headers

from meshwright.errors import ForbiddenError, InvalidRequestError, MeshwrightError, UnauthorizedError
from meshwright_agent.clock import Clock
from meshwright_agent.settings import Settings

Scope = Literal["read", "operate", "admin"]

log = logging.getLogger(__name__)
audit = logging.getLogger("meshwright.audit")
audit.setLevel(logging.INFO)  # MESHWRIGHT_LOG_LEVEL=warning does not silence it

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
CHALLENGE: Final = 'Bearer, Basic realm="meshwright"'
"""WWW-Authenticate of a 401: programs send Bearer, and a browser prompts its user for Basic."""
MAX_TOKEN_FILE_BYTES: Final = 1 << 20

_TOKEN_HINT: Final = "send `Authorization: Bearer TOKEN`; the client reads MESHWRIGHT_TOKEN or MESHWRIGHT_TOKEN_FILE"
_LINE_FORM: Final = "name scope sha256:<64 hex digits> [expires=2027-01-31T00:00:00Z]"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DEFAULT_GROUP: Final = "@meshwright"
"""The group in the default of MESHWRIGHT_UDS_ADMINS. It exists only if the operator creates it."""
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_DURATION: Final = re.compile(r"([1-9][0-9]{0,5})(s|min|h|d)")
_SECONDS: Final = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_PLAIN: Final = re.compile(r"[A-Za-z0-9._:/@{}\[\]+-]+")
UCRED: Final = struct.Struct("3i")
"""pid, uid, gid of SO_PEERCRED: unix(7)."""
_SO_PEERGROUPS: Final = 59
"""The supplementary groups of a peer; Python does not name it. Source: include/uapi/asm-generic/socket.h."""
_MAX_GROUP_BYTES: Final = 1024
"""The limit of Python's getsockopt: 256 groups. A peer with more has only its user and its first group."""


class AccessSettingsError(MeshwrightError):
    """A token file, certificate or address with which an agent must not start. The text names a value that works."""


# ---- tokens ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A line of the token file. `digest` is the SHA-256 of the secret, 32 bytes; `expires` None: never."""

    name: str
    scope: Scope
    digest: bytes
    expires: datetime | None = None

    def __str__(self) -> str:
        line = f"{self.name} {self.scope} sha256:{self.digest.hex()}"
        return f"{line} expires={self.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if self.expires else line


def make_token(name: str, scope: str, expires: datetime | None = None) -> tuple[str, Token]:
    """Returns a new secret and its token.

    Raises:
        ValueError: the name or the scope is not valid in a token file.
    """
    secret = f"mw_{secrets.token_urlsafe(32)}"
    return secret, Token(_check_name(name), _check_scope(scope), hash_secret(secret), expires)


def hash_secret(secret: str) -> bytes:
    """Returns the SHA-256 digest of a secret."""
    return hashlib.sha256(secret.encode()).digest()


def parse_tokens(text: str) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """Returns the tokens of a token file's text, and what is wrong with each other line, without a digest's text."""
    found: dict[str, Token] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            token = _parse_words(words)
            if token.name in found or any(token.digest == other.digest for other in found.values()):
                raise ValueError(f"the name or the digest of {token.name} stands on a line before; make a new token")
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
        else:
            found[token.name] = token
    return tuple(found.values()), tuple(wrong)


def _parse_words(words: list[str]) -> Token:
    if not 3 <= len(words) <= 4:
        raise ValueError(f"{len(words)} words; a line is: {_LINE_FORM}")
    digest = _DIGEST.fullmatch(words[2])
    if digest is None:
        raise ValueError(f"the third word is not a digest; a line is: {_LINE_FORM}; `meshwright-agent token new`")
    expires = None
    if len(words) == 4:
        key, _, moment = words[3].partition("=")
        if key != "expires":
            raise ValueError(f"the fourth word is not expires=…; a line is: {_LINE_FORM}")
        expires = parse_time(moment)
    return Token(_check_name(words[0]), _check_scope(words[1]), bytes.fromhex(digest[1]), expires)


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("the name must be 1 to 64 of A-Z a-z 0-9 . _ @ -, and begin with a letter or digit: prolog")
    return name


def _check_scope(text: str) -> Scope:
    for scope in SCOPES:
        if scope == text:
            return scope
    raise ValueError(f"the scope is none of {', '.join(SCOPES)}; each holds those before it")


def parse_time(text: str) -> datetime:
    """Returns a UTC time from RFC 3339 text.

    Raises:
        ValueError: the text has another form, or does not have a time zone.
    """
    try:
        moment = datetime.fromisoformat(text)
        if "T" not in text or moment.tzinfo is None:
            raise ValueError
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("the time is not as in RFC 3339, such as 2027-01-31T00:00:00Z") from None


def parse_expiry(text: str, now: datetime) -> datetime:
    """Returns the expiry time from a duration after `now` (90d, 12h) or from an RFC 3339 time.

    Raises:
        ValueError: the text is neither, or the time is past.
    """
    if found := _DURATION.fullmatch(text):
        return now + timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    moment = parse_time(text)
    if moment <= now:
        raise ValueError(f"--expires {text}: is past; give a time to come, or a duration such as 90d")
    return moment


def read_token_file(path: Path) -> tuple[tuple[Token, ...], tuple[str, ...]]:
    """Returns the tokens of a file, and what is wrong with each other line.

    Raises:
        AccessSettingsError: the file is missing, not a regular file, world-writable, or too long.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise AccessSettingsError(f"token file {path}: is not a file; give the path of one")
            if mode & stat.S_IWOTH:
                raise AccessSettingsError(f"token file {path}: every user may write it, and so become admin; chmod o-w")
            data = file.read(MAX_TOKEN_FILE_BYTES + 1)
        if len(data) > MAX_TOKEN_FILE_BYTES:
            raise AccessSettingsError(f"token file {path}: longer than {MAX_TOKEN_FILE_BYTES} bytes")
        return parse_tokens(data.decode(errors="replace"))
    except OSError as error:
        hint = "`meshwright-agent token new NAME --scope operate` prints a line for it"
        raise AccessSettingsError(f"token file {path}: {error.strerror}; {hint}") from None


# ---- callers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """The other end of a connection.

    Attributes:
        name: `addr:10.0.0.7`, `uid:1000`, or `cert:…` with the name in a verified client certificate.
        groups: group ids of a peer of the unix socket.
    """

    name: str
    uid: int | None = None
    groups: frozenset[int] = frozenset()

    @property
    def is_unix(self) -> bool:
        """True if the peer connected through the unix socket, whose peers the kernel identifies."""
        return self.name.startswith("uid:")


@dataclass(frozen=True)
class Caller:
    """The sender of a request (`token:NAME`, `cert:NAME`, `addr:ADDRESS` or `uid:NUMBER`) and its scope."""

    name: str
    scope: Scope
    token: Token | None = None

    def has(self, needed: str) -> bool:
        """Returns whether the caller's scope includes the needed scope."""
        return SCOPES.index(self.scope) >= SCOPES.index(_check_scope(needed))


UNKNOWN: Final = Peer("addr:unknown")


def read_peer(transport: Any) -> Peer:
    """Returns the peer of a connection, from the kernel and TLS. A transport of None gives an unknown peer."""
    if transport is None:
        return UNKNOWN
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family == socket.AF_UNIX:
        return _read_unix_peer(sock)
    if certificate := transport.get_extra_info("peercert"):
        return Peer(f"cert:{_name_certificate(certificate)}")
    address = transport.get_extra_info("peername")
    return Peer(f"addr:{address[0]}") if isinstance(address, tuple) else UNKNOWN


def _read_unix_peer(sock: Any) -> Peer:
    groups: set[int] = set()
    try:
        _, uid, gid = UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, UCRED.size))
        with contextlib.suppress(OSError):
            found = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MAX_GROUP_BYTES)
            groups.update(memoryview(found).cast("I"))
    except OSError:
        return Peer("uid:unknown")
    return Peer(f"uid:{uid}", uid, frozenset({gid, *groups}))


def _name_certificate(certificate: Mapping[str, Any]) -> str:
    """Returns a certificate's common name, else its first other name, as one word for log lines."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    name = str(names[0]) if names else f"serial:{certificate.get('serialNumber', 'unknown')}"
    return "".join(letter if letter.isprintable() and letter != " " else "?" for letter in name)[:256]


class Authenticator:
    """Names the caller of each request, and refuses requests for other hosts and from pages of other sites.

    Attributes:
        failure: why the current token file cannot be read, while the earlier tokens stay valid; "" if it can.

    Raises:
        AccessSettingsError: a file or name of the settings cannot be used.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._hosts = _list_hosts(settings)
        self._admin_uids, self._admin_gids = _read_admins(settings.uds_admins)
        self._mark = read_mark(settings.tokens_file)
        self._tokens: tuple[Token, ...] | None = None
        if settings.tokens_file is not None:
            self._tokens, wrong = read_token_file(settings.tokens_file)
            if wrong:
                raise AccessSettingsError(f"token file {settings.tokens_file}, {wrong[0]}")
        self.failure = ""

    def refresh(self) -> None:
        """Reads the token file again if it has changed.

        Wrong lines are left out, so that a deleted token ends whatever else the file holds. While the file cannot be
        read, the earlier tokens stay valid.
        """
        path, mark = self._settings.tokens_file, read_mark(self._settings.tokens_file)
        if path is None or (mark == self._mark and not self.failure):
            return
        self._mark = mark
        try:
            (self._tokens, wrong), self.failure = read_token_file(path), ""
            log.info("token file %s read again: %d tokens", path, len(self._tokens))
            if wrong:
                log.error("token file %s: %d lines are left out, such as %s", path, len(wrong), wrong[0])
        except AccessSettingsError as error:
            if str(error) != self.failure:
                log.error("the tokens read before stay valid: %s", error)
            self.failure = str(error)

    def identify(self, peer: Peer, secret: str | None) -> Caller:
        """Returns the caller, from its peer and the token secret, if the caller sent one.

        Raises:
            UnauthorizedError: the caller needs a token or a client certificate, and did not send a valid one.
        """
        if self._settings.tls_client_ca_file is not None and not (peer.is_unix or peer.name.startswith("cert:")):
            hint = "give MESHWRIGHT_CLIENT_CERT_FILE and MESHWRIGHT_CLIENT_KEY_FILE (curl: --cert, --key)"
            raise UnauthorizedError("no client certificate was shown; this agent asks for one", hint=hint)
        if secret is not None and self._tokens is not None:
            token = self._find(secret)
            return Caller(f"token:{token.name}", token.scope, token)
        if peer.is_unix:
            is_admin = peer.uid in self._admin_uids or not self._admin_gids.isdisjoint(peer.groups)
            return Caller(peer.name, "admin" if is_admin else "read")
        if self._tokens is not None:
            raise UnauthorizedError("no token was sent; this agent asks for one", hint=_TOKEN_HINT)
        return Caller(peer.name, "admin" if self._settings.insecure else "read")

    def _find(self, secret: str) -> Token:
        """Compares with every token, so that the time does not reveal whether or which token matched."""
        digest, found = hash_secret(secret), None
        for token in self._tokens or ():
            if hmac.compare_digest(token.digest, digest):
                found = token
        if not secret:
            raise UnauthorizedError("the Authorization header has no bearer token", hint=_TOKEN_HINT)
        if found is None or self._is_expired(found):
            hint = "ask the agent's operator; a token file has names, scopes and times"
            raise UnauthorizedError("the token is not one that this agent knows, or it has expired", hint=hint)
        return found

    def _is_expired(self, token: Token) -> bool:
        return token.expires is not None and self._clock.now() >= token.expires

    def is_valid(self, caller: Caller) -> bool:
        """Returns whether an earlier caller is still valid: its token has not expired and was not removed."""
        return caller.token is None or (caller.token in (self._tokens or ()) and not self._is_expired(caller.token))

    def check_host(self, host: str | None) -> None:
        """Raises ForbiddenError unless a request names this host.

        DNS rebinding cannot change the Host header that a browser sends. Accepted are every IP address (a kubelet uses
        the pod's), `localhost`, the host's name and the allowed names.

        Raises:
            ForbiddenError: the header names another host (421).
            InvalidRequestError: the header is not a host.
        """
        name = _parse_host(host)
        if name is None:
            detail = "the Host header is missing, doubled or not a host"
            raise InvalidRequestError(detail, status=400, hint="send Host: NAME or NAME:PORT")
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return
        if "*" in self._hosts or any(name == own or (own[0] == "*" and name.endswith(own[1:])) for own in self._hosts):
            return
        hint = "ask by its address or host name; add another name of this host to MESHWRIGHT_ALLOWED_HOSTS"
        raise ForbiddenError(f"this agent does not answer to the host {name}", status=421, hint=hint)


def check_site(headers: Headers) -> None:
    """Raises ForbiddenError if a page of another site sent the request. Programs send neither of the two headers.

    Source: https://www.w3.org/TR/fetch-metadata/ (Sec-Fetch-Site), RFC 6454 §7 (Origin).
    """
    origin = headers.get("origin")
    is_own = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    if headers.get("sec-fetch-site", "none") in {"cross-site", "same-site"} or not is_own:
        raise ForbiddenError(
            "the request was sent by a page of another site (Origin, Sec-Fetch-Site)",
            hint="send it from the agent's own page, or from a program, which sends neither header",
        )


_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::[0-9]{0,5})?")


def _parse_host(value: str | None) -> str | None:
    """Returns the name or address in a Host header, lower case, without port and final dot; None if absent."""
    found = _HOST.fullmatch(value or "")
    return None if found is None else (found[1] or found[2]).lower().removesuffix(".") or None


def _list_hosts(settings: Settings) -> frozenset[str]:
    own, names = socket.gethostname().lower(), []
    for name in filter(None, (part.strip().lower() for part in settings.allowed_hosts.split(","))):
        bare = name.removeprefix("*.").removeprefix("*") or "any"
        if _parse_host(bare) is None or (":" in bare and "[" not in bare):
            works = "write gw.example or *.example.org, without scheme, port and path"
            raise AccessSettingsError(f"allowed_hosts (MESHWRIGHT_ALLOWED_HOSTS): {name[:80]!r} is not a name; {works}")
        names.append(name)
    return frozenset({"localhost", own, own.split(".")[0], settings.host.lower(), *names} - {""})


def _read_admins(text: str) -> tuple[frozenset[int], frozenset[int]]:
    """Returns the user ids and the group ids of `root,self,@meshwright`; ignores a group that does not exist."""
    uids, gids = set[int](), set[int]()
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            if name.startswith("@"):
                gids.add(int(name[1:]) if name[1:].isdecimal() else grp.getgrnam(name[1:]).gr_gid)
            elif name == "self":
                uids.add(os.geteuid())
            else:
                uids.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
        except KeyError:
            if name != _DEFAULT_GROUP:
                log.warning("MESHWRIGHT_UDS_ADMINS: %s does not exist on this host", name)
    return frozenset(uids), frozenset(gids)


def read_mark(path: Path | None) -> tuple[int, ...] | None:
    """Returns a value that changes when the file changes; None without a path or if it cannot be read."""
    if path is None:
        return None
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns


def check_exposure(settings: Settings) -> None:
    """Raises AccessSettingsError unless the agent listens on loopback, requires tokens, or has `--insecure`.

    It logs a warning about `--insecure` and about tokens without TLS.
    """
    if settings.insecure and settings.tokens_file is None:
        log.warning("--insecure: any client that reaches %s may do everything here, without a token", settings.host)
        return
    if not settings.host or resolves_to_loopback(settings.host):
        return
    if settings.tokens_file is None:
        raise AccessSettingsError(
            f"--host {settings.host} can be reached from other hosts, and there is no token file. Make one with "
            "`meshwright-agent token new NAME --scope operate` and give --tokens-file FILE; or listen on 127.0.0.1 or "
            "--uds; or say --insecure"
        )
    if settings.tls_cert_file is None:
        log.warning("tokens travel unencrypted to %s; give --tls-cert-file and --tls-key-file", settings.host)


def resolves_to_loopback(host: str) -> bool:
    """Returns whether every address of a host is this host's loopback; False without an address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # IDNA refuses empty labels, and those of more than 63 characters
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


# ---- routes ---------------------------------------------------------------------------------------------------------

_BEARER: Final = HTTPBearer(
    scheme_name="bearer",
    auto_error=False,
    description="a token of MESHWRIGHT_TOKENS_FILE; an agent without one needs none. Scopes: read < operate (bench, "
    "lease, release, cancel) < admin (acknowledge)",
)
_BASIC: Final = HTTPBasic(
    scheme_name="basic", auto_error=False, description="the token as the password, any user: for browsers"
)


async def authenticate(
    request: Request,
    needed: SecurityScopes,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
    basic: Annotated[HTTPBasicCredentials | None, Depends(_BASIC)],
) -> Caller:
    """Returns the caller of a request, and stores it in `request.state.caller` for the audit.

    Raises:
        UnauthorizedError: see `Authenticator.identify`.
        ForbiddenError: the caller's scope does not include the scope that the route needs.
    """
    request.state.is_audited = set(needed.scopes) - {"read"} != set()
    secret = bearer.credentials if bearer else basic.password if basic else None
    if secret is None and "authorization" in request.headers:
        secret = ""  # another scheme, or malformed: matches no token
    peer: Peer = request.state.peer
    settings: Settings = request.app.state.agent.settings
    if request.url.path == "/metrics" and settings.public_metrics:
        return Caller(peer.name, "read")
    caller: Caller = request.app.state.authenticator.identify(peer, secret)
    request.state.caller = caller
    for scope in needed.scopes:
        if not caller.has(scope):
            ways = ["ask the agent's operator for a token of a larger scope"] if settings.tokens_file else []
            detail = f"{request.method} {request.url.path} needs the scope {scope}; {caller.name} has {caller.scope}"
            if secret and caller.token is None:
                ways = ["give the agent one (MESHWRIGHT_TOKENS_FILE)"]
                detail += "; the agent did not check the token, because it has no token file"
            if settings.uds and caller.name.startswith(("uid:", "addr:")):
                ways.append(f"use unix://{settings.uds} as one of MESHWRIGHT_UDS_ADMINS")
            hint = "start the agent with --uds PATH or --tokens-file FILE; on a machine of your own, with --insecure"
            raise ForbiddenError(detail, hint=", or ".join(ways) or hint)
    return caller


async def _check_site(request: Request) -> None:
    if not request.state.peer.is_unix:
        check_site(request.headers)


Reader = Annotated[Caller, Security(authenticate, scopes=["read"])]
Operator = Annotated[Caller, Security(authenticate, scopes=["operate"])]
Admin = Annotated[Caller, Security(authenticate, scopes=["admin"])]
NEEDS_READ: Final = Security(authenticate, scopes=["read"])
SAME_SITE: Final = Depends(_check_site)
"""For a GET that uses the planner or the compiler."""


# ---- the audit ------------------------------------------------------------------------------------------------------


def record(**fields: str | int) -> None:
    """Writes one audit line of `key=value`. JSON logs also have the fields as `audit`."""
    audit.info("%s", " ".join(f"{name}={_quote(value)}" for name, value in fields.items()), extra={"audit": fields})


def _quote(value: str | int) -> str:
    """Returns a value bare or as a JSON string, so that a caller cannot inject lines."""
    text = str(value)[:512]
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def note(request: Request, devices: object = (), **made: str) -> None:
    """Adds the devices ("all", or each) and the created objects to the request's audit line."""
    named = {}
    if devices:
        named["devices"] = devices if isinstance(devices, str) else ",".join(map(str, devices))  # type: ignore[call-overload]
    noted: dict[str, str] = getattr(request.state, "noted", {})
    request.state.noted = {**noted, **named, **made}
