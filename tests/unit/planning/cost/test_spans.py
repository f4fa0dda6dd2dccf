"""What axes run over on hosts of GPUs: which part stays inside, and what a collective takes there."""

from __future__ import annotations

import pytest

from meshwright.planning.cost.spans import AXES, Layout, lay_on_hosts
from meshwright.planning.search.candidates import Hardware
from meshwright.topology.chips import read_chips
from meshwright.topology.targets import build_target

A100 = next(chip for chip in read_chips() if "a100" in chip.aliases)


def lay(**axes: int) -> dict[str, tuple[float, float]]:
    spans = lay_on_hosts(Layout(**axes), A100, 8)
    return {axis: (float(spans[axis].inner.size), float(spans[axis].outer.size)) for axis in AXES}


@pytest.mark.parametrize(
    ("axes", "axis", "sizes"),
    [
        ({"tp": 8, "dp": 4}, "tp", (8, 1)),
        ({"tp": 8, "dp": 4}, "dp", (1, 4)),
        ({"tp": 2, "dp": 16}, "dp", (4, 4)),
        ({"tp": 16}, "tp", (8, 2)),
        ({"tp": 4, "dp": 2, "pp": 4}, "pp", (1, 4)),
        ({"tp": 2, "ep": 8, "dp": 2}, "ep", (4, 2)),
        ({"tp": 3, "dp": 4}, "dp", (2, 2)),
    ],
    ids=["tensor inside", "data across", "half a node each", "two nodes", "stages", "experts", "odd sizes"],
)
def test_axes_fill_hosts_from_the_inside_out(axes: dict[str, int], axis: str, sizes: tuple[float, float]) -> None:
    assert lay(**axes)[axis] == sizes


@pytest.mark.parametrize(
    ("target", "rates"),
    [
        ("mi300x:8", {2: 64e9, 4: 192e9, 8: 448e9}),  # a link of 64 GB/s to each other GPU
        ("mi300x:4", {2: 64e9, 4: 192e9}),
        ("h100:4", {2: 150e9, 4: 450e9}),  # 18 links over 3 peers, no switch
        ("h100:8", {2: 450e9, 4: 450e9, 8: 450e9}),
        ("2*gb200:72", {2: 900e9, 4: 900e9}),
        ("v100:8", {2: 150e9, 8: 150e9}),  # not joined each to each: the sum of its links, as before
    ],
)
def test_a_small_group_without_a_switch_has_its_own_links_only(target: str, rates: dict[int, float]) -> None:
    topology = build_target(target)
    hardware = Hardware.of(topology, len(topology.devices))
    for size, rate in rates.items():
        wire = hardware.lay(Layout(tp=size, dp=len(topology.devices) // size))["tp"].inner
        assert float(wire.bytes_per_s) == pytest.approx(rate), size
        neighbor = wire.bytes_per_s if wire.neighbor_bytes_per_s is None else wire.neighbor_bytes_per_s
        assert float(neighbor) == pytest.approx(min(rate, rates[2])), size
