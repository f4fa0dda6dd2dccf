from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.testing import build_devices
from meshwright.topology.links import MOST_IN_MATRIX, build_cells, format_links, is_known
from meshwright.topology.text import format_devices
from meshwright.wire.devices import Devices, Granule
from tests.fakes.machines import NAMES, plant_machine

LETTERS = {"X", "-", "CHIP", "ICI", "HOST", "PIX", "PXB", "PHB", "NODE", "SYS"}


def change(seen: Devices, **fields: Any) -> Devices:
    return seen.model_copy(update=fields)


def legend_of(lines: list[str]) -> list[str]:
    """The first words below the matrix."""
    return [line.split()[0] for line in lines[lines.index("") + 1 :] if line]


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


def test_a_tpu_host_shows_neighbours_hops_and_its_slice(tmp_path: Path) -> None:
    lines = format_links(plant_machine("tpu-v5e-8", tmp_path).view())
    assert lines[1].split()[:9] == ["TPU0", "X", "ICI", "ICI", "2", "2", "3", "3", "4"]
    assert legend_of(lines) == ["ICI", "2,", "bandwidth,", "slice"]
    assert lines[-1] == "slice of 2×4×1 chips, no rings"


def test_cores_of_a_chip_are_told_from_chips_side_by_side(tmp_path: Path) -> None:
    cells = build_cells(plant_machine("tpu-7x-8", tmp_path).view())
    assert cells[0] == ("X", "CHIP", "ICI", "ICI", "ICI", "ICI", "2", "2")
    assert cells[3][1] == "ICI"  # no link is listed between second cores, and one hop it is


def test_hops_take_the_rings_that_the_granule_has() -> None:
    row = build_devices("v5e:8")
    devices = [device.model_copy(update={"coords": (index, 0, 0)}) for index, device in enumerate(row.devices)]
    granule = Granule(ordinal=0, kind="slice", name="a", device_count=8, shape=(8, 1, 1), wrap=(True, False, False))
    seen = change(row, devices=tuple(devices), links=(), granules=(granule,))
    assert build_cells(seen)[0] == ("X", "ICI", "2", "3", "4", "3", "2", "ICI")
    assert format_links(seen)[-1] == "slice of 8×1×1 chips, rings along x"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"shape": (4, 4, 8), "wrap": (True, True, True), "twisted": True}, "rings along x, y, z, twisted"),
        ({"shape": (4, 4, 8), "wrap": None}, "rings unknown"),
    ],
)
def test_a_slice_says_what_is_known_of_its_rings(fields: dict[str, Any], told: str) -> None:
    granule = Granule(ordinal=0, kind="slice", name="a", device_count=1, **fields)
    assert format_links(change(build_devices("v5e:1"), granules=(granule,)))[-1] == f"slice of 4×4×8 chips, {told}"


def test_an_nvlink_domain_is_named(tmp_path: Path) -> None:
    seen = plant_machine("gb200-nvl72", tmp_path).view()
    told = "NVLink domain 9c6f5af3-53bf-49b5-a436-b66766c413c3.4026"
    assert format_links(seen)[-1].startswith(told)
    assert told in format_devices(seen)


def test_instances_and_cards_are_told_apart_and_what_is_not_joined_has_a_dash(tmp_path: Path) -> None:
    lines = format_links(plant_machine("mig-a100", tmp_path).view())
    assert lines[0].split()[:5] == ["MIG0", "MIG1", "MIG2", "GPU3", "GPU4"]
    assert lines[4].split()[:6] == ["GPU3", "-", "-", "-", "X", "NV12"]
    assert legend_of(lines)[:2] == ["NV#", "-"]


def test_a_device_whose_numa_node_is_unknown_has_no_affinity(tmp_path: Path) -> None:
    seen = plant_machine("pcie-a100", tmp_path).view()
    first = seen.devices[0].model_copy(update={"numa_node": None})
    second = seen.devices[1].model_copy(update={"numa_node": 9})  # a node that the kernel does not list
    lines = format_links(change(seen, devices=(first, second, *seen.devices[2:])))
    assert [line.split()[-2:] for line in lines[1:3]] == [["N/A", "N/A"], ["N/A", "9"]]


def test_cpu_devices_share_memory_and_have_no_affinity_of_their_own() -> None:
    lines = format_links(build_devices("cpu:3"))
    assert lines[:2] == ["     CPU0 CPU1 CPU2", "CPU0  X   HOST HOST"]
    assert legend_of(lines) == ["HOST"]


@pytest.mark.parametrize("name", ["cpu:1", "h100:1", "v5e:1"])
def test_one_device_has_no_links(name: str) -> None:
    assert format_links(build_devices(name)) == ["links: none known"]


@pytest.mark.parametrize("count", [MOST_IN_MATRIX - 1, MOST_IN_MATRIX])
def test_up_to_64_devices_are_a_matrix_in_which_columns_stand_below_each_other(count: int) -> None:
    lines = format_links(build_devices(f"h100:{count}"))
    assert [len(line.split()) for line in lines[: count + 1]] == [count + 4, *[count + 3] * count]
    column = lines[0].index("CPU Affinity")
    assert {line[column : column + 3] for line in lines[1 : count + 1]} == {"0-7", "N/A"}
    assert lines[0].split()[-5] == f"GPU{count - 1}"


def test_links_of_more_devices_are_counted_by_kind() -> None:
    assert format_links(build_devices("h100:65")) == ["links   2080 × NV18 (between 65 devices)"]
    assert format_links(change(build_devices("h100:65"), links=())) == ["links   none listed (between 65 devices)"]


@given(st.integers(1, 10), st.randoms(use_true_random=False))
def test_a_cell_says_what_the_reply_lists_whichever_way_round_a_link_is(count: int, random: Any) -> None:
    devices = build_devices(f"h100:{count}")
    links = [
        link.model_copy(update={"a": link.b, "b": link.a, "kind": random.choice(["NV2", "SYS", "PIX"])})
        for link in devices.links
        if random.random() < 0.7
    ]
    cells = build_cells(change(devices, links=tuple(links)))
    listed = {frozenset((link.a, link.b)): link.kind for link in links}
    for a in range(count):
        for b in range(count):
            assert cells[a][b] == ("X" if a == b else listed.get(frozenset((a, b)), "-"))
    assert is_known(cells) == bool(links)


def test_numa_nodes_say_how_far_their_memories_are(tmp_path: Path) -> None:
    seen = plant_machine("pcie-a100", tmp_path).view()
    far = [node.model_copy(update={"distances": (10, 21) if node.node == 0 else None}) for node in seen.numa_nodes[:2]]
    lines = format_links(change(seen, numa_nodes=tuple(far)))
    assert lines[-1] == "NUMA0 to memory of each node: 10 21 (10 is its own)"
    assert not any("NUMA0" in line for line in format_links(change(seen, numa_nodes=tuple(far[:1]))))
