"""How the client uses httpx: pools of connections with their TLS, the token of each request, time limits."""

from __future__ import annotations

import contextlib
import platform
import ssl
import threading
from collections.abc import Generator, Iterator
from importlib import metadata
from typing import Any, Final

import httpx

from meshwright._client.settings import ClientSettings
from meshwright.errors import SettingsError

CONNECT_TIMEOUT_S: Final = 5.0
_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For connections without TLS: httpx would read the certificates of all authorities, which takes 20 ms."""


def build_client(
    settings: ClientSettings,
    timeout_s: float | None,
    transport: httpx.BaseTransport | None = None,
    *,
    max_connections: int | None = None,
) -> httpx.Client:
    """Returns a connection pool to the agent; proxies of the environment are used for remote agents only.

    One pool can serve many agents that are alike in socket, locality and TLS: `max_connections` is for all of them.
    """
    if transport is None and settings.address.socket:
        transport = httpx.HTTPTransport(uds=settings.address.socket, trust_env=False, verify=_NO_AUTHORITIES)
    with _explaining_proxies():
        return httpx.Client(transport=transport, **_list_options(settings, timeout_s, max_connections))


def build_async_client(
    settings: ClientSettings, timeout_s: float | None, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Returns the same for asyncio."""
    if transport is None and settings.address.socket:
        transport = httpx.AsyncHTTPTransport(uds=settings.address.socket, trust_env=False, verify=_NO_AUTHORITIES)
    with _explaining_proxies():
        return httpx.AsyncClient(transport=transport, **_list_options(settings, timeout_s, None))


@contextlib.contextmanager
def _explaining_proxies() -> Iterator[None]:
    """Raises SettingsError where httpx cannot use what the environment says of proxies."""
    try:
        yield
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        if isinstance(error, SettingsError):
            raise
        names = "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY"
        raise SettingsError(f"{names} cannot be used: {error}; correct it, or unset it for this command") from None


def _list_options(settings: ClientSettings, timeout_s: float | None, max_connections: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "base_url": settings.address.url,
        "timeout": build_timeout(timeout_s),
        "trust_env": not settings.address.is_local,
        "headers": {"User-Agent": f"meshwright/{metadata.version('meshwright')} Python/{platform.python_version()}"},
    }
    if max_connections is not None:
        options["limits"] = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    options["verify"] = _build_tls(settings) if settings.address.url.startswith("https:") else _NO_AUTHORITIES
    return options


def build_timeout(timeout_s: float | None) -> httpx.Timeout:
    """Returns the limit of one read, and at most `CONNECT_TIMEOUT_S` for a connection; None and inf wait for ever.

    Raises:
        SettingsError: the limit is not above 0.
    """
    if timeout_s is not None and not timeout_s > 0:
        raise SettingsError(f"timeout is {timeout_s}; it must be a number of seconds above 0, such as 30, or None")
    timeout_s = None if timeout_s is None or timeout_s > threading.TIMEOUT_MAX else timeout_s  # the most of a socket
    connect_s = CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S)
    return httpx.Timeout(timeout_s, connect=connect_s)


def build_auth(settings: ClientSettings) -> Any:
    """Returns what adds the token to a request; without a token, the caller's own HTTP client does as it is set."""
    return TokenAuth(settings) if settings.token or settings.token_file else httpx.USE_CLIENT_DEFAULT


class TokenAuth(httpx.Auth):
    """Shows the token, and where it is refused, once more the one that its file has by now."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._token = settings.token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Yields the request, as httpx asks it to."""
        sent = self._token
        response = yield self._sign(request)
        if response.status_code == 401 and (token := self._settings.read_token()) not in (None, sent):
            self._token = token
            yield self._sign(request)

    def _sign(self, request: httpx.Request) -> httpx.Request:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _build_tls(settings: ClientSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        found = f"MESHWRIGHT_CA_FILE names {settings.ca_file!r}, which holds no certificates ({error})"
        raise SettingsError(f"{found}; name a PEM file") from None
    if settings.ca_file is not None:  # which may hold only the agent's own certificate: Python's default from 3.13 on
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    cert, key = settings.client_cert_file, settings.client_key_file
    if cert is None:
        return context
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(_explain_certificate(cert, key, error)) from None
    return context


def _refuse_password() -> str:
    found = "the key of MESHWRIGHT_CLIENT_CERT_FILE is encrypted, and the client cannot ask for its password"
    raise SettingsError(f"{found}; name a key without one, readable by its owner only")


def _explain_certificate(cert: str, key: str | None, error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        found = f"MESHWRIGHT_CLIENT_KEY_FILE {key or cert!r} is not the key of the certificate in "
        return f"{found}MESHWRIGHT_CLIENT_CERT_FILE {cert!r}; name the two that belong together"
    named = f"MESHWRIGHT_CLIENT_CERT_FILE {cert!r}" + (f" and MESHWRIGHT_CLIENT_KEY_FILE {key!r}" if key else "")
    works = "name PEM files of certificate and key" if key else "name its key's file in MESHWRIGHT_CLIENT_KEY_FILE"
    return f"{named} cannot be used: no certificate, or no private key, in PEM form ({error}); {works}"
