from __future__ import annotations

from pathlib import Path

import pytest

from meshwright_agent.facts.model import PciHealth
from meshwright_agent.facts.sysfs import read_pci_health

AER = "Undefined 0\nDLP 1\nPoisonedTLP 2\nTOTAL_ERR_FATAL {}"


def plant(folder: Path, *, slot: str = "16", **files: str) -> Path:
    """A function below its slot, and the link by which the bus names it."""
    device = folder / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    device.mkdir(parents=True)
    (device.parent / "max_link_width").write_text(slot)
    for name, text in files.items():
        (device / name).write_text(f"{text}\n")
    bus = folder / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / device.name).symlink_to(device)
    return bus / device.name


def test_width_and_errors_are_read(tmp_path: Path) -> None:
    path = plant(
        tmp_path, current_link_width="8", max_link_width="16", aer_dev_fatal=AER.format(3),
        aer_dev_nonfatal="TOTAL_ERR_NONFATAL 4",
    )  # fmt: skip
    assert read_pci_health(path) == PciHealth(8, 16, 3, 4)


def test_a_wide_card_in_a_narrow_slot_can_no_more(tmp_path: Path) -> None:
    health = read_pci_health(plant(tmp_path, slot="8", current_link_width="8", max_link_width="16"))
    assert health is not None
    assert health.most_width == 8


@pytest.mark.parametrize("width", ["0", "255", "Unknown", ""])
def test_a_width_that_is_none_is_null(width: str, tmp_path: Path) -> None:
    assert read_pci_health(plant(tmp_path, current_link_width=width)) is None


def test_a_function_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert read_pci_health(tmp_path / "nowhere") is None
