from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwright.topology.links import build_cells, format_links
from meshwright.topology.targets import build_target
from meshwright.wire.devices import Devices
from tests.fakes.hosts import build_devices
from tests.fakes.machines import NAMES, plant_machine

LETTERS = {"X", "-", "CHIP", "ICI", "HOST", "PIX", "PXB", "PHB", "NODE", "SYS"}


def change(seen: Devices, **fields: Any) -> Devices:
    return seen.model_copy(update=fields)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_machine_has_a_symmetric_matrix_of_known_words(name: str, tmp_path: Path) -> None:
    seen = plant_machine(name, tmp_path).view()
    cells = build_cells(seen)
    places = range(len(seen.devices))
    assert all(cells[a][b] == cells[b][a] for a in places for b in places)
    assert [cells[a][a] for a in places] == ["X"] * len(places)
    assert {cell for row in cells for cell in row if not cell.isdigit() and not cell.startswith("NV")} <= LETTERS


def test_a_gpu_host_reads_as_nvidia_smi_prints_it(tmp_path: Path) -> None:
    assert format_links(plant_machine("pcie-a100", tmp_path).view()) == [
        "     GPU0 GPU1 GPU2 GPU3  CPU Affinity  NUMA Affinity",
        "GPU0  X   NV12 SYS  SYS   0-23          0",
        "GPU1 NV12  X   SYS  SYS   24-47         1",
        "GPU2 SYS  SYS   X   NV12  48-71         2",
        "GPU3 SYS  SYS  NV12  X    72-95         3",
        "",
        "NV#   # NVLinks, directly or through switches",
        "SYS   between NUMA nodes",
        "bandwidth, one way: NV12 300 GB/s",
    ]


def test_links_of_more_devices_are_counted_by_kind() -> None:
    many = build_target("9*h100:8")
    seen = change(build_devices("h100:8"), devices=many.devices, links=many.links)
    assert format_links(seen) == ["links   252 × NV18 (between 72 devices)"]
    assert format_links(change(seen, links=())) == ["links   none listed (between 72 devices)"]


def test_numa_nodes_say_how_far_their_memories_are(tmp_path: Path) -> None:
    seen = plant_machine("pcie-a100", tmp_path).view()
    far = [node.model_copy(update={"distances": (10, 21) if node.node == 0 else None}) for node in seen.numa_nodes[:2]]
    lines = format_links(change(seen, numa_nodes=tuple(far)))
    assert lines[-1] == "NUMA0 to memory of each node: 10 21 (10 is its own)"
    assert not any("NUMA0" in line for line in format_links(change(seen, numa_nodes=tuple(far[:1]))))
