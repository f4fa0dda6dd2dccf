"""Fixtures of the tests of Slurm's scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents import RunningAgent, start_agent
from tests.deploy.slurm_node import Node, build_node


@pytest.fixture(scope="module")
def host() -> Iterator[RunningAgent]:
    """An agent of our own: its devices are leased, and its benches give way."""
    with start_agent(cpu_devices=2) as running:
        yield running


@pytest.fixture
def node(tmp_path: Path, host: RunningAgent) -> Node:
    return build_node(tmp_path, host.url)
