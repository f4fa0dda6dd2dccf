"""/metrics: Prometheus text from an own registry. Prefix meshwright_, base units; unknown is an absent series.

Labels are dcgm-exporter's where they mean the same (gpu, UUID, pci_bus_id, device, modelName, Hostname), and written as
it writes them, so that both join.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Counts
from collections.abc import Collection, Iterator
from typing import Final, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import meshwright_agent
from meshwright.errors import (
    ForbiddenError,
    HostNotAllowedError,
    ProblemError,
    UnauthorizedError,
)
from meshwright.wire.devices import Device, WorkerState
from meshwright.wire.health import State
from meshwright.wire.verification import VerificationStatus
from meshwright_agent.agent import Agent
from meshwright_agent.api.activity import ActivityCollector
from meshwright_agent.api.families import (
    METRICS,
    build_counters,
    build_gauge,
    build_gauges,
    build_one_hot,
)
from meshwright_agent.api.gate import PlainRoute
from meshwright_agent.health.verdicts import DRIVER, name_component
from meshwright_agent.serving.refused import REASONS, RefusedConnections
from meshwright_agent.telemetry.durations import Labels

__all__ = ["METRICS", "Meters"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HEALTH_STATES: Final[tuple[str, ...]] = get_args(State)
COMPILE_STATUSES: Final[tuple[VerificationStatus, ...]] = get_args(VerificationStatus)
WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerState)
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TURN_S: Final = 0.001
"""How long a scrape works on before it lets others go first."""
MOST_LISTED: Final = 1024
"""Devices with series of their own. Only a simulated host has more; a scrape of thousands would hold up the agent."""
_DEVICE_LABELS: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "platform")
"""Source: NVIDIA/dcgm-exporter, internal/pkg: rendermetrics/render_metrics.go, collector/gpu_collector.go."""
REFUSALS: Final = tuple(sorted(kind.code for kind in (UnauthorizedError, ForbiddenError, HostNotAllowedError)))
"""Codes of what the gate refuses before any route; they stand there from the start, so that a first one is a rise."""


class Meters:
    """The registry of one app: counters fed by the gate, and collectors that ask agent and server when scraped."""

    def __init__(self, agent: Agent, refused: RefusedConnections | None = None) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "meshwright_http_requests",
            METRICS["meshwright_http_requests_total"],
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._durations = Histogram(
            "meshwright_http_request_duration_seconds",
            METRICS["meshwright_http_request_duration_seconds"],
            ("route",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._refusals = Counter(
            "meshwright_access_refusals",
            METRICS["meshwright_access_refusals_total"],
            ("reason",),
            registry=self.registry,
        )
        for reason in REFUSALS:
            self._refusals.labels(reason)
        self._counts: dict[tuple[str, str, int], Counter] = {}
        self._timers: dict[str, Histogram] = {}
        info = Gauge("meshwright_build_info", METRICS["meshwright_build_info"], ("version",), registry=self.registry)
        info.labels(version=meshwright_agent.__version__).set(1)
        self.registry.register(AgentCollector(agent))
        self.registry.register(ActivityCollector(agent))
        self.registry.register(ConnectionCollector(Counts() if refused is None else refused))
        ProcessCollector(registry=self.registry)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts one answered request."""
        method = method if method in _METHODS else "other"
        key = (route, method, status)
        if key not in self._counts:
            self._counts[key] = self._requests.labels(route, method, str(status))
            self._timers.setdefault(route, self._durations.labels(route))
        self._counts[key].inc()
        self._timers[route].observe(seconds)

    def observe_refusal(self, reason: str) -> None:
        """Counts a request that was refused before its route.

        Args:
            reason: the code of the refusal; one that is none of `REFUSALS` counts as "other".
        """
        self._refusals.labels(reason if reason in REFUSALS else "other").inc()


disable_created_metrics()

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class ConnectionCollector(Collector):
    """Reads what the server has counted; all reasons stand there from the start, so that a first one is a rise."""

    def __init__(self, refused: RefusedConnections) -> None:
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Yields the family of this moment."""
        counts: dict[Labels, float] = {(reason,): self._refused[reason] for reason in REASONS}
        yield build_counters("meshwright_http_connections_refused_total", ("reason",), counts)

    def describe(self) -> list[Metric]:
        """Returns nothing, as the others."""
        return []


class AgentCollector(Collector):
    """Reads the agent's memory at scrape time; asks no child and no driver."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """Yields the families of this moment."""
        agent = self._agent
        yield build_gauge("meshwright_ready", 1.0 if agent.readiness()[0] else 0.0)
        yield from self._collect_health()
        yield build_one_hot("meshwright_worker_state", ("state",), {(): agent.device.state}, WORKER_STATES)
        yield build_gauge("meshwright_runs_queued", agent.runs.queued_count)
        yield build_gauge("meshwright_runs_running", len(agent.runs.running))
        counts: dict[Labels, float] = {(status,): agent.compiles.counts[status] for status in COMPILE_STATUSES}
        yield build_counters("meshwright_compiles_total", ("status",), counts)
        yield from self._collect_devices()
        yield from self._collect_bench()

    def describe(self) -> list[Metric]:
        """Returns nothing: the families depend on what is here."""
        return []

    def _collect_health(self) -> Iterator[Metric]:
        now = self._agent.clock.now()
        components = self._agent.board.view(now).components
        states: dict[Labels, str] = {(part.name,): part.state for part in components}
        yield build_one_hot("meshwright_component_health", ("component", "state"), states, HEALTH_STATES)
        since = build_gauges("meshwright_component_since_timestamp_seconds", ("component",))
        for part in components:
            if part.since is not None:
                since.add_metric([part.name], part.since.timestamp())
        yield since

    def _collect_devices(self) -> Iterator[Metric]:
        try:
            devices = self._agent.picture.devices().devices
        except ProblemError:
            return
        if len(devices) > MOST_LISTED:
            return
        info = build_gauges("meshwright_device_info", _DEVICE_LABELS)
        capacity = build_gauges("meshwright_device_memory_capacity_bytes", _DEVICE_LABELS)
        used = build_gauges("meshwright_device_memory_used_bytes", _DEVICE_LABELS)
        unknown = self._list_unknown()
        for device in devices:
            labels = _labels_of(device)
            info.add_metric(labels, 1)
            if device.memory and device.memory.capacity_bytes is not None:
                capacity.add_metric(labels, device.memory.capacity_bytes)
            if device.memory and device.memory.used_bytes is not None and not _is_out_of_sight(device, unknown):
                used.add_metric(labels, device.memory.used_bytes)
        yield from (info, capacity, used)

    def _list_unknown(self) -> frozenset[str]:
        board, now = self._agent.board, self._agent.clock.now()
        return frozenset(name for name in board.names() if board.state(name, now) == "unknown")

    def _collect_bench(self) -> Iterator[Metric]:
        names = ("case", "axis", "axis_size", "size_bytes", "dtype", "devices")
        bandwidth = build_gauges("meshwright_bench_bus_bandwidth_bytes_per_second", names)
        flops = build_gauges("meshwright_bench_flops_per_second", names)
        age = build_gauges("meshwright_bench_age_seconds", names)
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
    """Tells whether what is known of how a device is used is of the past: nobody sees it, or its driver is silent.

    A fault makes a device unhealthy also while its driver is silent, so the driver is asked for as well.
    """
    is_passive = device.memory is not None and device.memory.basis == "passive"
    return name_component(device) in unknown or (is_passive and DRIVER in unknown)


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
    """Returns sysfs' address "0000:1b:00.0" as NVML writes it: "00000000:1B:00.0"."""
    domain, colon, place = address.partition(":")
    return f"{domain:0>8}{colon}{place}".upper() if colon else address


def _name_card(device: Device) -> str:
    """Returns "nvidia0" of the card that nvidia-smi calls 0, as dcgm-exporter does: no device file's number."""
    index = device.attributes.get("index", device.attributes.get("parentIndex"))
    return "" if device.platform != "gpu" or index is None else f"nvidia{index}"


class _Family(Collector):
    """One family as what `generate_latest` takes."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """Yields it."""
        yield self._family


async def expose(registry: CollectorRegistry) -> bytes:
    """Returns the text of all families; who else waits for the event loop comes in between.

    A host of 64 devices has 3,000 samples, and a sample takes some 6 us.
    """
    parts, began_s = [], time.perf_counter()
    for family in registry.collect():
        parts.append(generate_latest(_Family(family)))
        if time.perf_counter() - began_s >= TURN_S:
            await asyncio.sleep(0)
            began_s = time.perf_counter()
    return b"".join(parts)


async def read_metrics(request: Request) -> Response:
    """Prometheus text exposition."""
    meters: Meters = request.app.state.meters
    return Response(await expose(meters.registry), media_type=CONTENT_TYPE)


PLAIN_ROUTES = (
    PlainRoute(
        "/metrics",
        read_metrics,
        tags=["metrics"],
        summary="Prometheus metrics",
        response_class=PlainTextResponse,
        responses={200: {"description": "text exposition", "content": {"text/plain": {"schema": {"type": "string"}}}}},
    ),
)
