"""Metrics by name, and the metrics that are counted at the event. `routes.metrics` reads the others at a scrape.

To add a metric, add a row to `METRICS`. Then add an object here that is updated at the event, or a sample in the
collector of `routes.metrics`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

import meshwright_agent

disable_created_metrics()

METRICS: Final = {
    "meshwright_build_info": "1, with the agent's version",
    "meshwright_http_requests_total": "requests answered, by route template, method and status",
    "meshwright_http_request_duration_seconds": "time from request to the last byte of the answer, by route template",
    "meshwright_ready": "1 when /readyz answers 200",
    "meshwright_component_health": "1 for the state that the component is in, 0 for the others",
    "meshwright_device_info": "1 a device, with its identity",
    "meshwright_device_memory_capacity_bytes": "memory of the device",
    "meshwright_device_memory_used_bytes": "memory in use",
    "meshwright_worker_state": "1 for the state that the device worker is in, 0 for the others",
    "meshwright_child_crashes_total": "processes that ended as they should not, by kind of child",
    "meshwright_child_abandoned": "processes that not even SIGKILL ended and that are there still",
    "meshwright_release_duration_seconds": "time until the devices were given back, by outcome",
    "meshwright_leases_active": "leases that hold",
    "meshwright_runs_queued": "runs that wait",
    "meshwright_runs_running": "runs in progress: at most one that opens devices, and one compile",
    "meshwright_run_duration_seconds": "duration of the runs that started, by kind and final state",
    "meshwright_bench_bus_bandwidth_bytes_per_second": "busbw of the newest record, by nccl-tests' definition",
    "meshwright_bench_flops_per_second": "matmul FLOP/s of the newest record",
    "meshwright_bench_age_seconds": "age of the newest record",
    "meshwright_store_failures_total": "reads and writes of the store that failed or were not done in time",
}
"""Every metric of the agent, with its meaning."""

_REQUEST_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_RELEASE_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 5.0)
"""Fine up to the bound of a release, 2 s."""
_RUN_BUCKETS_S: Final = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


def _build_histogram(name: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, METRICS[name], labels, buckets=buckets, registry=None)


HTTP_REQUESTS: Final = Counter(
    "meshwright_http_requests", METRICS["meshwright_http_requests_total"], ("route", "method", "status"), registry=None
)
HTTP_DURATION: Final = _build_histogram("meshwright_http_request_duration_seconds", ("route",), _REQUEST_BUCKETS_S)
RELEASE_DURATION: Final = _build_histogram("meshwright_release_duration_seconds", ("outcome",), _RELEASE_BUCKETS_S)
RUN_DURATION: Final = _build_histogram("meshwright_run_duration_seconds", ("kind", "state"), _RUN_BUCKETS_S)
for _outcome in ("released", "killed", "abandoned"):  # from 0, so that increase() sees the first
    RELEASE_DURATION.labels(_outcome)
BUILD_INFO: Final = Gauge("meshwright_build_info", METRICS["meshwright_build_info"], ("version",), registry=None)
BUILD_INFO.labels(version=meshwright_agent.__version__).set(1)

COUNTED: Final = (HTTP_REQUESTS, HTTP_DURATION, RELEASE_DURATION, RUN_DURATION, BUILD_INFO)
