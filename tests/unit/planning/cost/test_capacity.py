"""What a job may use of a device: the compiler's word for TPUs, JAX's part of a GPU."""

from __future__ import annotations

import pytest

from meshwright.planning.hardware import find_capacity
from meshwright.topology.chips import find_chip

GIB = 2**30


@pytest.mark.parametrize(("alias", "gib"), [("v5e", 15.75), ("v6e", 31.25), ("v5p", 95.74)])
def test_usable_bytes_of_tpus_are_the_compilers(alias: str, gib: float) -> None:
    chip = find_chip(alias)
    assert chip is not None
    assert find_capacity(chip) == int(gib * GIB)


def test_usable_bytes_of_gpus_are_the_jobs_part() -> None:
    chip = find_chip("h100")
    assert chip is not None
    jax_limit_bytes = 63_763_906_560  # of an H100 with JAX's default: tests/device/h100.jsonl
    assert 0.99 * jax_limit_bytes <= find_capacity(chip) <= jax_limit_bytes
    assert find_capacity(chip, fraction=0.9) == pytest.approx(find_capacity(chip) * 0.9 / 0.75)


def test_a_gpu_has_what_its_host_says_and_a_tpu_what_its_compiler_gives() -> None:
    h100, v5e = find_chip("h100"), find_chip("v5e")
    assert h100 is not None
    assert v5e is not None
    assert find_capacity(h100, 10**10, 0.5) == 5 * 10**9 - 384 * 2**20
    assert find_capacity(v5e, 10**10) == find_capacity(v5e)
