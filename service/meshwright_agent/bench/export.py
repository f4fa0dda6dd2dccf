"""Records in the JSON of nccl-tests and of nvbandwidth, so that tools that read those read ours.

Rule: pure, and only what was measured: what those tools know and JAX does not (PCI ids, process ids, NCCL's version)
is null, never made up. GB/s is 1e9. Source: nccl-tests, src/util.cu, JSON version 1; nvbandwidth, json_output.cpp.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from meshwright.wire.bench import BenchRecord
from meshwright_agent import __version__
from meshwright_agent.bench.scope import COLLECTIVE_CASES, ITEM_BYTES

NCCL_TESTS_VERSION: Final = 1
TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"
NCCL_TYPES: Final[Mapping[str, str]] = {"float32": "float", "bfloat16": "bfloat16", "float16": "half"}
REDUCING: Final = frozenset({"all_reduce", "reduce_scatter"})

MATRIX_LABELS: Final[Mapping[str, str]] = {
    "host_to_device": "device_put host(row) -> device(column) bandwidth (GB/s)",
    "device_to_host": "copy device(column) -> host(row) bandwidth (GB/s)",
    "device_to_device": "device_put device(row) -> device(column) bandwidth (GB/s)",
    "replicate": "device_put host -> every device, bytes of one copy (GB/s)",
    "shard_batch": "device_put host -> all devices, split along the batch (GB/s)",
    "prefetch": "device_put host -> all devices while they compute (GB/s)",
    "memory_bandwidth": "memory bandwidth of device(column), read and written (GB/s)",
}
"""The cases that stand in nvbandwidth's format, in its order."""


def format_nccl_tests(records: Iterable[BenchRecord]) -> dict[str, Any]:
    """Returns the collectives among the records as one report of nccl-tests.

    nccl-tests writes one report a collective; here `experiment_name` tells them apart. `time` is the median in µs.
    Truth values are the words "true" and "false", as nccl-tests writes them.
    """
    chosen = [record for record in records if record.case in COLLECTIVE_CASES]
    wrong = sum(not record.correct for record in chosen)
    buses = [(record.busbw_bytes_per_s or 0.0) / 1e9 for record in chosen]
    times = sorted(record.observed_at for record in chosen)
    return {
        "version": NCCL_TESTS_VERSION,
        "start_time": times[0].strftime(TIME_FORMAT) if times else None,
        "args": [],
        "env": [],
        "nccl_version": None,
        "config": _format_config(chosen),
        "results": [_format_result(record) for record in chosen],
        "out_of_bounds": {"count": wrong, "okay": _word(wrong == 0)},
        "average_bus_bandwidth": {"bandwidth": statistics.fmean(buses) if buses else 0.0, "okay": "unchecked"},
        "errors": [],
        "end_time": times[-1].strftime(TIME_FORMAT) if times else None,
    }


def _format_config(records: Sequence[BenchRecord]) -> dict[str, Any]:
    sizes = [record.size_bytes for record in records]
    indices = sorted({index for record in records for index in record.device_indices})
    return {
        "nthreads": 1,
        "ngpus": len(indices),
        "minimum_bytes": min(sizes, default=None),
        "maximum_bytes": max(sizes, default=None),
        "warmup_iters": max((record.detail.get("warmup_count", 0) for record in records), default=None),
        "iterations": max((len(record.samples_s) for record in records), default=None),
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": _word(True),
        "parallel_init": _word(False),
        "devices": [_format_device(rank, index, records) for rank, index in enumerate(indices)],
    }


def _format_device(rank: int, index: int, records: Sequence[BenchRecord]) -> dict[str, Any]:
    known = next(record.detail for record in records if index in record.device_indices)
    return {
        "rank": rank,
        "group": 0,
        "pid": None,
        "hostname": known.get("host"),
        "device": index,
        "device_hex": None,
        "device_info": known.get("device_kind"),
    }


def _format_result(record: BenchRecord) -> dict[str, Any]:
    return {
        "size": record.size_bytes,
        "count": record.size_bytes // ITEM_BYTES[record.dtype],
        "type": NCCL_TYPES[record.dtype],
        "redop": "sum" if record.case in REDUCING else "none",
        "root": "-1",
        "out_of_place": {
            "time": record.median_s * 1e6,
            "alg_bw": (record.algbw_bytes_per_s or 0.0) / 1e9,
            "bus_bw": (record.busbw_bytes_per_s or 0.0) / 1e9,
            "nwrong": float(record.nwrong),
        },
        "in_place": None,
        "actual_iterations": len(record.samples_s),
        "experiment_name": f"{record.name} over {record.axis}:{record.axis_size}",
    }


def _word(value: bool) -> str:
    return "true" if value else "false"


def format_nvbandwidth(records: Iterable[BenchRecord]) -> dict[str, Any]:
    """Returns the transfers among the records as nvbandwidth's report: of each case its largest size.

    A matrix has a row per source and a column per device, in the order of local indices; "N/A" was not measured.
    """
    by_case: dict[str, list[BenchRecord]] = {case: [] for case in MATRIX_LABELS}
    for record in records:
        if record.case in by_case:
            by_case[record.case].append(record)
    cases = [_format_testcase(case, _keep_largest(found)) for case, found in by_case.items() if found]
    return {"nvbandwidth": {"version": f"meshwright {__version__}", "git_version": "", "testcases": cases}}


def _keep_largest(records: Sequence[BenchRecord]) -> list[BenchRecord]:
    largest = max(record.size_bytes for record in records)
    return [record for record in records if record.size_bytes == largest]


def _format_testcase(case: str, records: Sequence[BenchRecord]) -> dict[str, Any]:
    cells = {_place(record): (record.algbw_bytes_per_s or 0.0) / 1e9 for record in records}
    rows, columns = (sorted({place[side] for place in cells}) for side in (0, 1))
    if case == "device_to_device":
        rows = columns = sorted({*rows, *columns})
    return {
        "name": records[0].name,
        "status": "Passed" if all(record.correct for record in records) else "Error",
        "bandwidth_description": MATRIX_LABELS[case],
        "bandwidth_matrix": [[_format_cell(cells.get((row, column))) for column in columns] for row in rows],
        "sum": sum(cells.values()),
        "min": min(cells.values()),
        "max": max(cells.values()),
        "average": statistics.fmean(cells.values()),
        "size_bytes": records[0].size_bytes,
    }


def _place(record: BenchRecord) -> tuple[int, int]:
    """Returns (row, column): devices of a pair, the device beside the host, or the one cell of all devices."""
    match record.case:
        case "device_to_device":
            return record.device_indices[0], record.device_indices[1]
        case "host_to_device" | "device_to_host" | "memory_bandwidth":
            return 0, record.device_indices[0]
        case _:
            return 0, 0


def _format_cell(value: float | None) -> str:
    return "N/A" if value is None else f"{value:g}"
