"""Bench results of this host in place of the tables' figures: factors of matmuls, memory, all-reduces and the
network between hosts.

A bench result counts only if it covers all planned devices and the fixed cost of a call is a small part of it; of
several devices the slowest counts. A figure that the chip cannot have is not used. These values are read, by the
definitions of the benches:

- matmul: 2n³ FLOP of n×n×n on one device in its dtype, n of 4096 and more.
- memory_bandwidth: S of x → −x, read and written together, on one device.
- all_reduce: S × the record's busbw factor, over one group of all devices that took part. Where NVLink joins some of
  them and not others, such a group does not represent smaller ones, so it is not read.

Each scales what the tables say of such a chip by measured ÷ expected: its peak, its memory's bandwidth, and the links
inside the host of every axis. What a preflight measured between hosts scales the links between them; of several hosts
the slowest counts. Imports no numpy, since the agent's own process makes measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from meshwright.topology.links import classify_link
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice, Wire
from meshwright.wire.bench import BenchCase
from meshwright.wire.mesh import MeasuredFigure

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


MATMUL_ALONE: Final = {"tpu": 0.95, "gpu": 0.8}
"""Part of its peak that a chip reaches in a large matmul alone, where it was not measured: medians of five TPUs (XLA's
cycles) and three GPUs (measured)."""

COPY_ALONE: Final = 0.8
"""Part of its memory's published bandwidth that a copy reaches."""

LEFT_OUT: Final = "measurement_left_out"
"""The code of the warning that a figure was not used."""

Case = BenchCase | Literal["network"]
"""What is measured: by a bench; or by a preflight, between hosts."""

KINDS: Final[dict[Case, tuple[str, str, str]]] = {
    "matmul": ("flops_per_s", "FLOP/s", "matmul"),
    "memory_bandwidth": ("memory_bytes_per_s", "B/s", "memory bandwidth"),
    "all_reduce": ("bus_bandwidth_bytes_per_s", "B/s", "all-reduce"),
    "network": ("network_bytes_per_s", "B/s", "network between hosts"),
}
"""Name of the rate, its unit, and what the basis of a step's time calls it."""


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
    age_s: float = Field(default=0.0, description="seconds since `observed_at`")

    @property
    def work(self) -> float:
        """What is done in `median_s`: FLOP of a matmul, bytes of the others."""
        return self.flop_count or self.size_bytes * (self.busbw_factor or 1.0)

    @property
    def is_large(self) -> bool:
        """Whether it is of a case that plans take, and of a size that comes up to speed."""
        if self.case == "matmul":
            return self.flop_count >= LEAST_FLOPS
        if self.case == "memory_bandwidth":
            return self.size_bytes >= LEAST_MEMORY_BYTES
        is_whole = self.axis_size == len(self.device_indices) > 1
        return self.case == "all_reduce" and self.size_bytes >= LEAST_BYTES and is_whole


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
    def rate(self) -> float:
        """Work in a second."""
        return (self.large.work - (self.small.work if self.small else 0.0)) / self.seconds


@dataclass(frozen=True)
class Factor:
    """A measured rate beside the tables': `default`, expected of such a chip, and its published `peak`."""

    case: Case
    rate: float
    run_id: str
    age_s: float
    default: float
    peak: float

    @classmethod
    def of(cls, timed: Timed, default: float, peak: float) -> Factor:
        """Returns the factor of a bench."""
        return cls(timed.large.case, timed.rate, timed.large.run_id, timed.large.age_s, default, peak)

    @property
    def ratio(self) -> float:
        """Measured ÷ expected."""
        return self.rate / self.default

    @property
    def is_taken(self) -> bool:
        """Whether a chip of this published peak can do it; hosts have networks of any rate."""
        return self.case == "network" or LEAST_RATIO * self.peak <= self.rate <= MOST_RATIO * self.peak

    def to_figure(self) -> MeasuredFigure:
        """Returns the rate in the form of a plan, beside the figure that it replaces."""
        name = KINDS[self.case][0]
        return MeasuredFigure(name=name, value=self.rate, default=self.default, run_id=self.run_id, age_s=self.age_s)

    def refuse(self) -> Notice:
        """Returns the warning that it was left out."""
        is_low = self.rate < self.peak
        rule = f"less than {LEAST_RATIO:.0%} of it" if is_low else f"more than {MOST_RATIO:g} times it"
        return Notice(
            code=LEFT_OUT,
            message=f"{self.case} was measured at {self.rate:.3g} {KINDS[self.case][1]} in "
            f"{self.run_id}, {rule}, where the chip's published peak is {self.peak:.3g}; the tables' "
            f"{self.default:.3g} was taken",
            hint="measure again while nothing else runs on the devices: POST /placement/bench",
        )


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
            places: of the devices in it.
        """
        chosen = [topology.devices[place] for place in places]
        if len({(device.host, device.kind) for device in chosen}) != 1:
            return cls()
        alike = _is_joined_alike(topology, set(places))
        same = (row for row in rows if row.device_kind == chosen[0].kind and (alike or row.case != "all_reduce"))
        return cls(tuple(same), tuple(device.local_index for device in chosen))

    def find(self, case: Case, dtype: str | None = None) -> Timed | None:
        """Returns the timing of the slowest device, or of a group with all of them; None where one was not measured."""
        rows = [row for row in self.rows if row.case == case and dtype in (None, row.dtype)]
        groups = [[row for row in rows if row.device_indices == (index,)] for index in self.devices]
        if case == "all_reduce":
            groups = [[row for row in rows if set(self.devices) <= set(row.device_indices)]]
        timed = [found for group in groups if (found := find_newest(group))]
        is_known = len(timed) == len(groups) and (case != "all_reduce" or len(self.devices) > 1)
        return min(timed, key=lambda each: each.rate) if timed and is_known else None


NETWORK_SIZE_BYTES: Final = 2**30
"""Of the exchange that stands for a measured network: latencies do not count in it."""


def find_newest(rows: Sequence[Measurement]) -> Timed | None:
    """Returns the timing of the newest run that has a long enough one; rows are of one case."""
    large = [row for row in rows if row.is_large]
    for run_id in dict.fromkeys(row.run_id for row in reversed(large)):
        sizes = {row.size_bytes: row for row in large if row.run_id == run_id}
        most = max(sizes)
        half = max((size for size in sizes if 2 * size <= most), default=None)
        timed = Timed(sizes[most], None if half is None else sizes[half])
        if timed.seconds >= (START_S if timed.small else ALONE_S):
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
