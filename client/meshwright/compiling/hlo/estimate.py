"""The step's time by the TPU compiler's own estimates: cycles of each fusion, added up.

Rule: each instruction that runs counts once, a fusion by its own estimate and not by its parts; what runs beside the
program (copies that are prefetched, SparseCores) and what has no estimate adds nothing, and is said.
Seen with libtpu 0.0.42 and 0.0.50: estimates stand in window_config of fusions and of single operations; collectives,
Pallas kernels and -start operations have none, whether they are overlapped or not.
"""

from __future__ import annotations

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


def build_estimate(executed: Iterable[Executed], clock_hz: float) -> StepEstimate | None:
    """Returns the estimate of a program; None where the compiler told no cycles at all.

    Args:
        executed: what the program runs.
        clock_hz: of a TensorCore.
    """
    total = attention = 0.0
    for place in executed:
        cycles = None if place.is_fused or place.is_beside else read_cycles(place.instruction)
        if cycles is not None:
            total += cycles * place.times
            attention += cycles * place.times * ("attention" in place.instruction.op_name)
    if not total:
        return None
    return StepEstimate(total_s=total / clock_hz, attention_s=attention / clock_hz, clock_hz=clock_hz, limits=LIMITS)


def read_cycles(instruction: Instruction) -> int | None:
    """Returns the compiler's estimate for one run of an instruction; None where it has none."""
    if "estimated_cycles" not in instruction.rest:  # most instructions: their JSON need not be read
        return None
    told = str(instruction.backend_config.get("window_config", {}).get("estimated_cycles", ""))
    return int(told) if told.isdigit() else None
