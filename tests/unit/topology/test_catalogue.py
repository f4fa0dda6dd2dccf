from __future__ import annotations

from meshwright.topology.chips import read_chips
from meshwright.topology.systems import read_slices
from meshwright.topology.targets import list_targets
from tests.fakes.slices import read_named_slices

ALL = list_targets()


def test_every_chip_and_every_named_slice_is_listed_once() -> None:
    assert [chip.chip for chip in ALL.chips] == ["cpu", *(chip.aliases[0] for chip in read_chips())]
    named = [each.names[0] for each in ALL.systems if each.names]
    assert named == [each.name for each in read_slices()]
    assert {each.name for each in read_named_slices()} <= set(named)
