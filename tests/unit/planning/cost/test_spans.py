"""What axes run over on hosts of GPUs: which part stays inside, and what a collective takes there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshwright.planning.cost.spans import Layout
from meshwright.planning.search.candidates import Hardware
from meshwright.topology.targets import build_target


def test_a_host_shares_its_nic() -> None:
    for target, rate, is_assumed in (
        ("2*v4:4x4x4", 6.25e9, False),
        ("2*v100:8", 1.5625e9, False),
        ("2*l4:8", 1.5625e9, True),  # not in the table: a NIC of 100 Gbit/s a host
        ("2*v3:4x4", 12.5e9 / 32, True),  # of two cores a chip
    ):
        topology = build_target(target)
        hardware = Hardware.of(topology, len(topology.devices), range(len(topology.devices)))
        assert float(hardware.lay(Layout(dp=len(topology.devices)))["dp"].outer.bytes_per_s) == rate
        assert hardware.is_network_assumed is is_assumed


@pytest.mark.parametrize(("chosen", "devices", "domain"), [
    (range(16), 8, 8), (range(16), 16, 8), (range(8), 8, 8),
    ((*range(7), 8), 8, 1), ((*range(6), 8, 9), 8, 2), ((*range(4), *range(8, 12)), 8, 4),  # the fewest of a host
    ((*range(6), *range(8, 14)), 8, 6),  # no host has eight
    (range(15), 14, 8), (range(15), 15, 7),
])  # fmt: skip
def test_a_fast_network_joins_no_more_devices_than_were_chosen_of_a_host(
    chosen: Sequence[int], devices: int, domain: int
) -> None:
    assert Hardware.of(build_target("2*h100:8"), devices, chosen).domain == domain


@pytest.mark.parametrize(("target", "rates"), [
    ("mi300x:8", {2: 64e9, 4: 192e9, 8: 448e9}),  # a link of 64 GB/s to each other GPU
    ("mi300x:4", {2: 64e9, 4: 192e9}),
    ("h100:4", {2: 150e9, 4: 450e9}),  # 18 links over 3 peers, no switch
    ("h100:8", {2: 450e9, 4: 450e9, 8: 450e9}),
    ("2*gb200:72", {2: 900e9, 4: 900e9}),
    ("2*h100-pcie:2", {2: 300e9}), ("h100-pcie:4", {2: 63e9, 4: 63e9}),  # a bridge joins two cards
    ("v100:8", {2: 150e9, 8: 150e9}),  # not joined each to each: the sum of its links, as before
])  # fmt: skip
def test_a_small_group_without_a_switch_has_its_own_links_only(target: str, rates: dict[int, float]) -> None:
    topology = build_target(target)
    hardware = Hardware.of(topology, len(topology.devices), range(len(topology.devices)))
    for size, rate in rates.items():
        wire = hardware.lay(Layout(tp=size, dp=len(topology.devices) // size))["tp"].inner
        assert float(wire.bytes_per_s) == pytest.approx(rate), size
        neighbor = wire.bytes_per_s if wire.neighbor_bytes_per_s is None else wire.neighbor_bytes_per_s
        assert float(neighbor) == pytest.approx(min(rate, rates[2])), size
