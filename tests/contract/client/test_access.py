"""Tokens: shown, refused, rotated, and never seen in what is printed; refusals with hints."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import httpx
import pytest

from meshwright.errors import AgentConnectionError, ForbiddenError, ProblemError, UnauthorizedError, UnavailableError
from meshwright.testing import FakeAgent
from meshwright.wire.problem import build_problem
from tests.contract.client.both import Kind, ask, both

SECRET = "mw-secret-hunter2"


class Guarded(FakeAgent):
    """A fake that refuses requests without one of its tokens, except for `/readyz`."""

    def __init__(self, *tokens: str) -> None:
        super().__init__()
        self.tokens = set(tokens)
        self.tokens_sent: list[str] = []

    def transport(self) -> httpx.MockTransport:
        answer = super().transport().handle_request

        def admit(request: httpx.Request) -> httpx.Response:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            self.tokens_sent.append(token)
            if token in self.tokens or request.url.path == "/readyz":
                return answer(request)
            refused = build_problem(UnauthorizedError("this agent needs a token"))
            return httpx.Response(401, content=refused.model_dump_json())

        return httpx.MockTransport(admit)


@both
@pytest.mark.parametrize(("status", "error", "hint"), [
    (401, UnauthorizedError, "MESHWRIGHT_TOKEN"), (403, ForbiddenError, "scope"),
    (421, ForbiddenError, "MESHWRIGHT_ALLOWED_HOSTS"),
])  # fmt: skip
def test_a_proxys_refusal_is_the_class_of_its_status_with_what_helps(
    kind: Kind, status: int, error: type[ProblemError], hint: str
) -> None:
    fake = FakeAgent()
    fake.fail_next(httpx.Response(status, html="<h1>no</h1>"))
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


def _rotate(fake: Guarded, file: Path, old: int) -> None:
    fake.tokens = {f"{SECRET}-{old + 1}"}
    file.write_text(f"{SECRET}-{old + 1}\n")


def test_a_token_file_that_was_rotated_is_read_again_once_a_refusal_comes(token_file: Path) -> None:
    fake = Guarded(f"{SECRET}-1")
    with fake.client(max_retries=0) as client:
        assert client.devices().platform == "cpu"
        _rotate(fake, token_file, 1)
        assert client.devices().platform == "cpu"
        _rotate(fake, token_file, 2)
        run = client.submit_bench(cases=["matmul"])
        assert list(client.run_events(run.id))[-1].state == "succeeded"
    shown = [token.rpartition("-")[2] for token in fake.tokens_sent]
    assert shown == ["1", "1", "2", "2", "3", "3"]  # each refused once, and the new one from then on
    assert fake.pauses_s == []


@pytest.mark.parametrize("content", [f"{SECRET}-1", "", "two words", None])
def test_a_token_file_that_has_nothing_new_leaves_the_refusal(token_file: Path, content: str | None) -> None:
    fake = Guarded("not in the file")
    with fake.client() as client:
        if content is None:
            token_file.unlink()
        else:
            token_file.write_text(content)
        with pytest.raises(UnauthorizedError):
            client.devices()
    assert len(fake.tokens_sent) == 1


def test_a_refresh_costs_no_retry(token_file: Path) -> None:
    fake = Guarded(f"{SECRET}-1")
    with fake.client(max_retries=1) as client:
        _rotate(fake, token_file, 1)
        fake.fail_next(UnavailableError("wait"))
        assert client.devices().platform == "cpu"
    assert len(fake.tokens_sent) == 3


# ---- secrecy


def test_a_token_stands_in_no_representation_error_or_log(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeAgent()
    caplog.set_level(logging.DEBUG)
    told = io.StringIO()
    with fake.client(token=SECRET) as client:
        print(client, vars(client), client._auth, client._http, file=told)
        for broken in (httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError):
            fake.fail_next(broken("broken"), times=3)
            with pytest.raises(AgentConnectionError) as unanswered:
                client.devices()
            print(repr(unanswered.value), unanswered.value, vars(unanswered.value), file=told)
        fake.fail_next(UnauthorizedError("this agent needs a token"))
        with pytest.raises(UnauthorizedError) as caught:
            client.devices()
        print(repr(caught.value), caught.value, json.dumps(vars(caught.value), default=repr), file=told)
    assert SECRET not in told.getvalue() + caplog.text
    assert "devices" in told.getvalue()
