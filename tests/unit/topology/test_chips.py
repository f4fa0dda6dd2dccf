from __future__ import annotations

import csv
import random
from collections import Counter
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.topology.chips import Chip, find_chip, find_chip_by_kind, parse_chips, read_chips

LINES = (files("meshwright.topology") / "chips.csv").read_text(encoding="utf-8").splitlines()

chips = st.sampled_from(read_chips())


def edit_first_row(column: str, cell: str) -> list[str]:
    header, row = LINES[0].split(","), next(csv.reader(LINES[1:2]))
    row[header.index(column)] = cell
    return [LINES[0], ",".join(f'"{piece}"' for piece in row)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v4", "TPU v4"),
        ("TPU v5 lite", "TPU v5e"),
        ("TPU v5e", "TPU v5e"),
        ("TPU v5", "TPU v5p"),
        ("TPU v5p", "TPU v5p"),
        ("TPU v6 lite", "TPU v6e"),
        ("TPU7x", "TPU7x"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("A100-SXM4-40GB", "A100 40GB SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H800", "H800"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA GH200 120GB", "GH200 96GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144GB"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_what_jax_or_the_driver_calls_a_device_finds_its_chip(kind: str, name: str) -> None:
    chip = find_chip_by_kind(kind)
    assert chip is not None
    assert chip.name == name


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "cpu",
        "TPU v4 lite",
        "TPU v5 lite pod",
        "TPU7",
        "TPU8i",
        "NVIDIA H100",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "NVIDIA H800 PCIe",
        "NVIDIA H20-3e",
        "NVIDIA GH200",
        "NVIDIA GH200 480GB MIG 1g.12gb",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA A10M",
        "NVIDIA L40",
        "Tesla V100-SXM2-16GB",
        "Tesla V100S-PCIE-32GB",
        "AMD Instinct MI300A",
        "H100 SXM",
        "a100",
    ],
)
def test_a_relative_or_a_part_of_a_chip_is_not_taken_for_it(kind: str) -> None:
    assert find_chip_by_kind(kind) is None


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("v5e", "TPU v5e"),
        ("v5litepod", "TPU v5e"),
        ("TPU_V5P", "TPU v5p"),
        ("tpu7x", "TPU7x"),
        ("ironwood", "TPU7x"),
        ("h100", "H100 SXM"),
        ("H100_PCIe", "H100 PCIe"),
        ("a100", "A100 80GB SXM"),
        ("a100-40gb", "A100 40GB SXM"),
        (" gb200-NVL72 ", "GB200"),
    ],
)
def test_aliases_find_their_chip_in_any_case(alias: str, name: str) -> None:
    chip = find_chip(alias)
    assert chip is not None
    assert chip.name == name


@pytest.mark.parametrize("name", ["", "h", "h1000", "v5", "v7", "gh2000", "nvidia", "tpu", "gpu", "a100 sxm 64gb"])
def test_a_name_that_no_row_has_finds_nothing(name: str) -> None:
    assert find_chip(name) is None


@given(chips, st.randoms(use_true_random=False))
def test_every_name_and_kind_leads_back_to_its_row_whatever_the_case(chip: Chip, rng: random.Random) -> None:
    for name in (chip.name, *chip.aliases):
        mixed = "".join(rng.choice([letter.lower(), letter.upper()]) for letter in name)
        assert find_chip(mixed.replace("-", rng.choice("-_ "))) is chip
    for kind in chip.kinds:
        assert find_chip_by_kind(f" {kind.upper()} ") is chip


def test_no_name_and_no_kind_stands_in_two_rows() -> None:
    names = Counter(name.lower() for chip in read_chips() for name in {chip.name.lower(), *chip.aliases})
    kinds = Counter(kind.lower() for chip in read_chips() for kind in chip.kinds)
    assert [name for name, count in (names + kinds).items() if count > 2] == []
    assert max(names.values()) == max(kinds.values()) == 1


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("v5e", 240.5),
        ("h100", 295.2),
        ("v5p", 166.0),
        ("a100-80gb", 153.0),
        ("a100-40gb", 200.6),
        ("v4", 229.2),
        ("v100", 138.9),
        ("v6e", 559.8),
        ("tpu7x", 312.6),
        ("mi300x", 246.6),
        ("h800", 295.2),
        ("h20", 37.0),
        ("gh200", 247.5),
        ("gh200-144gb", 202.0),
        ("gb300", 312.5),
    ],
)
def test_the_roofline_is_flops_over_memory_bandwidth(name: str, tokens: float) -> None:
    chip = find_chip(name)
    assert chip is not None
    assert chip.critical_batch_tokens == pytest.approx(tokens, abs=0.05)


def test_memory_is_in_the_unit_that_the_source_uses() -> None:
    assert {name: chip.memory_bytes for name in ("v5e", "v5p", "h100") if (chip := find_chip(name))} == {
        "v5e": 16 * 2**30,
        "v5p": 95 * 2**30,
        "h100": 80 * 10**9,
    }


def test_a_v5e_has_no_less_memory_than_jax_may_take_of_it_and_a_v6e_twice_as_much() -> None:
    v5e, v6e = find_chip("v5e"), find_chip("v6e")
    assert v5e is not None
    assert v6e is not None
    bytes_limit_of_jax = 16909334528
    assert bytes_limit_of_jax < v5e.memory_bytes
    assert v6e.memory_bytes == 2 * v5e.memory_bytes


def test_sources_say_what_they_are_and_nothing_of_how_they_were_looked_up() -> None:
    for chip in read_chips():
        assert "looked up" not in f"{chip.source} {chip.verified} {chip.notes}"
        assert chip.roofline_verified or "unverified" in chip.source


def test_a_device_of_a_chip_with_two_has_half_of_it() -> None:
    chip = find_chip("tpu7x")
    assert chip is not None
    assert chip.device_flops_per_s == pytest.approx(1153.5e12)
    assert chip.device_memory_bytes == 96 * 2**30
    assert chip.device_memory_bytes_per_s == pytest.approx(3690e9)
    assert chip.device_flops_per_s / chip.device_memory_bytes_per_s == chip.critical_batch_tokens


@given(chips)
def test_every_row_is_plausible_and_has_a_source(chip: Chip) -> None:
    assert chip.source
    assert chip.verified
    assert chip.kinds
    assert all(chip.kinds)
    assert 1e13 < chip.flops_per_s < 1e16
    assert 1e11 < chip.memory_bytes_per_s < 1e13
    assert 8e9 < chip.memory_bytes < 1e12
    assert chip.jax_devices_per_chip in (1, 2)
    assert chip.measured_flops_per_s is None or chip.measured_flops_per_s < chip.flops_per_s


@given(chips)
def test_all_links_together_are_the_scale_up_bandwidth(chip: Chip) -> None:
    known = (chip.link_bytes_per_s, chip.link_count, chip.scaleup_bytes_per_s)
    if None in known:
        assert known == (None, None, None)
    else:
        assert chip.link_bytes_per_s * chip.link_count == pytest.approx(chip.scaleup_bytes_per_s)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("memory", "80 MB"),
        ("memory", "80"),
        ("flops_per_s", ""),
        ("link_count", "4.5"),
        ("pcie_bytes_per_s", "fast"),
    ],
)
def test_a_cell_that_is_no_such_value_is_refused(column: str, cell: str) -> None:
    with pytest.raises(ValueError):
        parse_chips(edit_first_row(column, cell))


def test_a_table_without_a_column_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="no cell 'notes'"):
        parse_chips([line.rsplit(",", 1)[0] for line in edit_first_row("notes", "")])


def test_an_unknown_figure_is_none_and_not_zero() -> None:
    chip = find_chip("t4")
    assert chip is not None
    assert (chip.link_bytes_per_s, chip.link_count, chip.nic_bytes_per_s) == (None, None, None)
