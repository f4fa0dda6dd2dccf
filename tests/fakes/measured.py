"""What benches would find of a host, worked out from rates and one start for all calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshwright.planning.search.measured import Measurement
from meshwright.wire.bench import BenchRecord, BenchResult
from tests.fakes.stored import EPOCH, build_record

H100 = "NVIDIA H100 80GB HBM3"
START_S = 2e-4
"""Of each call; longer than those that were published, so that a rate from which it was not taken is far off."""
MIB = 2**20
FACTORS = {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "permute": 1.0}
"""busbw ÷ algbw of 8 ranks, as nccl-tests has it."""


def build_matmul(index: int, flops_per_s: float, *, n: int = 8192, **fields: Any) -> Measurement:
    seconds = START_S + 2 * n**3 / flops_per_s
    known = {"case": "matmul", "device_indices": (index,), "size_bytes": 6 * n * n, "flop_count": 2.0 * n**3}
    return build_measurement(**{"median_s": seconds, **known, **fields})


def build_memory(index: int, bytes_per_s: float, *, size_bytes: int = 1024 * MIB, **fields: Any) -> Measurement:
    seconds = START_S + size_bytes / bytes_per_s
    known = {"case": "memory_bandwidth", "device_indices": (index,), "size_bytes": size_bytes}
    return build_measurement(**{"median_s": seconds, **known, **fields})


def build_collective(
    case: str,
    busbw_bytes_per_s: float,
    *,
    size_bytes: int = 256 * MIB,
    devices: Sequence[int] = range(8),
    **fields: Any,
) -> Measurement:
    seconds = START_S + size_bytes * FACTORS[case] / busbw_bytes_per_s
    known = {"case": case, "device_indices": tuple(devices), "axis_size": len(devices), "size_bytes": size_bytes}
    return build_measurement(**{"median_s": seconds, "busbw_factor": FACTORS[case], **known, **fields})


def build_measurement(**fields: Any) -> Measurement:
    known = {"dtype": "bfloat16", "device_kind": H100, "run_id": "run-0001", "observed_at": EPOCH, "age_s": 60.0}
    return Measurement.model_validate({**known, **fields})


def build_host(flops_per_s: float, **fields: Any) -> tuple[Measurement, ...]:
    """Returns matmuls of two sizes on each of 8 devices."""
    return tuple(build_matmul(index, flops_per_s, n=n, **fields) for n in (4096, 8192) for index in range(8))


def build_bench_record(row: Measurement, **fields: Any) -> BenchRecord:
    """Returns the record that a measurement is read from."""
    known: dict[str, Any] = {
        name: getattr(row, name) for name in ("case", "dtype", "device_indices", "axis_size", "size_bytes", "median_s")
    }
    known |= {"axis": None if row.axis_size is None else "x", "name": row.case, "observed_at": row.observed_at}
    algbw = row.size_bytes / row.median_s
    known |= {"flops_per_s": row.flop_count / row.median_s or None, "algbw_bytes_per_s": algbw}
    known |= {"busbw_bytes_per_s": row.busbw_factor * algbw or None}
    known |= {"samples_s": (row.median_s,) * 3, "p10_s": row.median_s, "p90_s": row.median_s}
    return build_record(**{**known, "device_kind": row.device_kind, **fields})


def build_bench_result(records: Sequence[BenchRecord], **fields: Any) -> dict[str, Any]:
    """Returns the result of a run that measured them, as JSON."""
    known: dict[str, Any] = {"suite": "full", "platform": "gpu", "device_kind": H100, "device_count": 8}
    known |= {"jax": "0.10.2", "jaxlib": "0.10.2", "started_at": EPOCH, "duration_s": 60.0, "records": tuple(records)}
    return BenchResult.model_validate({**known, **fields}).model_dump(mode="json")
