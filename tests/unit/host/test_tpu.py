from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.topology.model import Topology
from meshwright.wire.devices import Devices
from meshwright_agent.facts.model import CpuFacts, HostFacts, MachineFacts, SliceFacts, TpuFacts
from meshwright_agent.host.snapshot import JaxReport
from tests.fakes.machines import JAX_AT, plant_machine
from tests.fakes.machines import show as show_host


def build_facts(count: int, kind: str | None = "TPU v5 lite", **slice_fields: Any) -> HostFacts:
    tpus = tuple(TpuFacts(f"0000:00:{place:02x}.0", kind, processes=()) for place in range(count))
    return HostFacts(MachineFacts("t"), CpuFacts(), tpus=tpus, slice=SliceFacts(**slice_fields))


def show(facts: HostFacts | None, devices: list[dict[str, Any]] | None = None, platform: str = "tpu") -> Devices:
    return show_host(facts, None if devices is None else JaxReport({"platform": platform, "devices": devices}, JAX_AT))


def jax_device(index: int, coords: tuple[int, ...], core: int = 0, kind: str = "TPU v5 lite") -> dict[str, Any]:
    return {
        "id": index, "kind": kind, "platform": "tpu", "coords": list(coords), "core_on_chip": core, "slice_index": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tpu-v5e-8", "tpu-v5p-4"])
def test_the_environment_tells_the_grid_that_jax_shows_later(name: str, tmp_path: Path) -> None:
    machine = plant_machine(name, tmp_path)
    before, after = machine.view(with_jax=False), machine.view()
    for field in ("coords", "core_on_chip", "kind", "pci_bus_id", "numa_node", "position", "local_index"):
        assert [getattr(d, field) for d in before.devices] == [getattr(d, field) for d in after.devices]
    assert [(link.a, link.b) for link in before.links] == [(link.a, link.b) for link in after.links]
    assert {device.basis for device in before.devices} == {"passive"}
    assert {device.basis for device in after.devices} == {"live"}


WHOLE = {
    "tpu-v4-256": ((4, 4, 8), (True, True, True)), "tpu-v5e-8": ((2, 4, 1), (False, False, False)),
    "tpu-v5p-4": ((2, 2, 1), (False, False, False)), "tpu-v6e-8": ((2, 4, 1), (False, False, False)),
    "tpu-7x-8": ((2, 2, 1), (False, False, False)),
}  # fmt: skip


@pytest.mark.parametrize("with_jax", [True, False])
@pytest.mark.parametrize("name", WHOLE)
def test_the_granule_is_the_whole_slice_and_counts_what_is_here(name: str, with_jax: bool, tmp_path: Path) -> None:
    seen = plant_machine(name, tmp_path).view(with_jax=with_jax)
    (granule,) = seen.granules
    assert (granule.shape, granule.wrap) == WHOLE[name]
    assert (granule.twisted, granule.device_count) == (False, len(seen.devices))


GRID = [(x, y, 0) for y in range(2) for x in range(2)]
V5E, V4 = "TPU v5 lite", "TPU v4"
Slice = tuple[tuple[int, ...] | None, tuple[bool, ...] | None, bool]
UNKNOWN: Slice = (None, None, False)


@pytest.mark.parametrize(("kind", "told", "coords", "expected"), [
    (V5E, {"topology": (16, 16, 1), "host_count": 64}, GRID, ((16, 16, 1), (True, True, False), False)),
    (V5E, {"topology": (8, 16, 1)}, GRID, ((8, 16, 1), (False, True, False), False)),
    (V4, {"hosts": (2, 2, 4), "chips_per_host": (2, 2, 1), "host_count": 16}, (), ((4, 4, 4), (True,) * 3, False)),
    (V4, {"topology": (2, 2, 4), "host_count": 4}, GRID, ((2, 2, 4), (False,) * 3, False)),
    (V4, {"topology": (4, 4, 8), "twisted": True}, GRID, ((4, 4, 8), (True,) * 3, True)),
    (V4, {"topology": (4, 4, 4), "wrap": (False, True, True)}, GRID, ((4, 4, 4), (False, True, True), False)),
    (V5E, {}, GRID, ((2, 2, 1), (False,) * 3, False)),
    (V5E, {"chips_per_host": (2, 2, 1)}, (), ((2, 2, 1), (False,) * 3, False)),
    ("TPU of tomorrow", {"topology": (4, 4, 4)}, GRID, ((4, 4, 4), None, False)), (V5E, {}, (), UNKNOWN),
    (V5E, {"host_count": 4}, GRID, UNKNOWN), (V5E, {}, GRID[:3], UNKNOWN),
    (V5E, {}, [(x + 2, y, z) for x, y, z in GRID], UNKNOWN),
    (V5E, {"topology": (2, 2, 1)}, [(x + 2, y, z) for x, y, z in GRID], UNKNOWN),
    (V4, {"topology": (4, 4, 4), "hosts": (1, 1, 1), "chips_per_host": (2, 2, 1)}, GRID, UNKNOWN),
])  # fmt: skip
def test_a_slices_shape_is_told_where_nothing_contradicts_it(
    kind: str, told: dict[str, Any], coords: list[tuple[int, ...]], expected: Slice
) -> None:
    devices = [jax_device(place, coord, kind=kind) for place, coord in enumerate(coords)]
    (granule,) = show(build_facts(4, kind, **told), devices or None).granules
    assert (granule.shape, granule.wrap, granule.twisted) == expected


def test_a_slice_that_jax_sees_on_all_hosts_of_its_job_is_whole() -> None:
    places = [(x, y, 0) for y in range(4) for x in range(2)]
    devices = [{**jax_device(i, place), "process_index": i // 4} for i, place in enumerate(places)]
    jax = JaxReport({"platform": "tpu", "process_index": 1, "devices": devices}, JAX_AT)
    (granule,) = show_host(build_facts(4), jax).granules
    assert (granule.shape, granule.device_count) == ((2, 4, 1), 4)


@given(st.permutations(GRID), st.integers(1, 4))
def test_the_order_in_which_jax_lists_chips_does_not_change_the_slice(order: list[tuple[int, ...]], count: int) -> None:
    devices = [jax_device(i, place) for i, place in enumerate(order[:count])]
    (granule,) = show(build_facts(4, topology=(4, 4, 1)), devices).granules
    assert granule.shape == (4, 4, 1)


def test_hops_within_a_part_of_a_large_slice_are_those_of_the_whole(tmp_path: Path) -> None:
    topology = Topology.of(plant_machine("tpu-v4-256", tmp_path).view())
    assert [topology.hops(0, other) for other in range(4)] == [0, 1, 1, 2]


@given(st.permutations([(x, y, z, core) for x, y, z, core in product(range(2), range(2), range(2), range(2))]))
def test_any_order_of_jax_gives_the_canonical_one_with_each_device_once(places: list[tuple[int, ...]]) -> None:
    seen = show(None, [jax_device(i, place[:3], place[3]) for i, place in enumerate(places)])
    found = [(device.coords, device.core_on_chip) for device in seen.devices]
    assert found == [((x, y, z), core) for z, y, x, core in product(range(2), repeat=4)]
    assert [device.position for device in seen.devices] == list(range(16))
    assert len(seen.links) == 12  # the edges of a cube, whatever the cores


def test_capacity_is_the_tables_until_jax_tells_more(tmp_path: Path) -> None:
    machine = plant_machine("tpu-v5e-8", tmp_path)
    before, after = machine.view(with_jax=False).devices[0].memory, machine.view().devices[0].memory
    assert before is not None
    assert after is not None
    assert (before.capacity_bytes, before.limit_bytes, before.basis) == (16 * 2**30, None, "declared")
    assert (after.capacity_bytes, after.limit_bytes, after.basis) == (16 * 2**30, 16909334528, "live")


def test_two_cores_of_a_chip_share_its_pci_function() -> None:
    devices = [jax_device(i, (i // 2, 0, 0), i % 2, "TPU v3") for i in range(4)]
    seen = show(build_facts(2, "TPU v3"), devices)
    assert [device.pci_bus_id for device in seen.devices] == ["0000:00:00.0"] * 2 + ["0000:00:01.0"] * 2
    assert [(link.a, link.b) for link in seen.links] == [(0, 2)]


def test_chips_that_show_each_core_on_the_bus_are_joined_one_to_one() -> None:
    facts = build_facts(4, "TPU7x", chips_per_host=(2, 1, 1), host_count=1)
    seen = show(facts)
    assert [(device.coords, device.core_on_chip) for device in seen.devices] == [
        ((0, 0, 0), 0), ((0, 0, 0), 1), ((1, 0, 0), 0), ((1, 0, 0), 1)
    ]  # fmt: skip
    assert [device.pci_bus_id for device in seen.devices] == [tpu.pci_bus_id for tpu in facts.tpus]


def test_numbers_that_do_not_fit_are_not_joined() -> None:
    seen = show(build_facts(3), [jax_device(i, (i, 0, 0)) for i in range(2)])
    assert [(device.pci_bus_id, device.processes) for device in seen.devices] == [(None, None), (None, None)]


@pytest.mark.parametrize("fields", [
    {"chips_per_host": (2, 2, 1), "topology": (4, 4, 1), "host_count": 4},
    {"chips_per_host": (2, 2, 1), "host_count": 4}, {"chips_per_host": (2, 2, 1), "topology": (4, 4, 1)},
    {"chips_per_host": (2, 4, 1)}, {"topology": (2, 4, 1)}, {},
])  # fmt: skip
def test_coordinates_are_unknown_where_the_slice_is_not_this_host_alone_or_its_shape_is_not_told(
    fields: dict[str, Any],
) -> None:
    seen = show(build_facts(4, **fields))
    assert [(device.coords, device.core_on_chip) for device in seen.devices] == [(None, None)] * 4
    assert seen.links == ()
    assert ("slice_in_part" in [notice.code for notice in seen.warnings]) == (fields.get("host_count") == 4)
    Topology.of(seen)


def test_chips_that_the_agents_jax_does_not_see_are_listed_with_a_warning() -> None:
    seen = show(build_facts(4), [{"id": 0, "kind": "cpu", "platform": "cpu"}], "cpu")
    assert (seen.platform, len(seen.devices)) == ("tpu", 4)
    assert [notice.code for notice in seen.warnings] == ["jax_sees_no_tpu"]


def test_a_chip_whose_kind_is_not_known_is_a_tpu_of_unknown_memory() -> None:
    facts = build_facts(1, None)
    (device,) = show(replace(facts, slice=SliceFacts(topology=(1, 1, 1)))).devices
    assert (device.kind, device.memory, device.coords) == ("TPU", None, (0, 0, 0))
