"""The agent's log: lines of text or of JSON on stderr, written by a thread of its own.

A record becomes a line where it is logged. While stderr takes no lines (a pipe that is not read), lines beyond
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

LogFormat = Literal["text", "json"]

REQUEST_ID: Final[ContextVar[str]] = ContextVar("meshwright_request_id", default="")
"""The id of the request that is being answered, empty outside of requests; tasks that a request starts inherit it."""
MAX_WAITING: Final = 10_000
STOP_TIMEOUT_S: Final = 1.0
"""How long the end waits for stderr to take what is left."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""What a record has without `extra`; and uvicorn's message over again, with the escapes of a terminal in it."""


def _format_time(record: logging.LogRecord) -> str:
    """Returns when it was logged, RFC 3339 with microseconds, UTC."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


class TextFormatter(logging.Formatter):
    """Lines for people: time (UTC), level, logger, the request's id where there is one, message; a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        asked = f" [{request_id}]" if (request_id := REQUEST_ID.get()) else ""
        return f"{_format_time(record)} {record.levelname} {record.name}{asked}: {super().format(record)}"


class JsonFormatter(logging.Formatter):
    """Lines for machines: one object each. What `extra` names stands beside our fields."""

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
        said = {name: value for name, value in (extra | own).items() if value is not None}
        return json.dumps(said, default=str, ensure_ascii=False)


class _LineWriter(logging.handlers.QueueListener):
    """Writes lines to descriptor 2, past Python's buffers and handlers, whose locks would hang the exit."""

    def handle(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.write(2, f"{record.msg}\n".encode(errors="backslashreplace"))


class _LineHandler(logging.handlers.QueueHandler):
    """Hands lines to the thread that writes them, and drops what it has no room for."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Returns a record that is its line."""
        return logging.makeLogRecord({"msg": self.format(record)})

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Does nothing: the queue is full, or a record cannot be formatted, and the caller must go on."""


@contextlib.contextmanager
def logging_to_stderr(log_format: LogFormat, level: str) -> Iterator[None]:
    """Sends everything that is logged within the block to stderr."""
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
