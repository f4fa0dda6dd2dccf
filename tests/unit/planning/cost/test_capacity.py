"""What a job may use of a device: the compiler's word for TPUs, JAX's part of a GPU."""

from __future__ import annotations

import pytest

from meshwright.planning.cost.capacity import find_usable_bytes
from meshwright.topology.chips import find_chip

GIB = 2**30


@pytest.mark.parametrize(("alias", "gib"), [("v5e", 15.75), ("v6e", 31.25), ("v5p", 95.74)])
def test_usable_bytes_of_tpus_are_the_compilers(alias: str, gib: float) -> None:
    chip = find_chip(alias)
    assert chip is not None
    assert find_usable_bytes(chip) == int(gib * GIB)


def test_usable_bytes_of_gpus_are_the_jobs_part() -> None:
    chip = find_chip("h100")
    assert chip is not None
    assert find_usable_bytes(chip) == int(chip.device_memory_bytes * 0.75)
    assert find_usable_bytes(chip, 0.9) == int(chip.device_memory_bytes * 0.9)
