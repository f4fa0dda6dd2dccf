"""One connection: uvicorn's protocol on httptools, with limits of time, of size, and of how many there are.

Rule: whoever sends slowly, or too much, or only connects, holds nothing for long. uvicorn 0.54 limits none of these: it
reads headers of any size, waits for ever for their end and for a body, and its `limit_concurrency` refuses requests but
keeps their connections open; it waits for ever for a reader, keeps all trailers and as many requests behind another as
come, and takes what follows an `Upgrade` for another protocol. A request that arrives whole, as nearly all do, costs no
timer; nor does an answer that is read.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import secrets
import struct
import termios
from dataclasses import dataclass
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from meshwright.errors import InvalidRequestError, ProblemError, RequestTimeoutError, TooManyConnectionsError
from meshwright.wire.problem import build_problem
from meshwright_agent.access.doorkeeper import PEER_KEY
from meshwright_agent.access.peers import LATE_KEY, UNKNOWN, read_peer
from meshwright_agent.serving.accepting import Room
from meshwright_agent.serving.refused import RefusalReason
from meshwright_agent.settings import Settings

MAX_HEADER_BYTES: Final = 1 << 14
"""Of the request line with the headers; longer gets 431."""
MOST_HEADERS: Final = 100
MOST_PIPELINED: Final = 100
"""Requests of one connection that may wait for the answer before theirs. Nobody has asked yet who sends them."""
HEADERS: Final = "headers"
_ORIGIN_FORM: Final = (b"/", b"*", b"")
"""How a request's target begins where it names no host."""
BODY: Final = "body"
REST: Final = "rest"
"""Of the body of a request that has its answer already."""
LINGER_S: Final = 2.0
"""How long the rest of such a body is read and dropped, so that whoever sends it finds the answer and not a reset
connection (RFC 9112 §9.6)."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})


@dataclass(frozen=True)
class Limits:
    """What one connection may take, and how many there may be.

    Attributes:
        body_timeout_s: how long a body may take, and how long an answer may lie there without a byte of it being read.
    """

    connections: int
    header_timeout_s: float
    body_timeout_s: float

    @classmethod
    def of(cls, settings: Settings, *, connections: int) -> Limits:
        """Returns those that the settings say, with so many connections as there is room for."""
        return cls(connections, settings.header_timeout_s, settings.body_timeout_s)


_NOT_HTTP_HINT: Final = "send HTTP/1.1; https:// needs an agent with MESHWRIGHT_TLS_CERT_FILE"


class _RefusedError(Exception):
    """Ends the parsing of a request; httptools turns it into an HttpParserError, which uvicorn answers by 400."""


class Connection(HttpToolsProtocol):
    """A connection within limits.

    `_phase` says what is awaited (`headers`, `body`, `rest`, or None between requests) and of which message; a timer
    runs for it only when a read has ended in its midst. `_read_bytes` are those since it was awaited, or since the last
    piece of a body. Another timer runs while what was written is not taken.
    """

    def __init__(self, *args: Any, limits: Limits, room: Room, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._room = room
        self._peer = UNKNOWN
        self._message = 0
        self._phase: str | None = HEADERS
        self._timed: tuple[str, int] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunk_bytes = 0
        self._read_bytes = 0
        self._has_begun = False
        self._writing: asyncio.TimerHandle | None = None
        self._refusal: tuple[ProblemError, RefusalReason] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, or refuses it at once where there are too many."""
        super().connection_made(transport)
        self._room.begin(transport.get_extra_info("socket").fileno())
        most = self._limits.connections
        if len(self.connections) > most:
            self._peer = read_peer(transport)
            self._count("too_many_connections")
            detail = f"{most} connections are open already; this agent takes no more"
            hint = "try again; close connections that are idle, or raise MESHWRIGHT_CONNECTION_LIMIT on the agent, and "
            hint += "its limit of file descriptors (LimitNOFILE) where the agent's log says that this is the lower one"
            self._refuse(TooManyConnectionsError(detail, hint=hint, retry_after_s=1.0))
            return
        self._peer = read_peer(transport)
        self._keep_time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timers."""
        self._phase = None
        self._keep_time()
        if self._writing is not None:
            self._writing.cancel()
        super().connection_lost(exc)

    # ---- what arrives ----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Reads on; what is incomplete after this is given its time."""
        self._chunk_bytes = len(data)
        self._read_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._phase is None and self._timed is None and self._is_answering():
            return  # a request that came whole: nearly all
        if self.transport.is_closing():
            return
        if self._phase is not None and self._read_bytes > MAX_HEADER_BYTES:
            self._refuse_next(self._too_large(), "headers_too_large")
            return
        if self._phase is None and self.timeout_keep_alive_task is None and not self._is_answering():
            # blank lines before a request, or the end of a body after its answer, have reset uvicorn's timer for idle
            self._phase, self._read_bytes = HEADERS, 0
        self._keep_time()

    def _feed(self, data: bytes) -> None:
        """Parses; in uvicorn's place, which logs a line for each stranger and drops what follows an upgrade."""
        rest = memoryview(data)
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                except httptools.HttpParserUpgrade as pause:
                    rest = rest[pause.args[0] :]
                    if not self._pass_over_upgrade():
                        return
                else:
                    return
        except httptools.HttpParserError:
            self.send_400_response("")

    def _pass_over_upgrade(self) -> bool:
        """Lets a request that asks for another protocol go on as HTTP/1.1; returns whether anything may follow it.

        A server may ignore `Upgrade` (RFC 9110 §7.8). The parser cannot, and ends the request with its head; so another
        one is told how the body is framed, and reads on from there. After CONNECT nothing of HTTP follows.
        """
        if self.scope["method"] == "CONNECT":
            self.cycle.keep_alive = False
            return False
        head = [b"%b / HTTP/%b" % (self.scope["method"].encode(), self.scope["http_version"].encode())]
        head += [b"%b: %b" % header for header in self.headers if header[0] in _FRAMING]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"\r\n".join([*head, b"", b""]))
        return True

    def on_message_begin(self) -> None:
        """A request line has begun."""
        if self._phase == BODY:
            return  # of an upgrade that was passed over: the same message
        super().on_message_begin()
        self.scope[PEER_KEY] = self._peer  # type: ignore[typeddict-unknown-key]
        self._message += 1
        self._phase = HEADERS
        self._has_begun = True
        self._read_bytes = self._chunk_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is there, or a trailer, which nobody asks for: it is dropped."""
        if self._phase == HEADERS:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The headers are there: measured before anybody answers them."""
        if self._phase == BODY:
            return
        if len(self.headers) > MOST_HEADERS or (
            self._read_bytes > MAX_HEADER_BYTES and self._measure_headers() > MAX_HEADER_BYTES
        ):
            self._refusal = self._too_large(), "headers_too_large"
            raise _RefusedError
        if len(self.pipeline) >= MOST_PIPELINED:
            detail = f"more than {MOST_PIPELINED} requests wait on this connection for the answer before theirs"
            hint = "wait for answers, or use several connections"
            self._refusal = InvalidRequestError(detail, status=400, hint=hint), "pipelined"
            raise _RefusedError
        if self.url[:1] not in _ORIGIN_FORM and self.parser.get_method() != b"CONNECT":
            self._take_authority()
        super().on_headers_complete()
        self._phase = BODY
        self._read_bytes = 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body is there: what comes between two of them is bounded as headers are."""
        self._read_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is there."""
        if self.parser.should_upgrade() and self.scope["method"] != "CONNECT":
            return  # not yet: only the head, as the parser sees it
        self._phase = None
        self._has_begun = False
        super().on_message_complete()

    def _take_authority(self) -> None:
        """Takes the host of "GET http://host/path", as a proxy is asked, for the Host header. RFC 9112 §3.2.2."""
        authority = re.split(rb"[/?#]", self.url.partition(b"://")[2], maxsplit=1)[0].rpartition(b"@")[2]
        self.headers[:] = [header for header in self.headers if header[0] != b"host"] + [(b"host", authority)]

    def _measure_headers(self) -> int:
        """Returns the bytes of the request line and headers, without what came behind them in the same read."""
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _too_large(self) -> ProblemError:
        hint = "send a long query as a body (POST)"
        most = f"more than {MAX_HEADER_BYTES} bytes"
        detail = f"the request line and headers have {most}, or more than {MOST_HEADERS} headers"
        if self._phase == BODY:
            detail = f"the body has {most} of trailers or chunk extensions, which nobody reads"
            hint = "send the body without them"
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
        if self._phase == HEADERS:
            return self._limits.header_timeout_s
        return self._limits.body_timeout_s if self._phase == BODY else min(LINGER_S, self._limits.body_timeout_s)

    def _give_up(self) -> None:
        """Closes the connection; a request that has begun and has no answer yet is answered by 408."""
        self._timer, self._timed = None, None
        if self.transport.is_closing():
            return
        if self._phase == HEADERS and self._is_answering():
            self._keep_time()  # the answer before this request is still on its way
            return
        if self._phase == HEADERS and self._has_begun:
            self._count("slow_headers")
        elif self._phase == HEADERS and self._message == 0:
            self._count("silent")
        if self._phase == BODY and not self.cycle.response_complete:
            self.cycle.scope[LATE_KEY] = True  # type: ignore[typeddict-unknown-key]
        error = RequestTimeoutError(
            f"the {self._phase} did not arrive within {self._limit_s():g} s",
            hint=f"send it faster, or raise MESHWRIGHT_{'HEADER' if self._phase == HEADERS else 'BODY'}_TIMEOUT_S",
        )
        if self._has_begun and self._may_answer():
            self._refuse(error)
        else:
            self.transport.close()

    # ---- what is written -------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The other side does not take what is written."""
        super().pause_writing()
        self._watch_writing()

    def on_response_complete(self) -> None:
        """An answer was written whole: what is left of its request is not waited for long, nor is its reader."""
        super().on_response_complete()
        if self.pipeline:
            self.flow.pause_reading()  # which uvicorn has ended: those that wait would become more with each answer
        if self.transport.get_write_buffer_size():
            self._watch_writing()
        if self._phase == BODY and self.cycle.response_complete:
            self._phase = REST
            self._keep_time()

    def _watch_writing(self) -> None:
        if self._writing is None:
            before = self._measure_unread()
            self._writing = self.loop.call_later(self._limits.body_timeout_s, self._judge_writing, before)

    def _judge_writing(self, before: tuple[int, int]) -> None:
        """Ends the connection if nothing was taken of what was written in the time that it has."""
        self._writing = None
        unread = self._measure_unread()
        if unread[0] == 0 and not self.flow.write_paused:
            return
        if unread == before:
            self.transport.abort()  # to close is to wait until it is read
        else:
            self._watch_writing()

    def _measure_unread(self) -> tuple[int, int]:
        """Returns how many bytes wait here, and how many in the kernel until the other side has taken them."""
        return self.transport.get_write_buffer_size(), _count_unsent(self.transport)

    # ---- refusals --------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, or was refused while it was parsed, as a problem; uvicorn's is plain text."""
        not_http = InvalidRequestError("the request is not HTTP", status=400, hint=_NOT_HTTP_HINT)
        self._refuse_next(*(self._refusal or (not_http, "not_http")))

    def _refuse_next(self, error: ProblemError, reason: RefusalReason) -> None:
        """Refuses what is being read: without a word where an answer has begun, to it or to a request before it."""
        if self.transport.is_closing():
            return  # TLS goes on reading until the other side has said goodbye
        if self._phase not in {BODY, REST}:
            self._count(reason)
        if self._may_answer():
            self._refuse(error)
        else:
            self.transport.close()

    def _count(self, reason: RefusalReason) -> None:
        """Counts an end without a request, and says so in the log, as far as there is room for it."""
        self._room.refused[reason] += 1
        self._room.lines.tell(reason, self._peer.name)

    def _may_answer(self) -> bool:
        """Returns whether what is written now can only be taken for the answer to what is being read."""
        if self._phase == BODY:
            return not (self.pipeline or self.cycle.response_started)
        return self._phase != REST and not self._is_answering()

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


def _count_unsent(transport: asyncio.BaseTransport) -> int:
    """Returns how many bytes the kernel keeps of what was written: sent and not acknowledged, or not sent (tcp(7))."""
    try:
        kept = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0  # it is closed
    return int(struct.unpack("i", kept)[0])
