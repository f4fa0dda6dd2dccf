"""Fixtures of several scenarios on the one agent that they share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.agents import RunningAgent
from tests.process.living import end_leases


@pytest.fixture
def no_leases(agent: RunningAgent) -> Iterator[None]:
    """Leaves the devices free to the next test."""
    yield
    end_leases(agent)
