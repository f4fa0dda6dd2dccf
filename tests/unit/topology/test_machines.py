from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.topology.chips import find_chip, read_chips
from meshwright.topology.links import XGMI
from meshwright.topology.systems import find_machine, list_counts

RECORDED = Path(__file__).parents[2] / "recorded"
GPUS = [chip for chip in read_chips() if chip.platform == "gpu"]
FORMS = [(chip.aliases[0], count) for chip in GPUS for count in list_counts(chip)]


def machine(alias: str, count: int) -> Any:
    chip: Any = find_chip(alias)
    return find_machine(chip, count)


def count_wires(kind: str) -> int:
    return int(kind.removeprefix("NV")) if kind.startswith("NV") else int(kind == XGMI)


def read_matrix(name: str) -> dict[tuple[int, int], str]:
    """The kinds above the diagonal of what `nvidia-smi topo -m` printed."""
    lines = (RECORDED / name / "topo.txt").read_text().splitlines()
    rows = [line.split("\t")[1:] for line in lines if line.startswith("GPU")]
    return {(a, b): rows[a][b].strip() for a in range(len(rows)) for b in range(a + 1, len(rows))}


@pytest.mark.parametrize(("recorded", "alias", "count"), [
    ("dgx-1v", "v100", 8), ("dgx-a100", "a100-40gb", 8), ("dgx-h100", "h100", 8), ("hgx-b200", "b200", 8),
    ("gb200-nvl72", "gb200", 4), ("pcie-a100", "a100-pcie", 4), ("pcie-h100nvl", "h100-pcie", 8),
    ("pcie-l40s", "l40s", 4),
])  # fmt: skip
def test_a_host_is_wired_as_a_real_one_was_printed(recorded: str, alias: str, count: int) -> None:
    assert {(link.a, link.b): link.kind for link in machine(alias, count).links} == read_matrix(recorded)


@pytest.mark.parametrize(("alias", "count"), FORMS)
def test_no_gpu_has_more_links_than_its_chip_and_every_pair_has_one(alias: str, count: int) -> None:
    host = machine(alias, count)
    assert len({(link.a, link.b) for link in host.links}) == len(host.links) == count * (count - 1) // 2
    alike = len({link.kind for link in host.links}) == 1
    counts = [count_wires(link.kind) for link in host.links]
    switched = alike and host.chip.link_count in counts
    for place in range(count):
        links = sum(each for link, each in zip(host.links, counts, strict=True) if place in (link.a, link.b))
        assert switched or links <= (host.chip.link_count or 12)


@pytest.mark.parametrize(("alias", "count", "one_way"), [
    ("v100", 16, 150e9), ("a100", 8, 300e9), ("a100", 4, 100e9), ("h100", 8, 450e9), ("b200", 8, 900e9),
    ("h800", 8, 200e9), ("gh200", 4, 150e9), ("gb200", 4, 900e9), ("a100-pcie", 2, 300e9), ("mi300x", 8, 64e9),
    ("mi355x", 8, 76.5e9), ("l4", 2, None), ("gh200-144gb", 2, 450e9),
])  # fmt: skip
def test_a_pair_has_the_bandwidth_of_its_links_one_way(alias: str, count: int, one_way: float | None) -> None:
    assert machine(alias, count).links[0].bandwidth_bytes_per_s == one_way
