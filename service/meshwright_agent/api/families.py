"""The metrics by name, and how families of samples are built from what the agent counts.

Rule: every metric stands in one table, with its meaning; the README's table and tests are made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from meshwright_agent.telemetry.durations import Durations, Labels

METRICS: Final = {
    "meshwright_build_info": "1, with the agent's version",
    "meshwright_http_requests_total": "requests answered, by route template, method and status",
    "meshwright_http_request_duration_seconds": "time from request to the last byte of the answer, by route template",
    "meshwright_http_connections": "connections that are open",
    "meshwright_http_connections_refused_total": "connections that ended before a request reached the agent, by reason",
    "meshwright_access_refusals_total": "requests refused before their route, by the code of the refusal",
    "meshwright_ready": "1 when /readyz answers 200",
    "meshwright_component_health": "1 for the state that the component is in, 0 for the others",
    "meshwright_component_since_timestamp_seconds": "since when the component is in its state, Unix time",
    "meshwright_health_events_total": "events of health since the agent started, by component and kind",
    "meshwright_health_events_lost_total": "events that the store did not take in time, and that no history has",
    "meshwright_device_info": "1 a device, with its identity",
    "meshwright_device_memory_capacity_bytes": "memory of the device",
    "meshwright_device_memory_used_bytes": "memory in use",
    "meshwright_worker_state": "1 for the state that the device worker is in, 0 for the others",
    "meshwright_child_crashes_total": "processes that ended as they should not, by kind of child",
    "meshwright_child_abandoned": "processes that not even SIGKILL ended and that are there still",
    "meshwright_child_call_duration_seconds": "time that calls took in a child, by operation and outcome",
    "meshwright_release_duration_seconds": "time until the devices were given back, by outcome",
    "meshwright_leases_active": "leases that hold",
    "meshwright_preemptions_total": "leases and runs that had to give way to a lease",
    "meshwright_runs_queued": "runs that wait",
    "meshwright_runs_running": "runs under way: at most one bench and one compile",
    "meshwright_run_duration_seconds": "time that runs took that were begun, by kind and final state",
    "meshwright_compiles_total": "compiles that ended, by the status of their answer",
    "meshwright_bench_bus_bandwidth_bytes_per_second": "busbw of the newest record, by nccl-tests' definition",
    "meshwright_bench_flops_per_second": "matmul FLOP/s of the newest record",
    "meshwright_bench_age_seconds": "age of the newest record",
    "meshwright_store_failures_total": "reads and writes of the store that failed or were not done in time",
    "meshwright_store_write_duration_seconds": "time that writes took in the store's thread, by outcome",
    "meshwright_store_size_bytes": "size of the database with its write-ahead log",
}
"""Every metric of ours, and what it means."""


def build_gauges(name: str, labels: Labels) -> GaugeMetricFamily:
    """Returns a family of gauges, without samples."""
    return GaugeMetricFamily(name, METRICS[name], labels=labels)


def build_gauge(name: str, value: float) -> GaugeMetricFamily:
    """Returns a gauge without labels."""
    return GaugeMetricFamily(name, METRICS[name], value=value)


def build_counters(name: str, labels: Labels, values: Mapping[Labels, float]) -> CounterMetricFamily:
    """Returns a family of counters with their values."""
    family = CounterMetricFamily(name.removesuffix("_total"), METRICS[name], labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def build_counter(name: str, value: float) -> CounterMetricFamily:
    """Returns a counter without labels."""
    return CounterMetricFamily(name.removesuffix("_total"), METRICS[name], value=value)


def build_one_hot(
    name: str, labels: Labels, states: Mapping[Labels, str], all_states: tuple[str, ...]
) -> GaugeMetricFamily:
    """Returns, for each key, a sample a state: 1 for the one that it is in, 0 for the others."""
    family = build_gauges(name, labels)
    for key, state in states.items():
        for one in all_states:
            family.add_metric([*key, one], 1.0 if one == state else 0.0)
    return family


def build_histogram(name: str, labels: Labels, durations: Iterable[tuple[Labels, Durations]]) -> HistogramMetricFamily:
    """Returns a histogram of durations; each brings the first of its labels along."""
    family = HistogramMetricFamily(name, METRICS[name], labels=labels)
    for first, counted in durations:
        for spread in counted.spreads():
            buckets = [("+Inf" if bound_s == float("inf") else repr(bound_s), n) for bound_s, n in spread.cumulative]
            family.add_metric([*first, *spread.labels], buckets, spread.total_s)
    return family
