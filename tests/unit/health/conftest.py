"""The host on which most tests of health look."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.health.test_monitor import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)
