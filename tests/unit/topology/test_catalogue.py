from __future__ import annotations

import pytest

from meshwright.errors import UnknownHardwareError
from meshwright.topology.chips import read_chips
from meshwright.topology.systems import read_slices
from meshwright.topology.targets import build_target, list_targets, read_target
from meshwright.wire.targets import TargetHost, Targets, TargetSlice
from tests.fakes.slices import read_named_slices

ALL = list_targets()


def test_every_chip_and_every_named_slice_is_listed_once() -> None:
    assert [chip.chip for chip in ALL.chips] == ["cpu", *(chip.aliases[0] for chip in read_chips())]
    assert [each.name for each in ALL.slices] == [each.name for each in read_slices()]
    assert {each.name for each in read_named_slices()} <= {each.name for each in ALL.slices}


@pytest.mark.parametrize("each", ALL.slices, ids=lambda each: each.name)
def test_a_listed_slice_can_be_planned_on_by_name_and_by_target(each: TargetSlice) -> None:
    spec = read_target(each.target)
    assert str(spec) == each.target
    assert all(read_target(name) == spec for name in (each.name, *each.aliases))
    if each.can_twist:
        assert str(read_target(f"{each.target}_twisted")) == f"{each.target}_twisted"


@pytest.mark.parametrize("host", [host for chip in ALL.chips for host in chip.hosts], ids=lambda host: host.target)
def test_a_listed_host_is_what_its_target_builds(host: TargetHost) -> None:
    topology = build_target(host.target)
    assert len(topology.devices) == host.device_count
    assert len(topology.links) == sum(host.links.values())
    assert (topology.granules[0].domain is None) == (host.domain_device_count is None)
    assert host.text
    assert host.source


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


@pytest.mark.parametrize(
    ("asked", "near"), [("h1000", "h100"), ("v5p-²", "v5p"), ("v5p-256", "v5p?"), ("", "leave"), ("~", "leave")]
)
def test_a_chip_that_no_table_knows_is_refused_with_near_names(asked: str, near: str) -> None:
    with pytest.raises(UnknownHardwareError) as caught:
        list_targets(asked)
    assert near in caught.value.hint
    assert [entry["field"] for entry in caught.value.errors] == ["chip"]


def test_the_list_survives_json_and_says_only_what_it_knows() -> None:
    assert Targets.model_validate_json(ALL.model_dump_json()) == ALL
    for chip in ALL.chips:
        assert (chip.platform == "tpu") == (chip.shapes is not None)
        assert bool(chip.hosts) == (chip.platform != "tpu")
        assert (chip.device_memory_bytes is None) == (chip.platform == "cpu")
