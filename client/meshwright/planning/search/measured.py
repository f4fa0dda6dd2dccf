"""Bench results of this host in the form of the cost model: rates of the planned devices, slowest first.

Rule: a bench result counts only if it covers all planned devices, and if the fixed cost of a call is a small part of
it. A figure beyond the chip's peak is not used. Independent of the cost model: `replaced` decides which figure a result
replaces. Imports no numpy, since the agent's own process makes measurements.

These values are read of each case, by the definitions of the benches:

- matmul: 2n³ FLOP of n×n×n on one device in its dtype, n of 4096 and more.
- memory_bandwidth: S of x → −x, read and written together, on one device.
- all_reduce, all_gather, reduce_scatter, all_to_all, permute: S × the record's busbw factor, over one group of all
  devices that took part. Where NVLink joins some of them and not others, such a group does not represent smaller ones,
  so it is not read.

Transfers to, from and between devices by `device_put` are not read: no training step uses them. Pipeline stages send by
a permute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from meshwright.topology.links import classify_link
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice, Wire
from meshwright.wire.bench import BenchCase
from meshwright.wire.cost import MeasuredFigure

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]

START_S: Final = 1.3e-4
"""The fixed time of a call on the host, of any size. Source: AI-Hypercomputer/accelerator-microbenchmarks, a bfloat16
matmul of 8192³ on v6e: 754 TFLOP/s by the host's clock, 827.5 by the trace, so 1.458 and 1.329 ms."""

ALONE_S: Final = 10 * START_S
"""A size that was measured alone counts from here: at most about a tenth of it is the start."""

LEAST_FLOPS: Final = 2.0 * 4096**3
LEAST_BYTES: Final = 16 * 2**20
LEAST_MEMORY_BYTES: Final = 256 * 2**20
"""Smaller ones do not come up to speed, or stay in a cache: this bench's S is twice its array, and the largest L2 of
today, a B200's, has 126 MB."""

MOST_RATIO: Final = 1.2
"""Of the published peak: a figure above was not measured right. Sums inside NVLink's switches come to 1.07 of it, 482
of 450 GB/s on H200. Source: stas00/ml-engineering, network/README.md."""
LEAST_RATIO: Final = 0.05
"""Of the published peak: a figure below is of a device that does something else, or of a bench that went wrong."""


class Measurement(Wire):
    """What one bench timed, without its samples; it goes from the agent to its planner."""

    case: BenchCase
    dtype: str
    device_kind: str = Field(description="as JAX calls the first device")
    device_indices: tuple[int, ...] = Field(description="local indices that took part")
    axis_size: int | None = None
    size_bytes: int = Field(description="S")
    median_s: float
    flop_count: float = Field(default=0.0, description="of a matmul")
    busbw_factor: float = Field(default=0.0, description="of a collective")
    run_id: str
    observed_at: datetime
    age_s: float = Field(default=0.0, description="when it was told")

    @property
    def is_large(self) -> bool:
        """Whether it is of a case that plans take, and of a size that comes up to speed."""
        match self.case:
            case "matmul":
                return self.flop_count >= LEAST_FLOPS
            case "memory_bandwidth":
                return self.size_bytes >= LEAST_MEMORY_BYTES
            case "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" | "permute":
                return self.size_bytes >= LEAST_BYTES and self.axis_size == len(self.device_indices) > 1
            case _:
                return False


@dataclass(frozen=True)
class Timed:
    """One timing of a case: of its largest size less one of half or less, so that starts cancel; or of one alone."""

    large: Measurement
    small: Measurement | None = None

    @property
    def seconds(self) -> float:
        """The time of the difference in size."""
        return self.large.median_s - (self.small.median_s if self.small else 0.0)

    @property
    def is_long(self) -> bool:
        """Whether the fixed time of calls is a small part of it."""
        return self.seconds >= (START_S if self.small else ALONE_S)

    def count(self, work: Callable[[Measurement], float]) -> float:
        """Returns the work that the seconds are of."""
        return work(self.large) - (work(self.small) if self.small else 0.0)


@dataclass(frozen=True)
class Rate:
    """Work in a second, and the timing that it is of."""

    name: str
    value: float
    timed: Timed

    @property
    def case(self) -> BenchCase:
        """The bench's."""
        return self.timed.large.case

    def is_plausible(self, peak: float) -> bool:
        """Returns whether a chip of this published peak can do it."""
        return LEAST_RATIO * peak <= self.value <= MOST_RATIO * peak

    def tell(self, default: float) -> MeasuredFigure:
        """Returns the rate in the form of a plan, beside the figure that it replaces."""
        source = self.timed.large
        return MeasuredFigure(
            name=self.name,
            case=self.case,
            value=self.value,
            default=default,
            run_id=source.run_id,
            observed_at=source.observed_at.isoformat(),
            age_s=source.age_s,
        )

    def refuse(self, peak: float, default: float) -> Notice:
        """Returns the warning that it was left out."""
        rule = f"{LEAST_RATIO:.0%} of it" if self.value < peak else f"{MOST_RATIO:g} times it"
        side = "less than" if self.value < peak else "more than"
        return Notice(
            code=LEFT_OUT,
            message=f"{self.case} was measured at {self.value:.3g} {UNITS[self.name]} in {self.timed.large.run_id}, "
            f"{side} {rule}, where the chip's published peak is {peak:.3g}; the tables' {default:.3g} was taken",
            hint="measure again while nothing else runs on the devices: POST /placement/bench",
        )


LEFT_OUT: Final = "measurement_left_out"
"""The code of that warning."""

UNITS: Final = {"flops_per_s": "FLOP/s", "memory_bytes_per_s": "B/s", "bus_bandwidth_bytes_per_s": "B/s"}

WORDS: Final[dict[BenchCase, str]] = {
    "matmul": "matmul",
    "memory_bandwidth": "memory bandwidth",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "permute": "permute",
}
"""What the basis of a step's time calls each case."""


@dataclass(frozen=True)
class Measurements:
    """What was measured of the devices that are planned on.

    Attributes:
        rows: of one kind of device, in the order in which they were written.
        devices: local indices of those that are planned on.
    """

    rows: tuple[Measurement, ...] = ()
    devices: tuple[int, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[Measurement], topology: Topology, places: Sequence[int]) -> Measurements:
        """Returns the measurements of some of a host's devices; empty for several hosts or kinds.

        Args:
            rows: the host's, in the order in which they were written.
            topology: the host.
            places: of the devices in it.
        """
        chosen = [topology.devices[place] for place in places]
        if len({(device.host, device.kind) for device in chosen}) != 1:
            return cls()
        same = (row for row in rows if row.device_kind == chosen[0].kind)
        singles = {"matmul", "memory_bandwidth"}
        alike = _is_joined_alike(topology, set(places))
        kept = tuple(row for row in same if alike or row.case in singles)
        return cls(kept, tuple(device.local_index for device in chosen))

    def find_matmul(self, dtype: str) -> Rate | None:
        """Returns FLOP/s of large matmuls in a dtype on the slowest device; None where a device was not measured."""
        rows = [row for row in self.rows if row.case == "matmul" and row.dtype == dtype]
        return self._find_slowest("flops_per_s", rows, lambda row: row.flop_count)

    def find_memory(self) -> Rate | None:
        """Returns bytes/s, read and written together, of the slowest device; None where a device was not measured."""
        rows = [row for row in self.rows if row.case == "memory_bandwidth"]
        return self._find_slowest("memory_bytes_per_s", rows, lambda row: float(row.size_bytes))

    def find_collective(self, case: Collective) -> Rate | None:
        """Returns the bus bandwidth over a group with all planned devices; None where there is no such group."""
        planned = set(self.devices)
        rows = [row for row in self.rows if row.case == case and planned <= set(row.device_indices)]
        timed = find_newest(rows) if len(planned) > 1 else None
        if timed is None:
            return None
        work = timed.count(lambda row: row.size_bytes * row.busbw_factor)
        return Rate("bus_bandwidth_bytes_per_s", work / timed.seconds, timed)

    def _find_slowest(
        self, name: str, rows: Sequence[Measurement], work: Callable[[Measurement], float]
    ) -> Rate | None:
        """Returns the least rate of the devices, each by itself."""
        each = [find_newest([row for row in rows if row.device_indices == (index,)]) for index in self.devices]
        rates = [Rate(name, timed.count(work) / timed.seconds, timed) for timed in each if timed is not None]
        return min(rates, key=lambda rate: rate.value) if rates and len(rates) == len(each) else None


def find_newest(rows: Sequence[Measurement]) -> Timed | None:
    """Returns the timing of the newest run that has a long enough one; rows are of one case."""
    large = [row for row in rows if row.is_large]
    for run_id in dict.fromkeys(row.run_id for row in reversed(large)):
        sizes = {row.size_bytes: row for row in large if row.run_id == run_id}
        most = max(sizes)
        half = max((size for size in sizes if 2 * size <= most), default=None)
        timed = Timed(sizes[most], None if half is None else sizes[half])
        if timed.is_long:
            return timed
    return None


def pick_newest(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Returns the rows that plans may take, in their order: of each case, dtype and set of devices one timing."""
    groups: dict[object, list[Measurement]] = {}
    for row in rows:
        groups.setdefault((row.case, row.dtype, row.device_kind, row.device_indices), []).append(row)
    found = [timed for group in groups.values() if (timed := find_newest(group)) is not None]
    kept = {id(row) for timed in found for row in (timed.small, timed.large)}
    return tuple(row for row in rows if id(row) in kept)


def _is_joined_alike(topology: Topology, places: set[int]) -> bool:
    """Returns whether fast links join all pairs of these devices or none; a torus is uniform by its shape."""
    if topology.platform != "gpu":
        return True
    pairs = {
        frozenset((link.a, link.b))
        for link in topology.links
        if {link.a, link.b} <= places and classify_link(link.kind) in ("nvlink", "xgmi")
    }
    return len(pairs) in (0, len(places) * (len(places) - 1) // 2)
