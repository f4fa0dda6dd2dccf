"""Server-sent events: bytes in, whole frames out. No I/O; independent of runs.

Lines end at CR LF, LF or CR only (a JSON string may hold U+2028, at which `str.splitlines` would cut).
Source: WHATWG HTML, "Server-sent events", §9.2.5–9.2.6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Frame:
    """One event as it was sent."""

    id: str
    event: str
    data: str


class SseParser:
    """Collects bytes until frames are whole; half a frame at the end of a stream is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, list[str]] = {}

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that this chunk completes."""
        text = self._rest + chunk
        held = b"\r" if text.endswith(b"\r") else b""  # its LF may come with the next chunk
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        self._rest = rest + held
        return [frame for line in lines if (frame := self._take(line.decode("utf-8", "replace")))]

    def _take(self, line: str) -> Frame | None:
        if line:
            name, _, value = line.partition(":")
            if name:  # a line that starts with a colon is a comment: the agent's sign of life
                self._fields.setdefault(name, []).append(value.removeprefix(" "))
            return None
        fields, self._fields = self._fields, {}
        if "data" not in fields:
            return None
        last = {name: values[-1] for name, values in fields.items()}
        return Frame(last.get("id", ""), last.get("event", "message"), "\n".join(fields["data"]))
