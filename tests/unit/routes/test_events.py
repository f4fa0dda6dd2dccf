"""Where a stream of events begins, and how it ends when the store does not answer."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from meshwright_agent.auth import Caller
from meshwright_agent.health.events import History
from meshwright_agent.routes.health import EventListQuery, EventsQuery, stream_events
from tests.fakes.stored import EPOCH, ManualClock
from tests.unit.store.opening import opened


def test_a_stream_ends_and_does_not_fail_when_the_store_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> list[Any]:
        async with opened(tmp_path / "db") as store:
            history = History(store, clock=ManualClock())
            await history.recall()
            history.record_fault("store", "x", state="degraded", reason="", action="", at=EPOCH)
            await history.flush()
            heard: list[Any] = []
            agent: Any = SimpleNamespace(history=history)
            knows: Any = SimpleNamespace(is_valid=lambda caller: True)
            async for sent in stream_events(agent, knows, Caller("addr:test", "read"), EventsQuery(), 0):
                heard.append(sent.id)
                await store._call(store._close)
            return heard

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(test()) == ["1"]
    assert "the stream of health events ends early" in caplog.text


@pytest.mark.parametrize("text", ["0.5", "1700000000", "-1", "1e5", "2026-11-22", "2026-11-22T10:00:00"])
def test_a_number_or_a_time_without_its_zone_is_no_time_to_begin_at(text: str) -> None:
    with pytest.raises(ValidationError):
        EventListQuery(since=text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["2026-01-01T01:00:00+01:00", "2026-01-01T01:00:00 01:00"]
)  # a + in a query is a space
def test_a_time_with_its_zone_is_one(text: str) -> None:
    assert EventListQuery.model_validate({"since": text}).since == datetime(2026, 1, 1, tzinfo=UTC)
