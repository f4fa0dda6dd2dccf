"""The step's time by the TPU compiler's own estimates: cycles of each fusion, added up.

Rule: each instruction that runs counts once, a fusion by its own estimate and not by its parts; what runs beside the
program (copies that are prefetched, SparseCores) and what has no estimate adds nothing, and is counted or said.
Seen with libtpu 0.0.42 and 0.0.50: estimates stand in window_config of fusions and of single operations; collectives,
Pallas kernels and -start operations have none, whether they are overlapped or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from meshwright.compiling.hlo.execution import Executed
from meshwright.compiling.hlo.module import Instruction
from meshwright.wire.verification import StepEstimate

LIMITS: Final = (
    "the compiler's own cycle estimates of fusions, one after the other, at the nominal clock. Left out: collectives "
    "(as if all were hidden behind compute), waiting for other devices and for input, custom kernels without an "
    "estimate, and what SparseCores and prefetches do beside"
)

_COLLECTIVE: Final = re.compile(r"all-|reduce-scatter|collective-|ragged-all|send|recv")
_KERNEL: Final = re.compile(r'custom_call_target="(?:tpu_custom_call|Mosaic)')
_PRICED_KINDS: Final = frozenset({"fusion", "convolution", "dot"})


def build_estimate(executed: Iterable[Executed], clock_hz: float) -> StepEstimate | None:
    """Returns the estimate of a program; None where the compiler told no cycles at all.

    Args:
        executed: what the program runs.
        clock_hz: of a TensorCore.
    """
    compute = attention = collective = 0.0
    unpriced = priced = 0
    for place in executed:
        if place.is_fused or place.is_beside:
            continue
        cycles = read_cycles(place.instruction)
        if cycles is None:
            unpriced += _does_work(place.instruction)
            continue
        priced += 1
        if _COLLECTIVE.match(place.instruction.opcode):
            collective += cycles * place.times
            continue
        compute += cycles * place.times
        attention += cycles * place.times * ("attention" in place.instruction.op_name)
    if not priced:
        return None
    return StepEstimate(
        total_s=(compute + collective) / clock_hz,
        fusion_s=compute / clock_hz,
        attention_s=attention / clock_hz,
        collective_s=collective / clock_hz if collective else None,
        clock_hz=clock_hz,
        unpriced_count=unpriced,
        limits=LIMITS,
    )


def read_cycles(instruction: Instruction) -> int | None:
    """Returns the compiler's estimate for one run of an instruction; None where it has none."""
    if "estimated_cycles" not in instruction.rest:  # most instructions: their JSON need not be read
        return None
    told = str(instruction.backend_config.get("window_config", {}).get("estimated_cycles", ""))
    return int(told) if told.isdigit() else None


def _does_work(instruction: Instruction) -> bool:
    """Returns whether an instruction without an estimate takes time that the sum lacks; collectives are not meant."""
    if instruction.opcode == "custom-call":
        return bool(_KERNEL.search(instruction.rest))
    if instruction.name.startswith("async-collective"):  # libtpu's fusions that start and end a chain of steps
        return False
    return instruction.opcode in _PRICED_KINDS and "collective_algorithm_config" not in instruction.rest
