"""The JAX of this process's tests: 8 virtual CPU devices, said before its backend starts. A store, a queue of runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import jax
import pytest

from meshwright_agent.store import Store
from tests.unit.staging import Stage, staged
from tests.unit.store.opening import opened

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(tmp_path / "db") as store:
        yield store


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as stage:
        yield stage
