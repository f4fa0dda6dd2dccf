"""The agent's log: lines of text or JSON on stderr, written by a separate thread.

A record is formatted in the thread that logs it. While stderr blocks (a pipe that is not read), lines beyond
`MAX_WAITING` are dropped: the event loop never waits for a log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal

REQUEST_ID: Final[ContextVar[str]] = ContextVar("meshwright_request_id", default="")
"""The id of the current request, empty outside of requests. Tasks that a request starts inherit it."""
MAX_WAITING: Final = 10_000
STOP_TIMEOUT_S: Final = 1.0
"""How long the shutdown waits for stderr to accept the remaining lines."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""Fields of a record without `extra`, and uvicorn's second copy of the message with terminal escapes."""


def _format_time(record: logging.LogRecord) -> str:
    """Returns the time of the record, RFC 3339 with microseconds, UTC."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class TextFormatter(logging.Formatter):
    """Formats lines for people: time (UTC), level, logger, request id if present, message; a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        asked = f" [{request_id}]" if (request_id := REQUEST_ID.get()) else ""
        return f"{_format_time(record)} {record.levelname} {record.name}{asked}: {super().format(record)}"


class JsonFormatter(logging.Formatter):
    """Formats lines for machines: one JSON object each. The fields of `extra` are added to the standard fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object."""
        own: dict[str, Any] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get() or None,
            "exception": self.formatException(record.exc_info) if record.exc_info else None,
            "stack": record.stack_info,
        }
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields = {name: value for name, value in (extra | own).items() if value is not None}
        return json.dumps(fields, default=str, ensure_ascii=False)


class _LineWriter(logging.handlers.QueueListener):
    """Writes lines to descriptor 2, past Python's buffers and handlers, whose locks would hang the exit."""

    def handle(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        with contextlib.suppress(OSError):  # the reader of stderr has gone
            os.write(2, f"{record.msg}\n".encode(errors="backslashreplace"))


class _LineHandler(logging.handlers.QueueHandler):
    """Passes lines to the writer thread, and drops lines when the queue is full."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Returns a record whose message is the formatted line."""
        return logging.makeLogRecord({"msg": self.format(record)})

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Ignores a full queue or a record that cannot be formatted, because the caller must continue."""


@contextlib.contextmanager
def logging_to_stderr(log_format: Literal["text", "json"], level: str) -> Iterator[None]:
    """Sends all log records within the block to stderr."""
    handler = _LineHandler(queue.Queue(MAX_WAITING))
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    listener = _LineWriter(handler.queue)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    listener.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        stopping = threading.Thread(target=listener.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)
