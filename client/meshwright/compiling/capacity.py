"""What a device has to give, by its compiler, and what the compiler says when that is too little.

Rule: bytes are those that the compiler writes, at the digits that it writes. Knows no step.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from meshwright.compiling.diagnostics import hush_stderr
from meshwright.compiling.targets import OpenTarget

_UNITS: Final = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_SIZE: Final = r"(\d+(?:\.\d+)?)([BKMGTP]?)"

_WORDS: Final = (
    re.compile(rf"total memory required for [^(]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
)
"""What is needed, what there is. Source: libtpu 0.0.42.1 and 0.0.50.1 write the first, before they compile; other
releases the second, when memory is laid out (jax-ml/jax issues)."""

_UNFIT_BYTES: Final = 2**50
"""A petabyte: more than any device has; the compiler refuses it before it does any work."""


@dataclass(frozen=True)
class OutOfMemory:
    """A program that its compiler refused for memory.

    Attributes:
        needed_bytes: of a device, to the digits that the compiler wrote; None: not said.
        available_bytes: likewise.
    """

    needed_bytes: int | None
    available_bytes: int | None


def parse_out_of_memory(message: str) -> OutOfMemory | None:
    """Returns the bytes in a compiler's refusal; None where the message is none, or of another memory than HBM.

    "18.09G" are 18.09 × 2³⁰ bytes; the error of what it rounds to is at most half of the last digit.
    """
    if "RESOURCE_EXHAUSTED" not in message and "CompileTimeHbmOom" not in message:
        return None
    for words in _WORDS:
        if found := words.search(message):
            needed, unit, available, other = found.groups()
            return OutOfMemory(_parse_size(needed, unit), _parse_size(available, other))
    return OutOfMemory(None, None) if re.search("hbm", message, re.IGNORECASE) else None


def _parse_size(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def read_capacity(opened: OpenTarget) -> int | None:
    """Returns the bytes of a device that a program may use; None on GPU, of which the plan says more.

    On TPU the compiler says it: a program that cannot fit is compiled, and the refusal read: 20 ms. It refuses
    arguments and temporaries only: outputs beyond the memory it lets through, so the peak is to be compared too. CPU
    devices share a machine's memory evenly: this one's, since a CPU target says nothing of another.

    Raises:
        RuntimeError: the compiler took that program, or refused it in words that are not known here.
    """
    match opened.target.platform:
        case "tpu":
            return _ask(opened.devices[0][0])
        case "cpu":
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(opened.devices[0])
    return None


def _ask(device: Any) -> int:
    whole = jax.ShapeDtypeStruct((_UNFIT_BYTES,), jnp.int8, sharding=SingleDeviceSharding(device))
    lowered = jax.jit(lambda array: array + 1).lower(whole)
    try:
        with hush_stderr():  # else whoever reads the log of a step takes this refusal for the step's
            lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = parse_out_of_memory(str(error))
        if found is None or found.available_bytes is None:
            raise RuntimeError(
                f"XLA refused a program of {_UNFIT_BYTES} bytes in words that are not known: {error}"
            ) from error
        return found.available_bytes
    raise RuntimeError(f"XLA's compiler for {device.device_kind} took a program of {_UNFIT_BYTES} bytes")
