from __future__ import annotations

import csv
import json
import random
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright._host_devices import _ACCELERATOR_TYPES
from meshwright.planning.hardware import HardwareType
from meshwright.topology.chips import TPU_KINDS, Chip, find_chip, read_chips
from meshwright.topology.systems import RULES, list_counts
from meshwright.topology.torus import find_wraps

LINES = (files("meshwright.topology") / "chips.csv").read_text(encoding="utf-8").splitlines()

NVML = sorted((Path(__file__).parents[2] / "recorded").glob("*/nvml.json"))
NOT_IN_THE_TABLE = {"NVIDIA H100 NVL"}

chips = st.sampled_from(read_chips())


@pytest.mark.parametrize(("kind", "name"), [
    ("TPU v4", "TPU v4"), ("TPU v5 lite", "TPU v5e"), ("TPU v5e", "TPU v5e"), ("TPU v5", "TPU v5p"),
    ("TPU v5p", "TPU v5p"), ("TPU v6 lite", "TPU v6e"), ("TPU7x", "TPU7x"),
    ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"), ("A100-SXM4-40GB", "A100 40GB SXM"),
    ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"), ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
    ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H100 PCIe", "H100 PCIe"), ("NVIDIA H200", "H200"),
    ("NVIDIA H800", "H800"), ("NVIDIA H20", "H20"), ("NVIDIA GH200 480GB", "GH200 96GB"),
    ("NVIDIA GH200 120GB", "GH200 96GB"), ("NVIDIA GH200 144G HBM3e", "GH200 144GB"), ("NVIDIA GB300", "GB300"),
    ("NVIDIA B200", "B200"), ("NVIDIA GB200", "GB200"), ("NVIDIA B300 SXM6 AC", "B300"), ("NVIDIA L4", "L4"),
    ("NVIDIA L40S", "L40S"), ("NVIDIA A10", "A10"), ("NVIDIA A10G", "A10G"), ("Tesla T4", "T4"),
    ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"), ("AMD Instinct MI300X", "MI300X"),
])  # fmt: skip
def test_what_jax_or_the_driver_calls_a_device_finds_its_chip(kind: str, name: str) -> None:
    chip: Any = find_chip(kind)
    assert chip.name == name


@pytest.mark.parametrize("kind", [
    "", "cpu", "TPU v4 lite", "TPU v5 lite pod", "TPU7", "TPU8i", "NVIDIA H100", "NVIDIA H100 NVL",
    "NVIDIA H100 80GB HBM2e", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA H800 PCIe",
    "NVIDIA H20-3e", "NVIDIA GH200", "NVIDIA GH200 480GB MIG 1g.12gb", "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "NVIDIA A10M", "NVIDIA L40", "Tesla V100-SXM2-16GB",
    "Tesla V100S-PCIE-32GB", "AMD Instinct MI300A",
])  # fmt: skip
def test_a_relative_or_a_part_of_a_chip_is_not_taken_for_it(kind: str) -> None:
    assert find_chip(kind) is None


def test_every_gpu_has_a_host_and_an_agent_can_detect_every_tpu() -> None:
    assert all(list_counts(chip) for chip in read_chips() if chip.family not in RULES)
    by_pci_id, by_type = (
        {chip.family for kind in kinds if kind and (chip := find_chip(kind))}
        for kinds in (TPU_KINDS.values(), _ACCELERATOR_TYPES.values())
    )
    assert by_type == set(RULES)
    assert by_pci_id == set(RULES) - {"tpu_v2", "tpu_v3"}  # which share one id


@given(chips, st.randoms(use_true_random=False))
def test_every_name_and_kind_leads_back_to_its_row_whatever_the_case(chip: Chip, rng: random.Random) -> None:
    for name in (chip.name, *chip.aliases):
        mixed = "".join(rng.choice([letter.lower(), letter.upper()]) for letter in name)
        assert find_chip(mixed.replace("-", rng.choice("-_ "))) is chip
    for kind in chip.kinds:
        assert find_chip(f" {kind.upper()} ") is chip


def test_no_name_and_no_kind_stands_in_two_rows() -> None:
    names = Counter(name.lower() for chip in read_chips() for name in {chip.name.lower(), *chip.aliases})
    kinds = Counter(kind.lower() for chip in read_chips() for kind in chip.kinds)
    assert [name for name, count in (names + kinds).items() if count > 2] == []
    assert max(names.values()) == max(kinds.values()) == 1


@pytest.mark.parametrize("path", NVML, ids=[path.parent.name for path in NVML])
def test_the_memory_of_a_gpu_is_what_the_drivers_of_recorded_machines_report(path: Path) -> None:
    gpus = json.loads(path.read_text())["gpus"]
    assert gpus
    for gpu in gpus:
        chip = find_chip(gpu["name"])
        if chip is None:
            assert gpu["name"] in NOT_IN_THE_TABLE
        else:
            assert chip.device_memory_bytes == pytest.approx(gpu["memory"][0], rel=0.005)


def test_the_memory_of_each_gpu_is_its_drivers_and_names_its_source() -> None:
    for line in csv.DictReader(LINES):
        is_gpu = line["platform"] == "gpu"
        assert (line["memory_bytes"].endswith(" MiB"), "; memory: " in line["source"]) == (is_gpu, is_gpu)


@pytest.mark.parametrize(
    "chip", [chip for chip in read_chips() if chip.platform == "tpu"], ids=lambda chip: chip.family
)
def test_a_tpu_has_its_rules_of_shapes_and_rings(chip: Chip) -> None:
    sides = RULES[HardwareType(chip.family).value].dimensions
    assert any(find_wraps(chip.kinds[0], (size,) * sides) == (True,) * sides for size in (4, 16, 32))


@given(chips)
def test_every_row_is_plausible_and_has_a_source(chip: Chip) -> None:
    assert all((chip.source, chip.verified, chip.kinds, *chip.kinds))
    assert 1e13 < chip.flops_per_s < 1e16
    assert 1e11 < chip.memory_bytes_per_s < 1e13
    assert 8e9 < chip.memory_bytes < 1e12
    assert chip.jax_devices_per_chip in (1, 2)
    assert chip.platform == "tpu" or chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    assert chip.measured_flops_per_s is None or chip.measured_flops_per_s < chip.flops_per_s


@given(chips)
def test_all_links_together_are_the_scale_up_bandwidth(chip: Chip) -> None:
    known = (chip.link_bytes_per_s, chip.link_count, chip.scaleup_bytes_per_s)
    if None in known:
        assert known == (None, None, None)
    else:
        assert chip.link_bytes_per_s * chip.link_count == pytest.approx(chip.scaleup_bytes_per_s)  # type: ignore[operator]
