"""The failures of a fake agent, set by a test: errors, broken connections, foreign answers, cut streams."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx

from meshwright._calls.messages import Answer, FailureKind
from meshwright.errors import class_for
from meshwright.testing.routing import Served, write_problem


@dataclass(frozen=True)
class _Fault:
    """The failure of the next request: on `path` only, unless `path` is None."""

    path: str | None
    act: Callable[[], Served]


class Faulty:
    """What can be made to fail: in order, each once."""

    def __init__(self) -> None:
        self._faults: deque[_Fault] = deque()
        self._cuts: deque[int] = deque()

    def fail_next(
        self,
        status: int = 503,
        code: str = "not_ready",
        *,
        detail: str = "a failure that the test asked for",
        hint: str = "",
        retry_after_s: float | None = None,
        times: int = 1,
        path: str | None = None,
    ) -> None:
        """Refuses the next `times` requests (to `path`, if given) with a problem."""
        error = class_for(code, status)(detail, hint=hint, retry_after_s=retry_after_s, status=status, code=code)
        self._faults.extend([_Fault(path, lambda: write_problem(error))] * times)

    def answer_next(self, status: int, body: bytes, *, media_type: str = "text/html", path: str | None = None) -> None:
        """Answers the next request (to `path`, if given) with bytes: a proxy's page, half a JSON."""
        self._faults.append(_Fault(path, lambda: (Answer(status, {"content-type": media_type}), iter((body,)))))

    def drop_next(self, *, times: int = 1, kind: FailureKind = "lost", path: str | None = None) -> None:
        """Breaks the connection of the next `times` requests: "refused", "timeout", "stale", "lost",
        and of TLS "untrusted" and "handshake".
        """

        def act() -> Served:
            error = _KINDS[kind](f"{kind}: as the test asked for")
            error.__cause__ = _build_tls_error(kind)
            raise error

        self._faults.extend([_Fault(path, act)] * times)

    def cut_streams(self, *, after_events: int, times: int = 1) -> None:
        """Breaks the next `times` event streams after a number of events."""
        self._cuts.extend([after_events] * times)

    def _take_fault(self, path: str) -> _Fault | None:
        for fault in self._faults:
            if fault.path in (None, path):
                self._faults.remove(fault)
                return fault
        return None

    def _take_cut(self) -> int | None:
        return self._cuts.popleft() if self._cuts else None


_KINDS: Final[dict[FailureKind, type[httpx.TransportError]]] = {
    "refused": httpx.ConnectError,
    "timeout": httpx.ReadTimeout,
    "stale": httpx.ReadError,
    "lost": httpx.RemoteProtocolError,
    "closed": httpx.CloseError,
    "untrusted": httpx.ConnectError,
    "expired": httpx.ConnectError,
    "handshake": httpx.ReadError,
}


def _build_tls_error(kind: FailureKind) -> ssl.SSLError | None:
    """Returns the error of TLS that a failure comes from."""
    match kind:
        case "untrusted":
            return ssl.SSLCertVerificationError(1, "the certificate is not trusted")
        case "expired":
            expired = ssl.SSLCertVerificationError(1, "the certificate has expired")
            expired.verify_code = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
            return expired
        case "handshake":
            refused = ssl.SSLError(1, "the other side does not take the certificate")
            refused.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
            return refused
    return None
