"""The same call on Client and on AsyncClient, so that a test is written once for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal

import pytest

from meshwright import AsyncClient, Client
from meshwright.testing import FakeAgent

Kind = Literal["sync", "async"]
both = pytest.mark.parametrize("kind", ["sync", "async"])


def ask(kind: Kind, fake: FakeAgent, question: Callable[[Any], Any], **options: Any) -> Any:
    """Returns what `question(client)` answers; iterators as lists."""
    if kind == "sync":
        with fake.client(**options) as client:
            return ask_sync(client, question)
    return asyncio.run(ask_async(fake.async_client(**options), question))


def ask_url(kind: Kind, url: str, question: Callable[[Any], Any], **options: Any) -> Any:
    """The same on a real address."""

    async def ask_there() -> Any:
        return await ask_async(AsyncClient(url, **options), question)

    if kind == "sync":
        with Client(url, **options) as client:
            return ask_sync(client, question)
    return asyncio.run(ask_there())


def ask_sync(client: Client, question: Callable[[Any], Any]) -> Any:
    answer = question(client)
    return list(answer) if isinstance(answer, Iterator) else answer


async def ask_async(client: AsyncClient, question: Callable[[Any], Any]) -> Any:
    async with client:
        answer = question(client)
        if isinstance(answer, AsyncIterator):
            return [item async for item in answer]
        return await answer if inspect.isawaitable(answer) else answer
