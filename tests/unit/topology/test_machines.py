from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from meshwright.topology.chips import Chip, find_chip, read_chips
from meshwright.topology.systems import (
    Machine,
    find_default_count,
    find_domain_count,
    find_machine,
    find_socket,
    list_counts,
)

RECORDED = Path(__file__).parents[2] / "recorded"
GPUS = [chip for chip in read_chips() if chip.platform == "gpu"]
FORMS = [(chip.aliases[0], count) for chip in GPUS for count in list_counts(chip)]


def machine(alias: str, count: int) -> Machine:
    chip = find_chip(alias)
    found = find_machine(chip, count) if chip else None
    assert found
    return found


def read_matrix(name: str) -> dict[tuple[int, int], str]:
    """The kinds above the diagonal of what `nvidia-smi topo -m` printed."""
    lines = (RECORDED / name / "topo.txt").read_text().splitlines()
    rows = [line.split("\t")[1:] for line in lines if line.startswith("GPU")]
    return {(a, b): rows[a][b].strip() for a in range(len(rows)) for b in range(a + 1, len(rows))}


@pytest.mark.parametrize(
    ("recorded", "alias", "count"),
    [
        ("dgx-1v", "v100", 8),
        ("dgx-a100", "a100-40gb", 8),
        ("dgx-h100", "h100", 8),
        ("hgx-b200", "b200", 8),
        ("gb200-nvl72", "gb200", 4),
        ("pcie-a100", "a100-pcie", 4),
        ("pcie-h100nvl", "h100-pcie", 8),
        ("pcie-l40s", "l40s", 4),
    ],
)
def test_a_host_is_wired_as_a_real_one_was_printed(recorded: str, alias: str, count: int) -> None:
    assert {(wire.a, wire.b): wire.kind for wire in machine(alias, count).wires} == read_matrix(recorded)


@pytest.mark.parametrize(
    ("alias", "count", "kinds"),
    [
        ("v100", 1, {}),
        ("v100", 4, {"NV1": 3, "NV2": 3}),
        ("v100", 8, {"NV1": 8, "NV2": 8, "SYS": 12}),
        ("v100", 16, {"NV6": 120}),
        ("a100", 4, {"NV4": 6}),
        ("a100", 8, {"NV12": 28}),
        ("a100", 16, {"NV12": 120}),
        ("h100", 2, {"NV18": 1}),
        ("h100", 4, {"NV6": 6}),
        ("h200", 8, {"NV18": 28}),
        ("b300", 4, {"NV18": 6}),
        ("h800", 8, {"NV8": 28}),
        ("h20", 8, {"NV18": 28}),
        ("gh200", 1, {}),
        ("gh200-144gb", 4, {"NV6": 6}),
        ("gb300", 2, {"NV18": 1}),
        ("a100-pcie", 2, {"NV12": 1}),
        ("h100-pcie", 4, {"NV12": 2, "SYS": 4}),
        ("t4", 2, {"NODE": 1}),
        ("l4", 8, {"NODE": 12, "SYS": 16}),
        ("mi300x", 8, {"XGMI": 28}),
    ],
)
def test_how_many_pairs_are_joined_by_what(alias: str, count: int, kinds: dict[str, int]) -> None:
    assert Counter(wire.kind for wire in machine(alias, count).wires) == kinds


@pytest.mark.parametrize(("alias", "count"), FORMS)
def test_no_gpu_has_more_links_than_its_chip_and_every_pair_has_one(alias: str, count: int) -> None:
    host = machine(alias, count)
    assert len({(wire.a, wire.b) for wire in host.wires}) == len(host.wires) == count * (count - 1) // 2
    switched = len({wire.kind for wire in host.wires}) == 1 and any(
        wire.count == host.chip.link_count for wire in host.wires
    )
    for place in range(count):
        links = sum(wire.count or 0 for wire in host.wires if place in (wire.a, wire.b))
        assert switched or links <= (host.chip.link_count or 12)


@pytest.mark.parametrize(
    ("alias", "count", "one_way"),
    [
        ("v100", 16, 150e9),
        ("a100", 8, 300e9),
        ("a100", 4, 100e9),
        ("h100", 8, 450e9),
        ("b200", 8, 900e9),
        ("h800", 8, 200e9),
        ("gh200", 4, 150e9),
        ("gb200", 4, 900e9),
        ("a100-pcie", 2, 300e9),
        ("mi300x", 8, 64e9),
        ("mi355x", 8, 76.5e9),
        ("l4", 2, None),
    ],
)
def test_a_pair_has_the_bandwidth_of_its_links_one_way(alias: str, count: int, one_way: float | None) -> None:
    assert machine(alias, count).wires[0].bytes_per_s == one_way


def test_cards_of_a_socket_are_neighbours_and_up_to_two_share_one() -> None:
    assert [find_socket(place, 8) for place in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [find_socket(place, 2) for place in range(2)] == [0, 0]


@pytest.mark.parametrize("chip", GPUS, ids=lambda chip: chip.aliases[0])
def test_every_gpu_of_the_chip_table_has_its_usual_host_and_a_source(chip: Chip) -> None:
    assert find_default_count(chip) in list_counts(chip)
    for count in list_counts(chip):
        assert machine(chip.aliases[0], count).source


def test_only_gb200_and_gb300_have_a_domain_beyond_the_host() -> None:
    domains = {chip.aliases[0]: find_domain_count(chip) for chip in GPUS}
    assert {name: count for name, count in domains.items() if count} == {"gb200": 72, "gb300": 72}


@pytest.mark.parametrize(("alias", "count"), [("h100", 3), ("h100", 16), ("gb200", 8), ("v5p", 4)])
def test_a_host_that_nobody_builds_is_none(alias: str, count: int) -> None:
    chip = find_chip(alias)
    assert chip
    assert find_machine(chip, count) is None
