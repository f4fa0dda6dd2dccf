"""A command line on a fake agent: `meshwright("plan", "x:8")` returns what was printed, and the exit code."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import typer

from meshwright import Client
from meshwright.cli import app, main
from meshwright.fleet import Fleet
from meshwright.testing import FakeAgent

dict(cast(Any, typer.main.get_command(app)).commands)  # imports them all, before any name is patched


@dataclass(frozen=True)
class Printed:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class CommandLine:
    """`meshwright` on `fake`; `asked` keeps how each client was opened."""

    capture: pytest.CaptureFixture[str]
    fake: FakeAgent = field(default_factory=FakeAgent)
    pause: Callable[[float], None] | None = None
    asked: list[tuple[str | None, float | None, int]] = field(default_factory=list)

    def __call__(self, *arguments: str) -> Printed:
        with (
            patch("meshwright.Client", self.connect),
            patch("meshwright.cli.fleet.open_fleet", self.open_fleet),
            pytest.raises(SystemExit) as stopped,
        ):
            main(arguments)
        captured = self.capture.readouterr()
        code = stopped.value.code or 0
        assert isinstance(code, int)
        assert "Traceback" not in captured.err or code == 70
        return Printed(code, captured.out, captured.err)

    def connect(self, url: str | None, *, timeout: float | None = None, max_retries: int = 2) -> Client:
        self.asked.append((url, timeout, max_retries))
        return self.fake.client(max_retries=max_retries, pause=self.pause or self.fake.pauses_s.append)

    def open_fleet(self, hosts: str | None) -> Fleet:
        return Fleet(None if hosts == "env" else hosts, connect=lambda url: self.connect(url, max_retries=1))

    def body(self, index: int = -1) -> Any:
        """What was sent in a request."""
        return json.loads(self.fake.requests[index].content or b"null")


@pytest.fixture
def meshwright(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    for name in ("COLUMNS", "MESHWRIGHT_URL", "MESHWRIGHT_LEASE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return CommandLine(capsys)


@pytest.fixture
def h100(meshwright: CommandLine) -> CommandLine:
    meshwright.fake = FakeAgent("h100:8")
    return meshwright


@pytest.fixture(autouse=True)
def _counted_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives leases the ids lease-00000001, lease-00000002 … in place of random ones."""
    numbers = itertools.count(1)
    monkeypatch.setattr(
        "meshwright._client.requests.secrets", SimpleNamespace(token_hex=lambda _: f"{next(numbers):08x}")
    )
