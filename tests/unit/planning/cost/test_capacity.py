"""What a job may use of a device: the compiler's word for TPUs, JAX's part of a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.planning.hardware import find_capacity
from meshwright.topology.chips import find_chip

GIB = 2**30


def find(alias: str, *known: Any, **more: Any) -> int:
    chip: Any = find_chip(alias)
    return find_capacity(chip, *known, **more)


@pytest.mark.parametrize(("alias", "gib"), [("v5e", 15.75), ("v6e", 31.25), ("v5p", 95.74)])
def test_usable_bytes_of_tpus_are_the_compilers(alias: str, gib: float) -> None:
    assert find(alias) == int(gib * GIB)


def test_usable_bytes_of_gpus_are_the_jobs_part() -> None:
    jax_limit_bytes = 63_763_906_560  # of an H100 with JAX's default: tests/device/h100.jsonl
    assert 0.99 * jax_limit_bytes <= find("h100") <= jax_limit_bytes
    assert find("h100", fraction=0.9) == pytest.approx(find("h100") * 0.9 / 0.75)


def test_a_gpu_has_what_its_host_says_and_a_tpu_what_its_compiler_gives() -> None:
    assert find("h100", 10**10, 0.5) == 5 * 10**9 - 384 * 2**20
    assert find("v5e", 10**10) == find("v5e")
