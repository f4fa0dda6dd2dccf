"""Measured rates in place of the tables' rates: what each one replaces, by how much, and its entry in a plan.

Rule: a bench and the figure that it replaces are of one thing, timed or estimated for the same sizes and devices;
unmeasured figures stay as published.

- A matmul alone, and a copy, scale the chip's published peak and bandwidth by the measured rate ÷ the expected rate of
  such a chip: a throttled chip is slower in a step by the same ratio.
- A collective's ratio to the estimate for the same bytes and group, its latencies aside, scales the wires inside the
  host of each axis that uses it: the ICI links that an axis has, and the one rate of all GPUs of a host. The network
  between hosts is not measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, get_args

import numpy as np

from meshwright.planning.cost.collectives import Wire
from meshwright.planning.cost.layout import Layout, Numbers
from meshwright.planning.cost.spans import Span, Spans
from meshwright.planning.cost.step_time import Machine
from meshwright.planning.search.measured import LEAST_RATIO, WORDS, Collective, Measurement, Measurements, Rate
from meshwright.topology.chips import Chip
from meshwright.wire.base import Notice
from meshwright.wire.cost import MeasuredFigure
from meshwright.wire.model import ComputeDtype

USES: Final[Mapping[str, Mapping[Collective, int]]] = {
    "tp": {"all_reduce": 1},
    "cp": {"all_gather": 1},
    "ep": {"all_to_all": 1},
    "fsdp": {"all_gather": 2, "reduce_scatter": 1},
    "dp": {"all_reduce": 1},
    "pp": {"permute": 1},
}
"""Collectives by which an axis lives, and how often for the same bytes; one that was not measured goes as all-reduces
do."""

MATMUL_ALONE: Final = {"tpu": 0.95, "gpu": 0.8}
"""Part of its peak that a chip reaches in a large matmul alone, where it was not measured: medians of five TPUs (XLA's
cycles) and three GPUs (measured)."""

COPY_ALONE: Final = 0.8
"""Part of its memory's published bandwidth that a copy reaches."""


@dataclass(frozen=True)
class Compared:
    """A measured rate beside the rate of the tables.

    Attributes:
        rate: as measured.
        default: the rate that it replaces.
        peak: the published rate.
        ratio: of wires, how much faster they are than estimated, latencies aside.
    """

    rate: Rate
    default: float
    peak: float
    ratio: float = 1.0

    @property
    def is_taken(self) -> bool:
        """Whether a chip can do it."""
        return self.rate.is_plausible(self.peak)


@dataclass(frozen=True)
class Replaced:
    """The measurements of a chip's devices that replace figures of the tables.

    Attributes:
        chip: of the devices.
        measured: bench results of them.
        lay: lays axes at published rates, on domains of a number of devices.
    """

    chip: Chip
    measured: Measurements
    lay: Callable[[Layout, int], Spans]

    # ---- input of the cost model ---------------------------------------------------------------------

    def build_machine(self, dtype: ComputeDtype) -> Machine:
        """Returns the figures of one device: published × the measured rate ÷ the expected rate of such a chip."""
        ratios = {
            each.rate.case: each.rate.value / each.default for each in self._compare_device(dtype) if each.is_taken
        }
        return Machine(
            platform=self.chip.platform,
            flops_per_s=self.chip.device_flops_per_s * ratios.get("matmul", 1.0),
            memory_bytes_per_s=self.chip.device_memory_bytes_per_s * ratios.get("memory_bandwidth", 1.0),
        )

    def replace_wires(self, spans: Spans) -> Spans:
        """Returns the links of axes, at the measured rates inside the host."""
        ratios: dict[str, float] = {each.rate.case: each.ratio for each in self._compared_wires if each.is_taken}
        return {axis: self._replace_inner(span, axis, ratios) for axis, span in spans.items()} if ratios else spans

    def _replace_inner(self, span: Span, axis: str, ratios: Mapping[str, float]) -> Span:
        uses = {case: ratios.get(case, ratios.get("all_reduce")) for case in USES[axis]}
        known = {case: ratio for case, ratio in uses.items() if ratio is not None}
        if not known:
            return span
        times = {case: USES[axis][case] for case in known}
        ratio: Any = sum(times.values()) / sum(times[case] / known[case] for case in known)
        if (
            self.chip.platform == "gpu"
        ):  # a plan may have found a slower link on its axis: that was measured with the rest
            ratio = ratio * self._compared_wires[0].peak / np.asarray(span.inner.bytes_per_s)
        return replace(span, inner=scale_wire(span.inner, ratio))

    # ---- reports ----------------------------------------------------------------------------

    def list_figures(self, dtype: ComputeDtype) -> tuple[MeasuredFigure, ...]:
        """Returns the figures that replace those of the tables, for a step in a compute dtype."""
        return tuple(each.rate.tell(each.default) for each in self._compare(dtype) if each.is_taken)

    def list_notices(self, dtype: ComputeDtype) -> tuple[Notice, ...]:
        """Returns warnings of impossible figures for such a chip, which were left out."""
        return tuple(each.rate.refuse(each.peak, each.default) for each in self._compare(dtype) if not each.is_taken)

    def describe_basis(self, dtype: ComputeDtype) -> str:
        """Returns the source of the constants of a step's time, with the measured figures beside the published ones."""
        words = [WORDS[each.rate.case] for each in self._compare(dtype) if each.is_taken]
        basis = f"fit to published runs on {'TPUs' if self.chip.platform == 'tpu' else 'GPUs'}"
        return f"{basis}; measured on this host: {', '.join(words)}" if words else basis

    # ---- beside the tables -----------------------------------------------------------------------------

    def _compare(self, dtype: ComputeDtype) -> tuple[Compared, ...]:
        return (*self._compare_device(dtype), *self._compared_wires)

    def _compare_device(self, dtype: ComputeDtype) -> Iterator[Compared]:
        alone, peak = MATMUL_ALONE[self.chip.platform] * self.chip.device_flops_per_s, self.chip.device_flops_per_s
        best = self.chip.measured_flops_per_s
        rate = self.measured.find_matmul(dtype)
        if rate is not None and dtype != "float32":
            yield Compared(rate, best / self.chip.jax_devices_per_chip if best else alone, peak)
        rate, peak = self.measured.find_memory(), self.chip.device_memory_bytes_per_s
        if rate is not None:
            yield Compared(rate, COPY_ALONE * peak, peak)

    @cached_property
    def _compared_wires(self) -> tuple[Compared, ...]:
        found = ((case, self.measured.find_collective(case)) for case in get_args(Collective))
        return tuple(self._compare_wire(case, rate) for case, rate in found if rate is not None)

    def _compare_wire(self, case: Collective, rate: Rate) -> Compared:
        """Returns a bus bandwidth beside the estimate for the same sizes over the same group."""
        timed = rate.timed
        group = timed.large.axis_size or 1
        span = self.lay(Layout(tp=group), group)["tp"]
        slower = replace(span, inner=scale_wire(span.inner, 0.5))
        estimated_s = timed.count(lambda row: _estimate(span, case, row))
        moved_s = timed.count(lambda row: _estimate(slower, case, row)) - estimated_s
        waited_s = estimated_s - moved_s
        work = timed.count(lambda row: row.size_bytes * row.busbw_factor)
        return Compared(
            rate,
            default=work / estimated_s,
            peak=float(np.max(span.inner.bytes_per_s)),
            ratio=moved_s / max(timed.seconds - waited_s, LEAST_RATIO * timed.seconds),
        )


def _estimate(span: Span, case: Collective, row: Measurement) -> float:
    """Returns the estimated seconds of a bench's collective; an all-to-all's S is each rank's part."""
    if case == "permute":
        return float(span.send(row.size_bytes))
    whole = row.size_bytes * (len(row.device_indices) if case == "all_to_all" else 1)
    return float(span.time(case, whole))


def scale_wire(wire: Wire, ratio: Numbers) -> Wire:
    """Returns the wire with all its rates scaled by a factor; latencies do not change."""
    near = wire.neighbor_bytes_per_s
    return replace(
        wire,
        bytes_per_s=np.asarray(wire.bytes_per_s) * ratio,
        middle_bytes_per_s=np.asarray(wire.middle_bytes_per_s) * ratio,
        neighbor_bytes_per_s=None if near is None else np.asarray(near) * ratio,
    )
