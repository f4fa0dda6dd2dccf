from __future__ import annotations

import pytest

from meshwright.topology.chips import read_chips
from meshwright.topology.systems import read_slices
from meshwright.topology.targets import list_targets
from tests.fakes.slices import read_named_slices

ALL = list_targets()


def test_every_chip_and_every_named_slice_is_listed_once() -> None:
    assert [chip.chip for chip in ALL.chips] == ["cpu", *(chip.aliases[0] for chip in read_chips())]
    assert [each.name for each in ALL.slices] == [each.name for each in read_slices()]
    assert {each.name for each in read_named_slices()} <= {each.name for each in ALL.slices}


@pytest.mark.parametrize(
    ("asked", "chip", "slice_count"),
    [
        ("v5p", "v5p", 96),
        ("TPU v5 lite", "v5e", 8),
        ("H100 SXM", "h100", 0),
        ("ironwood", "tpu7x", 99),
        ("CPU", "cpu", 0),
    ],
)
def test_one_chip_is_listed_by_any_of_its_names(asked: str, chip: str, slice_count: int) -> None:
    found = list_targets(asked)
    assert [each.chip for each in found.chips] == [chip]
    assert len(found.slices) == slice_count
    assert {each.chip for each in found.slices} <= {chip}
