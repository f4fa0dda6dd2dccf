"""Benches: the measured cases, their bounds, and the returned records.

GB/s is 1e9. algbw = S/t and busbw = algbw · factor, with S and the factor in each record (nccl-tests'
doc/PERFORMANCE.md: all-reduce 2(n−1)/n; all-gather, reduce-scatter, all-to-all (n−1)/n with S the total over ranks;
send/recv 1). No sample is dropped.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StrictInt, StrictStr

from meshwright.wire.base import COUNTED_FIRST, Evidence, Indices, Notice, Reply, RequestPart

BenchCase = Literal[
    "host_to_device",
    "device_to_host",
    "device_to_device",
    "replicate",
    "shard_batch",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "permute",
    "matmul",
    "memory_bandwidth",
]
Dtype = Literal["float32", "bfloat16", "float16"]

MAX_SIZE_BYTES = 2**40


class BenchRequest(RequestPart):
    """`POST /placement/bench`. `{}` is the quick suite on all devices. Devices must be idle."""

    suite: Literal["quick", "full"] = Field(
        default="quick", description="quick: within 20 s; full: more sizes and samples"
    )
    cases: Annotated[tuple[BenchCase, ...], Field(min_length=1), COUNTED_FIRST] | None = Field(
        default=None, description="null: all"
    )
    devices: Indices | None = Field(default=None, description="local indices; null: all")
    mesh: StrictStr | None = Field(
        default=None, description='mesh for collectives, "dp:2,tp:4"; null: one axis over the devices', max_length=512
    )
    axis: StrictStr | None = Field(default=None, description="the axis to run over; null: each in turn", max_length=64)
    sizes_bytes: (
        Annotated[
            tuple[Annotated[StrictInt, Field(ge=4, le=MAX_SIZE_BYTES)], ...],
            Field(min_length=1, max_length=32),
            COUNTED_FIRST,
        ]
        | None
    ) = Field(default=None, description="S of transfers and collectives; null: the suite's")
    matmul_size: Annotated[StrictInt, Field(ge=8, le=131072)] | None = Field(
        default=None, description="n of the n×n×n matmul; null: the suite's"
    )
    dtype: Dtype | None = Field(default=None, description="null: float32 on CPU, bfloat16 on accelerators")
    samples: Annotated[StrictInt, Field(ge=3, le=1000)] | None = Field(default=None, description="null: the suite's")
    max_s: Annotated[float, Field(strict=True, gt=0, le=3600)] | None = Field(
        default=None, description="time limit of the whole run; null: 20 for quick, 300 for full"
    )
    lease: Annotated[StrictStr, Field(max_length=128)] | None = Field(
        default=None, description="id of the caller's lease, whose devices may be measured all the same"
    )


class BenchRecord(Evidence):
    """One measurement: all samples, median, p10, p90, and whether the result was right."""

    case: BenchCase
    device_indices: tuple[int, ...] = Field(description="local indices that took part")
    device_kind: str = Field(description="as JAX calls the first of them")
    axis: str | None = None
    axis_size: int | None = None
    dtype: str
    size_bytes: int = Field(
        description="S: of transfers the array; of a collective the buffer of each rank, for all_gather what it has "
        "in the end, for reduce_scatter what it begins with; of matmul the three matrices; of memory_bandwidth what is "
        "read and written"
    )
    samples_s: tuple[float, ...]
    median_s: float
    p10_s: float
    p90_s: float
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    flops_per_s: float | None = None
    wrong_elements: int = Field(description="elements that differ from what they should be; as nccl-tests checks")
    correct: bool = Field(description="no element is wrong, and the compiled program has the collective")


class Skipped(Reply):
    """A case that was not run, and why: never a silent pass."""

    case: BenchCase
    reason: str


class BenchResult(Reply):
    """The result of a bench run."""

    suite: str
    platform: str
    device_kind: str
    device_count: int
    jax: str
    jaxlib: str
    started_at: datetime
    duration_s: float
    records: tuple[BenchRecord, ...]
    skipped: tuple[Skipped, ...] = ()
    warnings: tuple[Notice, ...] = ()


class LatestBench(Reply):
    """`GET /placement/bench`: the newest record of each case, axis, size, dtype and set of devices."""

    records: tuple[BenchRecord, ...]
