"""The one module of the client that knows the HTTP library: sends requests, and turns its errors into values.

No exception of the library leaves it. Independent of endpoints, retries and models.
"""

from __future__ import annotations

import platform
import ssl
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import httpx

from meshwright._calls.messages import Answer, Failure, FailureKind, Outcome, Request
from meshwright._calls.settings import Settings
from meshwright.errors import SettingsError

HttpClient = httpx.Client
AsyncHttpClient = httpx.AsyncClient

CONNECT_TIMEOUT_S: Final = 5.0


def build_client(
    settings: Settings,
    timeout_s: float | None,
    transport: httpx.BaseTransport | None = None,
    *,
    max_connections: int | None = None,
) -> httpx.Client:
    """Returns a connection pool to the agent; proxies of the environment are used for remote agents only.

    One pool can serve many agents that are alike in socket, locality and TLS: `max_connections` is for all of them.
    """
    socket = settings.address.socket
    if transport is None and socket:
        transport = httpx.HTTPTransport(uds=socket, trust_env=False)
    return httpx.Client(transport=transport, **_options(settings, timeout_s, max_connections))


def build_async_client(
    settings: Settings,
    timeout_s: float | None,
    transport: httpx.AsyncBaseTransport | None = None,
    *,
    max_connections: int | None = None,
) -> httpx.AsyncClient:
    """Returns the same for asyncio."""
    socket = settings.address.socket
    if transport is None and socket:
        transport = httpx.AsyncHTTPTransport(uds=socket, trust_env=False)
    return httpx.AsyncClient(transport=transport, **_options(settings, timeout_s, max_connections))


def _options(settings: Settings, timeout_s: float | None, max_connections: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "base_url": settings.address.url,
        "timeout": _build_timeout(timeout_s),
        "trust_env": not settings.address.is_local,
        "headers": {"User-Agent": f"meshwright/{metadata.version('meshwright')} Python/{platform.python_version()}"},
    }
    if max_connections is not None:
        options["limits"] = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    if settings.address.url.startswith("https:"):
        options["verify"] = _build_tls(settings)
    return options


def _build_tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"MESHWRIGHT_CA_FILE names {settings.ca_file!r}, which holds no certificates ({error}); name a PEM file"
        ) from None
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
    raise SettingsError(
        "the key of MESHWRIGHT_CLIENT_CERT_FILE is encrypted, and nobody is there to be asked for its password; name a "
        "key without one, readable by its owner only"
    )


def _explain_certificate(cert: str, key: str | None, error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"MESHWRIGHT_CLIENT_KEY_FILE {key or cert!r} is not the key of the certificate in "
            f"MESHWRIGHT_CLIENT_CERT_FILE {cert!r}; name the two that belong together"
        )
    named = f"MESHWRIGHT_CLIENT_CERT_FILE {cert!r}" + (f" and MESHWRIGHT_CLIENT_KEY_FILE {key!r}" if key else "")
    works = (
        "name PEM files of a certificate and its key" if key else "name its key's file in MESHWRIGHT_CLIENT_KEY_FILE"
    )
    return f"{named} cannot be used: no certificate, or no private key, in PEM form ({error}); {works}"


def _build_timeout(timeout_s: float | None) -> httpx.Timeout:
    return httpx.Timeout(
        timeout_s, connect=CONNECT_TIMEOUT_S if timeout_s is None else min(timeout_s, CONNECT_TIMEOUT_S)
    )


def find_address(client: httpx.Client | httpx.AsyncClient) -> str:
    """Returns the base URL that a caller's own client has, or ""."""
    return str(client.base_url).rstrip("/")


def _translate(error: Exception, *, was_answered: bool) -> Failure:
    message = str(error) or type(error).__name__
    return Failure(_kind(error, was_answered), message)


def _find_tls(error: BaseException) -> ssl.SSLError | None:
    """Returns the TLS error that an error comes from."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _kind(error: Exception, was_answered: bool) -> FailureKind:
    match _find_tls(error):
        case ssl.SSLCertVerificationError() as distrust:
            return "expired" if getattr(distrust, "verify_code", None) in _NOT_NOW else "untrusted"
        case ssl.SSLError(reason=reason) if isinstance(error, httpx.ConnectError) or reason not in _TLS_ENDINGS:
            return "handshake"
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.UnsupportedProtocol():
            return "refused"
        case httpx.TimeoutException():
            return "timeout"
        case httpx.ReadError() | httpx.WriteError() | httpx.CloseError() | httpx.RemoteProtocolError() if was_answered:
            return "stale"
    return "lost"


_NOT_NOW: Final = frozenset({9, 10})
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED, which is also of an authority's certificate.

Source: OpenSSL's X509_STORE_CTX_get_error(3).
"""

_TLS_ENDINGS: Final = frozenset({"UNEXPECTED_EOF_WHILE_READING", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY"})
"""OpenSSL's reasons that mean a connection that ended, as it may on any transport."""

_CLOSED: Final = Failure("closed", "this client has been closed")

_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, ssl.SSLError)
"""The library does not wrap a TLS alert where anyio reads it. Source: tested with httpx 0.28.1."""


class Sender:
    """Carries out requests on a connection pool, one stream at a time. Belongs to one flow at a time."""

    def __init__(self, client: httpx.Client, shared: Shared) -> None:
        self._client = client
        self._shared = shared
        self._stream = ExitStack()
        self._chunks: Iterator[bytes] = iter(())

    def send(self, request: Request, timeout_s: float | None) -> Outcome:
        """Returns the whole reply, or how it failed."""
        if self._client.is_closed:
            return _CLOSED
        try:
            prepared = _build(self._client, self._shared, request, timeout_s)
            response = self._client.send(prepared, auth=self._shared.auth)
        except _ERRORS as error:
            return _translate(error, was_answered=self._shared.was_answered)
        self._shared.was_answered = True
        return Answer(response.status_code, _headers(response), response.content)

    def open(self, request: Request, silence_s: float) -> Outcome:
        """Opens a stream, in place of the one before."""
        self.close()
        if self._client.is_closed:
            return _CLOSED
        try:
            prepared = _build(self._client, self._shared, request, silence_s)
            response = self._client.send(prepared, auth=self._shared.auth, stream=True)
            self._stream.callback(response.close)
            body = b"" if response.status_code == 200 else response.read()
        except _ERRORS as error:
            return _translate(error, was_answered=self._shared.was_answered)
        self._chunks = response.iter_bytes() if response.status_code == 200 else iter(())
        return Answer(response.status_code, _headers(response), body)

    def read_chunk(self) -> bytes | Failure | None:
        """Returns the stream's next bytes, None at its end, or the failure that broke it."""
        try:
            return next(self._chunks, None)
        except _ERRORS as error:
            return _translate(error, was_answered=False)

    def close(self) -> None:
        """Closes the stream, if one is open."""
        self._chunks = iter(())
        self._stream.close()


class AsyncSender:
    """The same for asyncio."""

    def __init__(self, client: httpx.AsyncClient, shared: Shared) -> None:
        self._client = client
        self._shared = shared
        self._stream = AsyncExitStack()
        self._chunks: AsyncGenerator[bytes, None] | None = None

    async def send(self, request: Request, timeout_s: float | None) -> Outcome:
        """Returns the whole reply, or how it failed."""
        if self._client.is_closed:
            return _CLOSED
        try:
            prepared = _build(self._client, self._shared, request, timeout_s)
            response = await self._client.send(prepared, auth=self._shared.auth)
        except _ERRORS as error:
            return _translate(error, was_answered=self._shared.was_answered)
        self._shared.was_answered = True
        return Answer(response.status_code, _headers(response), response.content)

    async def open(self, request: Request, silence_s: float) -> Outcome:
        """Opens a stream, in place of the one before."""
        await self.close()
        if self._client.is_closed:
            return _CLOSED
        try:
            prepared = _build(self._client, self._shared, request, silence_s)
            response = await self._client.send(prepared, auth=self._shared.auth, stream=True)
            self._stream.push_async_callback(response.aclose)
            body = b"" if response.status_code == 200 else await response.aread()
        except _ERRORS as error:
            return _translate(error, was_answered=self._shared.was_answered)
        self._chunks = _read_all(response) if response.status_code == 200 else None
        return Answer(response.status_code, _headers(response), body)

    async def read_chunk(self) -> bytes | Failure | None:
        """Returns the stream's next bytes, None at its end, or the failure that broke it."""
        try:
            return await anext(self._chunks, None) if self._chunks is not None else None
        except _ERRORS as error:
            return _translate(error, was_answered=False)

    async def close(self) -> None:
        """Closes the stream, if one is open."""
        if self._chunks is not None:
            await self._chunks.aclose()
        self._chunks = None
        await self._stream.aclose()


async def _read_all(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


@dataclass
class Shared:
    """What all senders of one client share: settings, and whether the agent has answered before."""

    settings: Settings
    was_answered: bool = False

    @property
    def auth(self) -> Any:
        """The authorization header; without a token, that of a caller's own HTTP client."""
        has_token = self.settings.token or self.settings.token_file
        return _TokenAuth(self) if has_token else httpx.USE_CLIENT_DEFAULT


class _TokenAuth(httpx.Auth):
    """Shows the token, and where it is refused, once more the one that its file has by now."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Yields the request, as httpx asks it to."""
        sent = self._shared.settings
        request.headers.update(sent.headers)
        response = yield request
        if response.status_code == 401:
            self._shared.settings = self._shared.settings.read_token_again()
            if self._shared.settings.token != sent.token:
                request.headers.update(self._shared.settings.headers)
                yield request


def _build(
    client: httpx.Client | httpx.AsyncClient, shared: Shared, request: Request, timeout_s: float | None
) -> httpx.Request:
    return client.build_request(
        request.method,
        shared.settings.address.url + request.path,
        headers=request.headers,
        content=request.body,
        timeout=httpx.USE_CLIENT_DEFAULT if timeout_s is None else _build_timeout(timeout_s),
    )


def _headers(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}
