"""Each kind of machine as a table: what its devices are, what joins them, and the matrix that NVIDIA's tool prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from meshwright.topology.links import format_links
from tests.fakes.machines import NAMES, WITH_MATRIX, plant_machine, read_published_matrix


class Machine(NamedTuple):
    """What a recorded machine shows. `links`: kind → (how many, GB/s one way)."""

    kind: str
    numa: str
    links: dict[str, tuple[int, float | None]]


GPUS: Final = {
    "dgx-1v": Machine("Tesla V100-SXM2-32GB", "00001111", {"NV1": (8, 25), "NV2": (8, 50), "SYS": (12, None)}),
    "dgx-a100": Machine("NVIDIA A100-SXM4-40GB", "33117755", {"NV12": (28, 300)}),
    "dgx-h100": Machine("NVIDIA H100 80GB HBM3", "00001111", {"NV18": (28, 450)}),
    "hgx-b200": Machine("NVIDIA B200", "00001111", {"NV18": (28, 900)}),
    "gb200-nvl72": Machine("NVIDIA GB200", "0011", {"NV18": (6, 900)}),
    "pcie-a100": Machine("NVIDIA A100 80GB PCIe", "0123", {"NV12": (2, 300), "SYS": (4, None)}),
    "pcie-h100nvl": Machine("NVIDIA H100 NVL", "00001111", {"NV12": (4, 300), "NODE": (8, None), "SYS": (16, None)}),
    "pcie-l40s": Machine("NVIDIA L40S", "0011", {"NODE": (2, None), "SYS": (4, None)}),
}
TPUS: Final = {
    "tpu-v4-256": Machine("TPU v4", "0011", {"ICI": (4, 45)}),
    "tpu-v5e-8": Machine("TPU v5 lite", "00001111", {"ICI": (10, 45)}),
    "tpu-v5p-4": Machine("TPU v5", "0011", {"ICI": (4, 90)}),
    "tpu-v6e-8": Machine("TPU v6 lite", "00001111", {"ICI": (10, 90)}),
    "tpu-7x-8": Machine("TPU7x", "00001111", {"ICI": (4, 100)}),
}
OTHERS: Final = {"cpu-vm", "mig-a100"}


def test_the_tables_have_every_recorded_machine() -> None:
    assert {*GPUS, *TPUS, *OTHERS} == set(NAMES)
    assert set(WITH_MATRIX) == set(GPUS)


@pytest.mark.parametrize(("name", "machine"), [*GPUS.items(), *TPUS.items()])
def test_a_machine_has_the_devices_and_links_of_its_kind(name: str, machine: Machine, tmp_path: Path) -> None:
    seen = plant_machine(name, tmp_path).view()
    rates = {(link.kind, link.bandwidth_bytes_per_s) for link in seen.links}
    counts = Counter(link.kind for link in seen.links)
    assert {device.kind for device in seen.devices} == {machine.kind}
    assert "".join(str(device.numa_node) for device in seen.devices) == machine.numa
    assert counts == {kind: count for kind, (count, _) in machine.links.items()}
    assert rates == {(kind, rate and rate * 1e9) for kind, (_, rate) in machine.links.items()}
    assert len({(link.a, link.b) for link in seen.links}) == len(seen.links)


@pytest.mark.parametrize("name", [*GPUS, *TPUS])
def test_links_are_known_before_jax_has_looked_unless_the_chips_places_are_not(name: str, tmp_path: Path) -> None:
    machine = plant_machine(name, tmp_path)
    before, after = ([(link.a, link.b, link.kind) for link in machine.view(with_jax=on).links] for on in (False, True))
    assert before == ([] if name == "tpu-v4-256" else after)


@pytest.mark.parametrize("name", WITH_MATRIX)
def test_the_matrix_is_the_one_that_nvidia_smi_printed(name: str, tmp_path: Path) -> None:
    lines = format_links(plant_machine(name, tmp_path).view())
    published = read_published_matrix(name)
    assert [line.split() for line in lines[: len(published)]] == published
    assert lines[len(published)] == ""


def test_a_cube_mesh_whose_links_are_down_is_joined_as_its_board_is(tmp_path: Path) -> None:
    machine = plant_machine("dgx-1v", tmp_path)
    assert machine.nvml is not None
    for index in range(8):
        machine.nvml.change_gpu(index, nvlinks=[None] * 6)
    kinds = Counter(link.kind for link in machine.view().links)
    assert kinds == {"PIX": 4, "PHB": 8, "SYS": 16}
