"""The matmuls of a program: floating-point operations of one device.

Rule: 2 × the products that are added up, of dots, convolutions and the libraries' calls for them; nothing else counts.
A convolution counts the products that touch its input, not those with its padding or between its dilated elements: XLA
for TPU writes batched matmuls as convolutions of which most taps fall between. Knows no loops.
Source: openxla/xla, HloCostAnalysis::HandleConvolution (the rule of taps); gemm_backend_config of XLA for GPU.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshwright.compiling.hlo.execution import Executed
from meshwright.compiling.hlo.shapes import ArrayShape

_DIGITS: Final = re.compile(r"\d+")
_TARGET: Final = re.compile(r'custom_call_target="([^"]*)"')
_LABELS: Final = re.compile(r"(\w+)_(\w+)->(\w+)")

_CONVOLUTIONS: Final[Mapping[str, tuple[int, int, int]]] = {
    "__cudnn$convForward": (0, 1, 2),
    "__cudnn$convBiasActivationForward": (0, 1, 2),
    "__cudnn$convBackwardInput": (2, 1, 0),
    "__cudnn$convBackwardFilter": (0, 2, 1),
}
"""Where input, kernel and output of the forward convolution stand: 0 and 1 operands, 2 the result."""


def count_flops(executed: Executed) -> float:
    """Returns the operations of an instruction each time that it runs; 0 where it is no matmul."""
    rule = _RULES.get(executed.instruction.opcode)
    return rule(executed) if rule else 0.0


def _count_dot(executed: Executed) -> float:
    contracted = _list_numbers(executed.instruction.attributes.get("lhs_contracting_dims", ""))
    return _count_products(executed, contracted)


def _count_products(executed: Executed, contracted: Sequence[int]) -> float:
    left = _find_operand(executed, 0)
    if left is None or any(axis >= len(left.dimensions) for axis in contracted):
        return 0.0
    return 2.0 * executed.instruction.arrays[0].element_count * math.prod(left.dimensions[axis] for axis in contracted)


def _count_convolution(executed: Executed) -> float:
    return _count_taps(executed, (0, 1, 2))


def _count_call(executed: Executed) -> float:
    found = _TARGET.search(executed.instruction.rest)
    target = found.group(1) if found else ""
    if target in _CONVOLUTIONS:
        return _count_taps(executed, _CONVOLUTIONS[target])
    config = executed.instruction.backend_config
    if target.startswith("__cublas$"):
        numbers = config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
        return _count_products(executed, [int(axis) for axis in numbers.get("lhs_contracting_dimensions", ())])
    told = config.get("custom_call_config", {}).get("cost_estimate", {}).get("flops", 0)
    return float(told) if str(told).isdigit() else 0.0


def _count_taps(executed: Executed, roles: tuple[int, int, int]) -> float:
    labels = _LABELS.search(executed.instruction.attributes.get("dim_labels", ""))
    arrays = (_find_operand(executed, 0), _find_operand(executed, 1), executed.instruction.arrays[0])
    source, kernel, output = (arrays[role] for role in roles)
    if labels is None or source is None or kernel is None or output is None:
        return 0.0
    of_source, of_kernel, of_output = labels.groups()
    total = 2.0 * kernel.dimensions[of_kernel.index("i")]
    total *= output.dimensions[of_output.index("b")] * output.dimensions[of_output.index("f")]
    for axis, label in enumerate(sorted(set(of_output) - {"b", "f"})):
        window = _read_window(executed.instruction.attributes.get("window", ""), axis)
        sizes = (source.dimensions[of_source.index(label)], kernel.dimensions[of_kernel.index(label)])
        total *= window.count_taps(*sizes, output.dimensions[of_output.index(label)])
    return total


@dataclass(frozen=True)
class Window:
    """How a kernel goes over one spatial dimension."""

    stride: int = 1
    before: int = 0
    source_dilation: int = 1
    kernel_dilation: int = 1

    def count_taps(self, source: int, kernel: int, output: int) -> int:
        """Returns the pairs of an output and a kernel element whose input element there is."""
        return sum(self._count_tap(tap * self.kernel_dilation - self.before, source, output) for tap in range(kernel))

    def _count_tap(self, offset: int, source: int, output: int) -> int:
        """Returns the outputs o in range with o × stride + offset on an element of the dilated input."""
        common = math.gcd(self.stride, self.source_dilation)
        if offset % common:
            return 0
        period = self.source_dilation // common
        first = (-offset // common) * pow(self.stride // common, -1, period) % period if period > 1 else 0
        lowest = max(0, -(offset // self.stride))
        highest = min(output - 1, ((source - 1) * self.source_dilation - offset) // self.stride)
        return max(0, (highest - first) // period - (lowest - 1 - first) // period) if highest >= lowest else 0


def _read_window(written: str, axis: int) -> Window:
    told = dict(part.split("=", 1) for part in written.strip("{}").split() if "=" in part)

    def read(key: str, default: str) -> str:
        sizes = told.get(key, "").split("x")
        return sizes[axis] if axis < len(sizes) and sizes[axis] else default

    return Window(
        stride=int(read("stride", "1")),
        before=int(read("pad", "0_0").split("_")[0]),
        source_dilation=int(read("lhs_dilate", "1")),
        kernel_dilation=int(read("rhs_dilate", "1")),
    )


def _find_operand(executed: Executed, number: int) -> ArrayShape | None:
    operands = executed.instruction.operands
    found = executed.computation.instructions.get(operands[number]) if number < len(operands) else None
    return found.arrays[0] if found and found.arrays else None


def _list_numbers(written: str) -> list[int]:
    return [int(number) for number in _DIGITS.findall(written)]


_RULES: Final[Mapping[str, Callable[[Executed], float]]] = {
    "dot": _count_dot,
    "scaled-dot": _count_dot,
    "convolution": _count_convolution,
    "custom-call": _count_call,
}
