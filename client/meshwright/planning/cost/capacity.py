"""The number of bytes of a device that a job may use.

Rule: on TPU the limit of its compiler, on GPU the part that JAX reserves at its start. Independent of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from meshwright.environment import MemoryStrategy
from meshwright.topology.chips import Chip

USABLE_BYTES: Final[Mapping[str, float]] = {
    "tpu_v2": 7.48,
    "tpu_v3": 15.48,
    "tpu_v4": 30.75,
    "tpu_v5e": 15.75,
    "tpu_v5p": 95.74,
    "tpu_v6e": 31.25,
    "tpu_7x": 94.75,
}
"""GiB of one JAX device that a program may use, by family.

Source: the error of XLA's TPU compiler for a program that cannot fit (`compiling.report`), libtpu 0.0.42.1."""

GPU_FRACTION: Final = 0.75
"""The part of a GPU's memory that JAX takes by default. Source: docs.jax.dev, "GPU memory allocation"."""

TRAINING_FRACTION: Final = 0.92
"""The part of a GPU's memory that a training job takes if it is alone on its GPUs; the rest is for the driver, CUDA's
context and NCCL. Assumed: people start JAX with 0.9 to 0.95."""

_GIB: Final = 2**30


def find_memory_fraction(strategy: str | None, *, trains: bool) -> float:
    """Returns the part of a GPU's memory that a job is started with.

    Args:
        strategy: "conservative", "balanced" or "aggressive"; None: not given.
        trains: whether a model is trained.
    """
    if strategy is not None:
        return MemoryStrategy(strategy).fraction or GPU_FRACTION
    return TRAINING_FRACTION if trains else GPU_FRACTION


def find_capacity(chip: Chip, memory_bytes: int | None = None, fraction: float | None = None) -> int:
    """Returns the bytes of one JAX device that a job may use.

    Args:
        chip: a row of the table.
        memory_bytes: memory of the host's own device; None: from the table. On TPU the limit comes from the compiler.
        fraction: the part of a GPU's memory that the job is started with; None: JAX's default.
    """
    if chip.platform == "tpu":
        usable = USABLE_BYTES.get(chip.family)
        return chip.device_memory_bytes if usable is None else int(usable * _GIB)
    return int((memory_bytes or chip.device_memory_bytes) * (fraction or GPU_FRACTION))
