"""Hardware types: the row of the batch-size table for a device, or for a name; and the bytes of a device that a job may
use.

Rule: an accelerator that is in no table is UNKNOWN, never a similar one. The usable memory is the compiler's limit on
TPU, and the part that JAX reserves at its start on GPU.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from meshwright.environment import MemoryStrategy
from meshwright.errors import UnknownHardwareError
from meshwright.topology.chips import Chip, find_chip, read_chips


class HardwareType(Enum):
    """The kinds of hardware that have a row in the table."""

    TPU_V5E = "tpu_v5e"
    TPU_V5P = "tpu_v5p"
    TPU_V4 = "tpu_v4"
    H100 = "h100"
    A100 = "a100"
    V100 = "v100"
    CPU = "cpu"
    UNKNOWN = "unknown"
    TPU_V2 = "tpu_v2"
    TPU_V3 = "tpu_v3"
    TPU_V6E = "tpu_v6e"
    TPU_7X = "tpu_7x"
    T4 = "t4"
    A10 = "a10"
    A10G = "a10g"
    L4 = "l4"
    L40S = "l40s"
    H200 = "h200"
    H800 = "h800"
    H20 = "h20"
    GH200 = "gh200"
    B200 = "b200"
    GB200 = "gb200"
    B300 = "b300"
    GB300 = "gb300"
    MI300X = "mi300x"
    MI325X = "mi325x"
    MI355X = "mi355x"


_FAMILIES: Final[Mapping[HardwareType, re.Pattern[str]]] = {
    HardwareType.H100: re.compile(r"(NVIDIA )?H100([ -].*)?", re.IGNORECASE),
    HardwareType.A100: re.compile(r"(NVIDIA )?A100([ -].*)?", re.IGNORECASE),
    HardwareType.V100: re.compile(r"(NVIDIA |Tesla )?V100([ -].*)?", re.IGNORECASE),
}
"""Product names whose published row applies to the whole family. A100X and V100S are other products."""

_MIG: Final = re.compile(r"\bMIG\b", re.IGNORECASE)
"""A part of a GPU, such as "NVIDIA H100 80GB HBM3 MIG 1g.10gb", does not have the figures of the whole GPU."""

_VALUES: Final = frozenset(hardware_type.value for hardware_type in HardwareType)


def detect_hardware(platform: str, kind: str) -> HardwareType:
    """Returns the hardware type of a JAX device by its platform and kind; UNKNOWN where no row is for it.

    Args:
        platform: "cpu", "gpu" (or "cuda", "rocm") or "tpu".
        kind: `jax.Device.device_kind`, or the driver's product name.
    """
    if platform == "cpu":
        return HardwareType.CPU
    found = _detect_kind(kind)
    return found if found.value.startswith("tpu_") == (platform == "tpu") else HardwareType.UNKNOWN


def parse_hardware(name: str) -> HardwareType:
    """Returns the hardware type that a person names: "h100", "TPU_V5E", "v5e", "NVIDIA A100-SXM4-40GB".

    Raises:
        UnknownHardwareError: no table knows the name; the hint names near ones.
    """
    word = name.strip().lower().replace("-", "_")
    if word in _VALUES:
        return HardwareType(word)
    found = _detect_kind(name)
    if found is HardwareType.UNKNOWN:
        raise _refuse(name)
    return found


def _detect_kind(kind: str) -> HardwareType:
    if chip := find_chip(kind):
        return HardwareType(chip.family)
    if _MIG.search(kind):
        return HardwareType.UNKNOWN
    families = (family for family, pattern in _FAMILIES.items() if pattern.fullmatch(kind.strip()))
    return next(families, HardwareType.UNKNOWN)


def _refuse(name: str) -> UnknownHardwareError:
    known = [*sorted(_VALUES), *(word for chip in read_chips() for word in (*chip.aliases, *chip.kinds))]
    folded = {word.lower(): word for word in known}
    near = [folded[word] for word in difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.6)]
    detail = f"hardware {name!r} is in no table; a name is a hardware type, a chip's alias or a JAX device kind"
    hint = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(sorted(_VALUES))}"
    hint = f'{hint}; "unknown" gives a conservative default'
    return UnknownHardwareError.of("hardware", detail, hint, "no table has this name")


GPU_FRACTION: Final = 0.75
"""The part of a GPU's memory that JAX takes by default. Source: docs.jax.dev, "GPU memory allocation"."""

GPU_RESERVED_BYTES: Final = 768 * 2**20
"""What NVIDIA's driver keeps of the memory that nvidia-smi tells: CUDA, and so JAX, takes its part of the rest.

Seen: 480 MiB of an H100 (driver 580: nvidia-smi's "reserved", and JAX's limit), 550 of another
(vllm-project/vllm#27508), 768 of an A100 80GB (levihsu/OOTDiffusion#235), 420 of an A100 40GB
(raoyongming/DenseCLIP#52).
"""

TRAINING_FRACTION: Final = 0.92
"""The part of a GPU's memory that a training job takes if it is alone on its GPUs; the rest is for the driver, CUDA's
context and NCCL. Assumed: people start JAX with 0.9 to 0.95."""


def find_memory_fraction(strategy: str | None, *, trains: bool) -> float:
    """Returns the part of a GPU's memory that a job is started with.

    Args:
        strategy: "conservative", "balanced" or "aggressive"; None: not given.
    """
    if strategy is not None:
        return MemoryStrategy(strategy).fraction or GPU_FRACTION
    return TRAINING_FRACTION if trains else GPU_FRACTION


def find_capacity(chip: Chip, memory_bytes: int | None = None, fraction: float | None = None) -> int:
    """Returns the bytes of one JAX device that a job may use.

    Args:
        memory_bytes: memory of the host's own device; None: from the table. On TPU the limit comes from the compiler.
        fraction: the part of a GPU's memory that the job is started with; None: JAX's default.
    """
    if chip.platform == "tpu":
        return chip.usable_bytes or chip.device_memory_bytes
    return int(((memory_bytes or chip.device_memory_bytes) - GPU_RESERVED_BYTES) * (fraction or GPU_FRACTION))
