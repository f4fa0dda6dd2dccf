"""An answer on its way: its pieces, its id, and streams that end with the right to hear them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from meshwright_agent.api.sending import PIECE_BYTES, Sending

START = {"type": "http.response.start", "status": 201, "headers": [(b"a", b"b")]}


def send(*messages: Message, admits: list[bool] | None = None) -> tuple[Sending, list[Message]]:
    """Returns what was sent of these messages; `admits` answers, one after another, whether the caller may go on."""
    sent: list[Message] = []
    answers = list(admits or ())

    async def keep(message: Message) -> None:
        sent.append(message)

    async def run() -> Sending:
        sending = Sending(keep, b"id-1", lambda: answers.pop(0))
        for message in messages:
            await sending(message)
        return sending

    return asyncio.run(run()), sent


def body(data: bytes, **more: Any) -> Message:
    return {"type": "http.response.body", "body": data, **more}


def test_an_answer_carries_the_id_and_its_status_is_known() -> None:
    sending, sent = send(dict(START), body(b"x"))
    assert sending.status == 201
    assert sent[0]["headers"] == [(b"a", b"b"), (b"x-request-id", b"id-1")]
    assert sent[1:] == [body(b"x")]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_a_body_goes_in_pieces_of_which_none_is_larger_than_the_limit_and_one_is_the_last(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    _, sent = send(dict(START), body(data[:size]))
    pieces = sent[1:]
    assert b"".join(piece["body"] for piece in pieces) == data[:size]
    assert max(len(piece["body"]) for piece in pieces) <= PIECE_BYTES
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_a_stream_asks_at_each_message_and_ends_where_its_caller_may_not_come_in_any_more() -> None:
    first, ping, secret = (body(data, more_body=True) for data in (b"event", b": ping", b"secret"))
    _, sent = send(dict(START), first, ping, secret, secret, body(b""), admits=[True, True, False])
    assert sent[1:] == [first, ping, body(b"")]


def test_others_go_on_while_a_long_answer_is_taken_at_once() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def take(_message: Message) -> None:
        """As a connection whose reader is fast: it never waits."""

    async def run() -> None:
        counting = asyncio.create_task(count())
        sending = Sending(take, b"id-1", lambda: True)
        await sending(dict(START))
        await sending(body(b"x" * (10 * PIECE_BYTES)))
        counting.cancel()

    asyncio.run(run())
    assert turns >= 9
