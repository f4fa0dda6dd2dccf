"""No bytes in the database keep an agent from starting: random damage to a file that holds something of everything."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.databases import NAME, spoil, start_on, write_database
from tests.fuzz import scale

pytestmark = pytest.mark.exhaustive

TRIALS = 20


@pytest.mark.timeout(3600)
def test_an_agent_starts_on_a_database_with_random_bytes_and_is_never_silent_about_what_it_saw(tmp_path: Path) -> None:
    sound = write_database(tmp_path)
    outcomes: Counter[str] = Counter()
    for seed in range(scale(TRIALS)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shutil.copy(sound, folder / NAME)
        spoil(folder / NAME, seed, count=(16, 16, 3, 1)[seed % 4])
        said = start_on(folder)
        assert said.startswith(("healthy: reads and writes", "degraded: the database of before")), seed
        assert bool(list(folder.glob("*.set-aside-*Z"))) == ("set aside" in said), seed
        outcomes[said.partition(":")[0]] += 1
        shutil.rmtree(folder)
    assert set(outcomes) == {"healthy", "degraded"}, "some damage hits what is free, some does not"
