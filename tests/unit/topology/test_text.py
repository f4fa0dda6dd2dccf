from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.topology.text import WIDTH, format_devices
from tests.fakes.machines import NAMES, plant_machine, show


@pytest.mark.parametrize("name", NAMES)
def test_no_line_of_a_recorded_machine_is_wider_than_a_terminal(name: str, tmp_path: Path) -> None:
    lines = format_devices(plant_machine(name, tmp_path).view()).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert [line for line in lines if line != line.rstrip()] == []


def test_what_nobody_knows_has_no_column_and_holders_that_could_not_be_seen_are_unknown(tmp_path: Path) -> None:
    seen = show(None)
    assert format_devices(seen).splitlines()[:5] == [
        "        declared: no device of these was looked at", f"host    {seen.host.name}",
        "jax     not seen yet · worker ready, generation 1", "", "[0] cpu",
    ]  # fmt: skip
    unseen = seen.model_copy(update={"devices": (seen.devices[0].model_copy(update={"processes": None}),)})
    assert "[0] cpu | holders unknown" in format_devices(unseen)
