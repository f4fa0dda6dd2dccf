"""/metrics: Prometheus text. Prefix meshwright_, base units; unknown values are absent series.

Labels are those of dcgm-exporter where they have the same meaning (gpu, UUID, pci_bus_id, device, modelName, Hostname).
Their values have the same format, so that both join. A scrape reads memory only, not a child, driver or disk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, get_args

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import PlainTextResponse, Response

from meshwright.errors import ProblemError
from meshwright.wire.devices import Device, WorkerState
from meshwright.wire.health import State
from meshwright_agent.agent import Agent
from meshwright_agent.auth import NEEDS_READ
from meshwright_agent.health.xid import DRIVER
from meshwright_agent.metrics import COUNTED, HTTP_DURATION, HTTP_REQUESTS, METRICS
from meshwright_agent.routes.shared import TEXT

router = APIRouter(tags=["metrics"])

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HEALTH_STATES: Final[tuple[str, ...]] = get_args(State)
WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerState)
MAX_LISTED: Final = 1024
"""Maximum number of devices with their own series. Only a simulated host has more. A larger scrape would delay the
agent."""
_DEVICE_LABELS: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "platform")
"""Source: NVIDIA/dcgm-exporter, internal/pkg: rendermetrics/render_metrics.go, collector/gpu_collector.go."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "text exposition", "content": TEXT}},
    dependencies=[NEEDS_READ],
)
async def get_metrics(request: Request) -> Response:
    """Prometheus text exposition."""
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE)


def observe_request(route: str, method: str, status: int, seconds: float) -> None:
    """Counts one answered request."""
    HTTP_REQUESTS.labels(route, method if method in _METHODS else "other", str(status)).inc()
    HTTP_DURATION.labels(route).observe(seconds)


def build_registry(agent: Agent) -> CollectorRegistry:
    """Returns the registry that a scrape of an agent reads."""
    registry = CollectorRegistry()
    for collector in (*COUNTED, AgentCollector(agent)):
        registry.register(collector)
    ProcessCollector(registry=registry)
    return registry


def _gauge(name: str, labels: tuple[str, ...] | None = None, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, METRICS[name], value=value, labels=labels)


def _one_hot(
    name: str, labels: tuple[str, ...], states: Mapping[tuple[str, ...], str], all_states: tuple[str, ...]
) -> GaugeMetricFamily:
    """Returns, for each key, one sample per state: 1 for its current state, 0 for the others."""
    family = _gauge(name, labels)
    for key, state in states.items():
        for one in all_states:
            family.add_metric([*key, one], 1.0 if one == state else 0.0)
    return family


class AgentCollector(Collector):
    """Reads the state of the agent, its children, its work and its devices at a scrape."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """Yields the current metric families."""
        yield from self._collect_state()
        yield from self._collect_devices()
        yield from self._collect_bench()

    def _collect_state(self) -> Iterator[Metric]:
        agent = self._agent
        yield _gauge("meshwright_ready", value=1.0 if agent.readiness()[0] else 0.0)
        components = agent.health.view(agent.clock.now()).components
        states: dict[tuple[str, ...], str] = {(part.name,): part.state for part in components}
        yield _one_hot("meshwright_component_health", ("component", "state"), states, HEALTH_STATES)
        yield _one_hot("meshwright_worker_state", ("state",), {(): agent.device.state}, WORKER_STATES)
        crashes = CounterMetricFamily(
            "meshwright_child_crashes", METRICS["meshwright_child_crashes_total"], labels=("child",)
        )
        abandoned = _gauge("meshwright_child_abandoned", ("child",))
        for name, child in agent.children.items():
            crashes.add_metric([name], child.crash_count)
            abandoned.add_metric([name], len(child.abandoned_pids))
        yield from (crashes, abandoned)
        yield _gauge("meshwright_leases_active", value=len(agent.registry.active()))
        yield _gauge("meshwright_runs_queued", value=agent.runs.queued_count)
        yield _gauge("meshwright_runs_running", value=len(agent.runs.running))
        failures = METRICS["meshwright_store_failures_total"]
        yield CounterMetricFamily("meshwright_store_failures", failures, value=agent.store.failure_count)

    def _collect_devices(self) -> Iterator[Metric]:
        try:
            devices = self._agent.host.devices().devices
        except ProblemError:
            return
        if len(devices) > MAX_LISTED:
            return
        info = _gauge("meshwright_device_info", _DEVICE_LABELS)
        capacity = _gauge("meshwright_device_memory_capacity_bytes", _DEVICE_LABELS)
        used = _gauge("meshwright_device_memory_used_bytes", _DEVICE_LABELS)
        health, now = self._agent.health, self._agent.clock.now()
        unknown = frozenset(name for name in health.names() if health.state(name, now) == "unknown")
        for device in devices:
            labels = _labels_of(device)
            info.add_metric(labels, 1)
            if device.memory and device.memory.capacity_bytes is not None:
                capacity.add_metric(labels, device.memory.capacity_bytes)
            if device.memory and device.memory.used_bytes is not None and not _is_out_of_sight(device, unknown):
                used.add_metric(labels, device.memory.used_bytes)
        yield from (info, capacity, used)

    def _collect_bench(self) -> Iterator[Metric]:
        names = ("case", "axis", "axis_size", "size_bytes", "dtype", "devices")
        bandwidth = _gauge("meshwright_bench_bus_bandwidth_bytes_per_second", names)
        flops = _gauge("meshwright_bench_flops_per_second", names)
        age = _gauge("meshwright_bench_age_seconds", names)
        now = self._agent.clock.now()
        for record in self._agent.benches.newest_records():
            labels = [
                record.case,
                record.axis or "",
                str(record.axis_size or ""),
                str(record.size_bytes),
                record.dtype,
                ",".join(map(str, record.device_indices)),
            ]
            if record.busbw_bytes_per_s is not None:
                bandwidth.add_metric(labels, record.busbw_bytes_per_s)
            if record.flops_per_s is not None:
                flops.add_metric(labels, record.flops_per_s)
            age.add_metric(labels, max(0.0, (now - record.observed_at).total_seconds()))
        yield from (bandwidth, flops, age)


def _is_out_of_sight(device: Device, unknown: Collection[str]) -> bool:
    """Returns whether a device's usage facts are outdated: of a worker that has ended, or its or its driver's state is
    unknown.

    A fault makes a device unhealthy even while its driver does not answer, so that the driver's state counts too.
    """
    basis = device.memory and device.memory.basis
    return basis == "cached" or device.component in unknown or (basis == "passive" and DRIVER in unknown)


def _labels_of(device: Device) -> list[str]:
    return [
        str(device.local_index),
        device.uuid or "",
        _write_pci_address(device.pci_bus_id or ""),
        _name_card(device),
        device.kind,
        device.host,
        device.platform,
    ]


def _write_pci_address(address: str) -> str:
    """Returns sysfs' address "0000:1b:00.0" in the form of NVML: "00000000:1B:00.0"."""
    domain, colon, place = address.partition(":")
    return f"{domain:0>8}{colon}{place}".upper() if colon else address


def _name_card(device: Device) -> str:
    """Returns "nvidia0" for card 0 of nvidia-smi, as dcgm-exporter does. It is not the number of the device file."""
    index = device.attributes.get("index", device.attributes.get("parentIndex"))
    return "" if device.platform != "gpu" or index is None else f"nvidia{index}"
