"""One connection: uvicorn's protocol on httptools, with limits of time, of size, and of how many there are.

Rule: whoever sends slowly, or too much, or only connects, holds nothing for long. uvicorn 0.54 limits none of these: it
reads headers of any size, waits for ever for their end and for a body, and its `limit_concurrency` refuses requests but
keeps their connections open. A request that arrives whole in one piece, as nearly all do, costs no timer.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from meshwright.errors import InvalidRequestError, ProblemError, RequestTimeoutError, TooManyConnectionsError
from meshwright.wire.problem import build_problem
from meshwright_agent.access.doorkeeper import PEER_KEY
from meshwright_agent.access.peers import LATE_KEY, UNKNOWN, read_peer
from meshwright_agent.settings import Settings

MOST_HEADERS: Final = 100
HEADERS: Final = "headers"
BODY: Final = "body"


@dataclass(frozen=True)
class Limits:
    """What one connection may take, and how many there may be."""

    connections: int
    header_timeout_s: float
    body_timeout_s: float
    header_bytes: int

    @classmethod
    def of(cls, settings: Settings, *, connections: int) -> Limits:
        """Returns those that the settings say, with so many connections as there is room for."""
        return cls(
            connections,
            settings.header_timeout_s,
            settings.body_timeout_s,
            settings.header_limit_bytes,
        )


class _RefusedError(Exception):
    """Ends the parsing of a request; httptools turns it into an HttpParserError, which uvicorn answers by 400."""


class Connection(HttpToolsProtocol):
    """A connection within limits.

    `_phase` says what is awaited (`headers`, `body`, or None between requests) and of which message; a timer runs for
    it only when a read has ended in its midst.
    """

    def __init__(self, *args: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._peer = UNKNOWN
        self._message = 0
        self._phase: str | None = HEADERS
        self._timed: tuple[str, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunk_bytes = 0
        self._read_bytes = 0
        self._refusal: ProblemError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, or refuses it at once where there are too many."""
        super().connection_made(transport)
        most = self._limits.connections
        if len(self.connections) > most:
            detail = f"{most} connections are open already; this agent takes no more"
            hint = "try again; close connections that are idle, or raise MESHWRIGHT_CONNECTION_LIMIT on the agent, and "
            hint += "its limit of file descriptors (LimitNOFILE) where the agent's log says that this is the lower one"
            self._refuse(TooManyConnectionsError(detail, hint=hint, retry_after_s=1.0))
            return
        self._peer = read_peer(transport)
        self._keep_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timer."""
        self._phase = None
        self._keep_time()
        super().connection_lost(exc)

    # ---- what arrives ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Reads on; what is incomplete after this is given its time."""
        self._chunk_bytes = len(data)
        if self._phase == HEADERS:
            self._read_bytes += len(data)
        super().data_received(data)
        if self._phase is None and self._timed is None and self._is_answering():
            return  # a request that came whole: nearly all
        if self.transport.is_closing():
            return
        if self._phase == HEADERS and self._read_bytes > self._limits.header_bytes:
            self._refuse_next(self._too_large())
            return
        if self._phase is None and self.timeout_keep_alive_task is None and not self._is_answering():
            self._phase = HEADERS  # blank lines before a request, which reset uvicorn's timer for idle connections
        self._keep_time()

    def on_message_begin(self) -> None:
        """A request line has begun."""
        super().on_message_begin()
        self.scope[PEER_KEY] = self._peer  # type: ignore[typeddict-unknown-key]
        self._message += 1
        self._phase = HEADERS
        self._read_bytes = self._chunk_bytes

    def on_headers_complete(self) -> None:
        """The headers are there: measured before anybody answers them."""
        if len(self.headers) > MOST_HEADERS or (
            self._read_bytes > self._limits.header_bytes and self._measure_headers() > self._limits.header_bytes
        ):
            self._refusal = self._too_large()
            raise _RefusedError
        super().on_headers_complete()
        self._phase = BODY

    def on_message_complete(self) -> None:
        """The body is there."""
        self._phase = None
        super().on_message_complete()

    def _measure_headers(self) -> int:
        """Returns the bytes of the request line and headers, without what came behind them in the same read."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _too_large(self) -> ProblemError:
        limit = self._limits.header_bytes
        detail = f"the request line and headers have more than {limit} bytes, or more than {MOST_HEADERS} headers"
        hint = "send a long query as a body (POST), or raise MESHWRIGHT_HEADER_LIMIT_BYTES on the agent"
        return InvalidRequestError(detail, status=431, hint=hint)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Lets a timer run for what is awaited now, from when it was first awaited."""
        awaited = None if self._phase is None else (self._phase, self._message)
        if awaited == self._timed:
            return
        self._timed = awaited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if awaited is not None:
            self._timer = self.loop.call_later(self._limit_s(), self._give_up)

    def _limit_s(self) -> float:
        return self._limits.header_timeout_s if self._phase == HEADERS else self._limits.body_timeout_s

    def _give_up(self) -> None:
        """Closes the connection; a request that has begun and has no answer yet is answered by 408."""
        self._timer, self._timed = None, None
        if self.transport.is_closing():
            return
        has_begun = self._phase == BODY or self._read_bytes > 0
        error = RequestTimeoutError(
            f"the {self._phase} did not arrive within {self._limit_s():g} s",
            hint=f"send it faster, or raise MESHWRIGHT_{'HEADER' if self._phase == HEADERS else 'BODY'}_TIMEOUT_S",
        )
        if self._phase == BODY and not self.cycle.response_complete:
            self.cycle.scope[LATE_KEY] = True  # type: ignore[typeddict-unknown-key]
        is_streaming = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if self._phase == HEADERS and self._is_answering():
            self._keep_time()  # the answer before this request is still on its way
        elif has_begun and not is_streaming and not self.pipeline:
            self._refuse(error)
        else:
            self.transport.close()

    # ---- refusals --------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, or was refused while it was parsed, as a problem; uvicorn's is plain text."""
        hint = "send HTTP/1.1; https:// needs an agent with MESHWRIGHT_TLS_CERT_FILE"
        error = self._refusal or InvalidRequestError("the request is not HTTP", status=400, hint=hint)
        self._refuse_next(error)

    def _refuse_next(self, error: ProblemError) -> None:
        """Refuses a request whose headers are not complete: without a word while the one before is answered."""
        if self._is_answering():
            self.transport.close()
        else:
            self._refuse(error)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, error: ProblemError) -> None:
        """Writes a problem past the application, and closes."""
        self._phase = None
        self._keep_time()
        body = build_problem(error, request_id=secrets.token_hex(8)).model_dump_json().encode()
        lines = [STATUS_LINE[error.status]]
        headers = [*self.server_state.default_headers, (b"content-type", b"application/problem+json")]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
        headers += [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        lines += [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join([*lines, b"\r\n", body]))
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
