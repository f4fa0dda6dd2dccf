"""The agent's log: lines of text or of JSON on stderr, written by a thread of its own.

Rule: whoever logs never waits and never fails. A record becomes a line at once, where it is logged; a thread writes the
lines, and while stderr takes none (a pipe that nobody reads) lines beyond `WAITING_MAX` are dropped, counted and told.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from meshwright_agent.telemetry.request_id import REQUEST_ID

LogFormat = Literal["text", "json"]

ACCESS: Final = "meshwright.access"
"""The logger of answered requests."""
STDERR: Final = 2
WAITING_MAX: Final = 10_000
"""Lines that may wait for stderr: some MB at most."""
STOP_WAIT_S: Final = 1.0
"""How long the end waits for stderr to take what is left."""

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""What a record has without `extra`; and uvicorn's message over again, with the escapes of a terminal in it."""
_OWN: Final = frozenset({"time", "level", "logger", "message", "request_id", "exception", "stack"})

Write = Callable[[bytes], None]


def write_stderr(data: bytes) -> None:
    """Writes all of it to descriptor 2, past Python's buffer: a thread that hangs in that one would hang the exit.

    Raises:
        OSError: nobody can read it any more.
    """
    while data:
        data = data[os.write(STDERR, data) :]


class LineLog(logging.Handler):
    """Makes lines of records, and lets a thread write them.

    Attributes:
        dropped_count: lines that were not written, because too many waited or nobody can read them.
    """

    def __init__(self, formatter: logging.Formatter, *, write: Write = write_stderr, most: int = WAITING_MAX) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.dropped_count = 0
        self._write = write
        self._most = most
        self._told_count = 0
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="meshwright-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Makes a line of the record; never waits, never raises."""
        try:
            line = self.format(record)
        except Exception as error:  # a bug of ours must not become one of whoever logs
            line = f"a record of {record.name} could not be written ({type(error).__name__})"
        if self._lines.qsize() >= self._most:
            self.dropped_count += 1
        else:
            self._lines.put(line)

    def close(self) -> None:
        """Writes what is left, within `STOP_WAIT_S`. May be repeated."""
        self._lines.put(None)
        self._thread.join(STOP_WAIT_S)
        super().close()

    # ---- in the thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write((line + "\n").encode(errors="backslashreplace"))
                self._tell_dropped()
            except OSError:
                self.dropped_count += 1
                self._told_count += 1

    def _tell_dropped(self) -> None:
        count = self.dropped_count - self._told_count
        if count and self._lines.qsize() < self._most // 2:
            self._told_count += count
            words = "%d lines of the log were dropped: stderr did not take them"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, (count,), None)
            self._write((self.format(record) + "\n").encode())


class TextFormatter(logging.Formatter):
    """Lines for people: time (UTC), level, logger, the request's id where there is one, message; a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        asked = f" [{request_id}]" if (request_id := REQUEST_ID.get()) else ""
        head = f"{_tell_time(record)} {record.levelname} {record.name}{asked}: {_tell_message(record)}"
        return "\n".join((head, *filter(None, (_tell_exception(record), record.stack_info))))


class JsonFormatter(logging.Formatter):
    """Lines for machines: one object each, whatever the record holds. What `extra` names stands beside our fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the object."""
        own: dict[str, Any] = {
            "time": _tell_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _tell_message(record),
            "request_id": REQUEST_ID.get() or None,
            "exception": _tell_exception(record) or None,
            "stack": record.stack_info,
        }
        own = {name: value for name, value in own.items() if value is not None}
        extra = {_rename(name): value for name, value in vars(record).items() if name not in _STANDARD}
        try:
            return _format_object(own | extra)
        except (TypeError, ValueError, RecursionError):  # NaN, a key that is no text, a circle
            return _format_object(own | {name: _describe(value) for name, value in extra.items()})


def _format_object(value: Mapping[str, Any]) -> str:
    return json.dumps(value, default=_describe, allow_nan=False, ensure_ascii=False)


def _rename(name: str) -> str:
    return f"extra_{name}" if name in _OWN else name


def _describe(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _tell_message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit their format
        given = record.args if isinstance(record.args, tuple) else (record.args,)
        return f"{_describe(record.msg)} (with {', '.join(map(_describe, given))})"


def _tell_exception(record: logging.LogRecord) -> str:
    """Returns the traceback as text, made once for all who want it; empty where there is none."""
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""


def _tell_time(record: logging.LogRecord) -> str:
    """Returns when it was logged, RFC 3339 with microseconds, UTC."""
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


@contextlib.contextmanager
def logging_to_stderr(log_format: LogFormat, level: str) -> Iterator[LineLog]:
    """Sends everything that is logged within the block to stderr; yields the handler."""
    log = LineLog(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(log)
    root.setLevel(level.upper())
    logging.getLogger(ACCESS).setLevel(logging.INFO)
    try:
        yield log
    finally:
        root.removeHandler(log)
        root.setLevel(before)
        log.close()


def log_access(route: str, method: str, status: int, seconds: float) -> None:
    """Logs one answered request: of its address the route's template alone, so that no caller's text comes in."""
    fields = {"route": route, "method": method, "status": status, "duration_s": round(seconds, 6)}
    logging.getLogger(ACCESS).info("%s %s %d in %.6f s", method, route, status, seconds, extra=fields)
