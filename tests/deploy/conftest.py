"""Fixtures of the tests of Slurm's scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent
from tests.deploy.slurm_node import Node, build_node
from tests.process.living import end_leases
from tests.tokens import add_token


@pytest.fixture(scope="package")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: its devices are leased, and its benches give way."""
    with start_agent(cpu_devices=2) as running:
        yield running


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent with tokens: `old-secret` and `new-secret`."""
    tokens = tmp_path_factory.mktemp("guarded") / "tokens"
    for name in ("old", "new"):
        add_token(tokens, name, "operate", secret=f"{name}-secret")
    with start_agent(cpu_devices=2, MESHWRIGHT_TOKENS_FILE=str(tokens)) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, host: RunningAgent) -> Iterator[Node]:
    yield build_node(tmp_path, host.url)
    end_leases(host)
