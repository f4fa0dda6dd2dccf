"""Where a stream of events begins, and how it ends when the store does not answer."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from pydantic import TypeAdapter, ValidationError

from meshwright_agent.api.dependencies import MOST_SEQ, LastEventId
from meshwright_agent.api.events import Since, stream_events
from meshwright_agent.health.history import History
from tests.fakes.stored import EPOCH, ManualClock
from tests.unit.api.asgi import ask, build_small_app
from tests.unit.store.opening import opened


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = build_small_app()

    @app.get("/seen")
    async def read_seen(seen: LastEventId) -> dict[str, int | None]:
        return {"seen": seen}

    return app


@pytest.mark.parametrize(
    ("text", "seen"), [("0", 0), ("7", 7), ("007", 7), (str(MOST_SEQ), MOST_SEQ), ("", None), (None, None)]
)
def test_the_id_that_a_listener_saw_last_is_a_number(app: FastAPI, text: str | None, seen: int | None) -> None:
    heard = ask(app, target="/seen", headers={} if text is None else {"Last-Event-ID": text})
    assert (heard.status, heard.document) == (200, {"seen": seen})


@pytest.mark.parametrize("text", ["abc", "-1", "1.5", " 1 2", "\u00b2", str(MOST_SEQ + 1), "9" * 26, "9" * 5000])
def test_an_id_that_no_event_can_have_is_refused_and_nothing_is_passed_over(app: FastAPI, text: str) -> None:
    heard = ask(app, target="/seen", headers={"Last-Event-ID": text})
    assert (heard.status, heard.document["code"]) == (422, "invalid_request")
    assert heard.document["errors"][0]["field"] == "last-event-id"
    assert "leave the header out" in heard.document["hint"]
    assert len(heard.body) < 1000


def test_a_stream_ends_and_does_not_fail_when_the_store_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> list[Any]:
        async with opened(tmp_path / "db") as store:
            history = History(store, clock=ManualClock())
            await history.recall()
            history.note_fault("store", "x", state="degraded", reason="", action="", at=EPOCH)
            await history.flush()
            heard: list[Any] = []
            agent: Any = SimpleNamespace(history=history)
            async for sent in stream_events(agent, seen=0):
                heard.append(sent.id)
                await store._call(store._close)
            return heard

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(test()) == ["1"]
    assert "a listener of events is let go" in caplog.text


@pytest.mark.parametrize("text", ["0.5", "1700000000", "-1", "1e5", "2026-11-22", "2026-11-22T10:00:00"])
def test_a_number_or_a_time_without_its_zone_is_no_time_to_begin_at(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Since).validate_python(text)


def test_a_time_with_its_zone_is_one() -> None:
    assert TypeAdapter(Since).validate_python("2026-01-01T01:00:00+01:00") == datetime(2026, 1, 1, tzinfo=UTC)
