"""A recorded host that modules of the watch look at."""

from __future__ import annotations

import pytest

from tests.fakes.machines import Machine, plant_machine


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return plant_machine("dgx-h100", tmp_path_factory.mktemp("dgx"))
