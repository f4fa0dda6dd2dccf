"""An answer on its way: what the gate adds to it, and when it ends one that its caller may not hear on.

Rule: an answer waits here, not in the server, until its reader has taken what was sent: a long one goes in pieces, so
that whoever does not read holds a piece and not the whole. A stream asks again, with each event and each keep-alive,
whether its caller may still come in. Knows neither routes nor tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Send

PIECE_BYTES: Final = 1 << 17


class Sending:
    """Sends one answer, with the request's id.

    Attributes:
        status: of the answer; 500 until there is one.
    """

    def __init__(self, send: Send, request_id: bytes, may_go_on: Callable[[], bool]) -> None:
        self.status: int = 500
        self._send = send
        self._request_id = request_id
        self._may_go_on = may_go_on
        self._is_cut_off = False

    async def __call__(self, message: Message) -> None:
        """Sends one ASGI message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id)]
        elif message.get("more_body"):
            if self._is_cut_off:
                return
            if not self._may_go_on():
                self._is_cut_off = True  # `receive` says from now on that the caller has left, which ends the stream
                message = {"type": "http.response.body", "body": b""}
        elif self._is_cut_off:
            return
        elif len(body := message.get("body", b"")) > PIECE_BYTES:
            message = await self._send_pieces(message, body)
        await self._send(message)

    async def _send_pieces(self, message: Message, body: bytes) -> Message:
        """Sends all but the last piece of a body; returns the message with the last."""
        last = (len(body) - 1) // PIECE_BYTES * PIECE_BYTES
        for start in range(0, last, PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # a reader who is fast enough would have all of it before anybody else
        return {**message, "body": body[last:]}
