"""GPUs as XLA's CUDA compiler is told of them. What the compiler makes of it: test_compile_targets.py."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.compiling.compilers import CARDS, MULTIPROCESSORS, describe_gpus, write_config
from meshwright.errors import NotCompiledError
from meshwright.planning.compile_job import CompileTarget
from meshwright.topology.chips import find_chip, read_chips

FLOAT32_FLOPS = dict.fromkeys(("A100 40GB SXM", "A100 80GB SXM", "A100 80GB PCIe"), 1.95e13) | {
    "V100 SXM2 32GB": 1.57e13, "T4": 8.1e12, "A10": 3.12e13, "L4": 3.03e13, "L40S": 9.16e13, "H100 PCIe": 5.1e13,
    "B200": 8e13, "GB200": 8e13,
} | dict.fromkeys(("H100 SXM", "H200", "H800", "GH200 96GB", "GH200 144GB"), 6.7e13)  # fmt: skip
"""As data sheets have them, without tensor cores."""


def get_chip(name: str) -> Any:
    return find_chip(name)


def write_target(chip: str, count: int = 8, hosts: int = 1) -> CompileTarget:
    return CompileTarget(platform="gpu", chip=chip, shape=(count,), granules=hosts, name=f"{hosts}*{chip}:{count}")


def test_every_gpu_of_nvidias_in_the_chip_table_has_a_card() -> None:
    known = [chip.name for chip in read_chips() if chip.platform == "gpu" and not chip.name.startswith("MI")]
    assert set(CARDS) == set(known)
    assert {card.capability for card in CARDS.values()} == set(MULTIPROCESSORS)


@pytest.mark.parametrize("name", CARDS)
def test_a_cards_figures_agree_with_its_published_flops(name: str) -> None:
    card = CARDS[name]
    lanes = MULTIPROCESSORS[card.capability].fpu_count
    flops_per_s = 2 * lanes * card.multiprocessor_count * card.clock_hz
    if name in FLOAT32_FLOPS:
        assert flops_per_s == pytest.approx(FLOAT32_FLOPS[name], rel=0.08)
    assert card.l2_bytes >= 4 * 2**20


def test_only_cards_with_instructions_of_their_own_are_accelerated() -> None:
    accelerated = {name for name in CARDS if "ACCELERATED_FEATURES" in write_config(get_chip(name))}
    hopper = {"H100 SXM", "H100 PCIe", "H200", "H800", "H20", "GH200 96GB", "GH200 144GB"}
    assert accelerated == hopper | {"B200", "GB200", "B300", "GB300"}


@pytest.mark.parametrize(("chip", "count", "hosts", "topology"), [
    ("h100", 8, 1, "1x1x8"), ("h100", 8, 64, "64x1x8"), ("gb200", 4, 1, "1x1x4"), ("gb200", 4, 2, "1x2x4"),
    ("gb200", 4, 18, "1x18x4"), ("gb200", 4, 36, "2x18x4"), ("gb200", 4, 20, "10x2x4"), ("gb200", 1, 36, "2x18x1"),
])  # fmt: skip
def test_a_partition_is_what_nvlink_joins(chip: str, count: int, hosts: int, topology: str) -> None:
    assert describe_gpus(write_target(chip, count, hosts))["topology"] == topology


@pytest.mark.parametrize(
    ("chip", "words"), [("mi300x", "XLA's ROCm compiler is not supported"), ("v5e", "no GPU"), ("x1", "no GPU")]
)
def test_other_cards_are_not_compiled(chip: str, words: str) -> None:
    with pytest.raises(NotCompiledError, match=words):
        describe_gpus(write_target(chip))
