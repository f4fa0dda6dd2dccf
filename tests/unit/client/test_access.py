"""Tokens: shown, refused, rotated, and never seen in what is printed; refusals with hints."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from meshwright import Client
from meshwright.errors import (
    AccessError,
    AgentConnectionError,
    ForbiddenError,
    ProblemError,
    UnauthorizedError,
)
from meshwright.testing import FakeAgent
from tests.unit.client.both import Kind, ask

both = pytest.mark.parametrize("kind", ["sync", "async"])
SECRET = "mw-secret-hunter2"


@both
def test_without_a_token_the_agent_refuses_and_says_what_to_set(kind: Kind) -> None:
    fake = FakeAgent()
    fake.require_token(SECRET)
    for token in (None, "another"):
        with pytest.raises(UnauthorizedError) as caught:
            ask(kind, fake, lambda c: c.devices(), token=token)
        assert "MESHWRIGHT_TOKEN" in caught.value.hint
        assert isinstance(caught.value, AccessError)
    assert ask(kind, fake, lambda c: c.devices(), token=SECRET).platform == "cpu"
    assert ask(kind, fake, lambda c: c.ready())  # needs none


@both
@pytest.mark.parametrize(
    ("scope", "refused"),
    [
        ("read", {"bench", "lease", "release", "acknowledge"}),
        ("operate", {"acknowledge"}),
        ("admin", set()),
    ],
)
def test_a_token_may_what_its_scope_says(kind: Kind, scope: Any, refused: set[str]) -> None:
    fake = FakeAgent()
    fake.require_token(SECRET, scope)
    questions: dict[str, Any] = {
        "devices": lambda c: c.devices(),
        "plan": lambda c: c.plan("dp:8"),
        "batch_size": lambda c: c.batch_size(per_device_batch_size=64),
        "bench": lambda c: c.bench(cases=["matmul"]),
        "release": lambda c: c.release(),
        "lease": lambda c: c.lease(purpose="x"),
        "acknowledge": lambda c: c.acknowledge("worker", "looked"),
    }
    seen, hints = set[str](), {True}
    for name, question in questions.items():
        try:
            ask(kind, fake, question, token=SECRET)
        except ForbiddenError as error:
            seen.add(name)
            hints.add("scope" in error.hint)
    assert (seen, hints) == (refused, {True})


def test_the_owner_of_a_lease_is_the_name_of_the_token() -> None:
    fake = FakeAgent()
    fake.require_token(SECRET, name="slurm")
    with fake.client(token=SECRET) as client:
        assert client.lease(purpose="job 7").owner == "slurm"


@both
@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [
        (401, UnauthorizedError, "MESHWRIGHT_TOKEN"),
        (403, ForbiddenError, "scope"),
        (421, ForbiddenError, "MESHWRIGHT_ALLOWED_HOSTS"),
    ],
)
def test_a_proxys_refusal_is_the_class_of_its_status_with_what_helps(
    kind: Kind, status: int, error: type[ProblemError], hint: str
) -> None:
    fake = FakeAgent()
    fake.answer_next(status, b"<h1>no</h1>")
    with pytest.raises(error) as caught:
        ask(kind, fake, lambda c: c.devices())
    assert hint in caught.value.hint
    assert len(fake.requests) == 1  # none of these gets better by asking again


# ---- rotation


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}-1\n")
    monkeypatch.setenv("MESHWRIGHT_TOKEN_FILE", str(file))
    monkeypatch.delenv("MESHWRIGHT_TOKEN", raising=False)
    return file


def _rotate(fake: FakeAgent, file: Path, old: int) -> None:
    fake.revoke_token(f"{SECRET}-{old}")
    fake.require_token(f"{SECRET}-{old + 1}")
    file.write_text(f"{SECRET}-{old + 1}\n")


def test_a_token_file_that_was_rotated_is_read_again_once_a_refusal_comes(token_file: Path) -> None:
    fake = FakeAgent()
    fake.require_token(f"{SECRET}-1")
    with fake.client(max_retries=0) as client:
        assert client.devices().platform == "cpu"
        _rotate(fake, token_file, 1)
        assert client.devices().platform == "cpu"
        _rotate(fake, token_file, 2)
        run = client.submit_bench(cases=["matmul"])
        assert list(client.run_events(run.id))[-1].state == "succeeded"
    shown = [request.headers["authorization"].rpartition("-")[2] for request in fake.requests]
    assert shown == ["1", "1", "2", "2", "3", "3"]  # each refused once, and the new one from then on
    assert fake.pauses_s == []


@pytest.mark.parametrize("content", [f"{SECRET}-1", "", "two words", None])
def test_a_token_file_that_has_nothing_new_leaves_the_refusal(token_file: Path, content: str | None) -> None:
    fake = FakeAgent()
    fake.require_token("not in the file")
    with fake.client() as client:
        if content is None:
            token_file.unlink()
        else:
            token_file.write_text(content)
        with pytest.raises(UnauthorizedError):
            client.devices()
    assert len(fake.requests) == 1


def test_a_request_is_refreshed_once_and_not_for_ever(token_file: Path) -> None:
    fake = FakeAgent()
    fake.require_token("not in the file")
    with fake.client(max_retries=9) as client:
        token_file.write_text("new")
        with pytest.raises(UnauthorizedError):
            client.devices()
    assert (len(fake.requests), fake.pauses_s) == (2, [])


def test_a_refresh_costs_no_retry(token_file: Path) -> None:
    fake = FakeAgent()
    fake.require_token(f"{SECRET}-1")
    with fake.client(max_retries=1) as client:
        _rotate(fake, token_file, 1)
        fake.fail_next(503)
        assert client.devices().platform == "cpu"
    assert len(fake.requests) == 3


# ---- secrecy


def test_a_token_stands_in_no_representation_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeAgent()
    fake.require_token("another")
    caplog.set_level(logging.DEBUG)
    told = io.StringIO()
    with Client(http_client=fake.http_client(), token=SECRET, pause=lambda delay_s: None) as client:
        print(client, vars(client), client._shared, client._settings, client._http, file=told)
        kinds: dict[Any, int] = {"refused": 3, "timeout": 3, "lost": 3, "stale": 4, "untrusted": 1, "handshake": 3}
        for broken, times in kinds.items():
            fake.drop_next(kind=broken, times=times)
            with pytest.raises(AgentConnectionError) as unanswered:
                client.devices()
            print(repr(unanswered.value), unanswered.value, vars(unanswered.value), file=told)
        with pytest.raises(UnauthorizedError) as caught:
            client.devices()
        print(repr(caught.value), caught.value, json.dumps(vars(caught.value), default=repr), file=told)
    assert SECRET not in told.getvalue() + caplog.text
    assert "devices" in told.getvalue()
