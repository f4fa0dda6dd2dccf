"""What the agent did and how long it took, for /metrics: children, runs, releases, the store, connections.

Rule: reads what the parts have counted and the kernel's own accounts of our processes: no disk, no child, no driver.
What never happened is absent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from meshwright_agent.agent import Agent
from meshwright_agent.api.families import build_counter, build_counters, build_gauge, build_gauges, build_histogram
from meshwright_agent.supervisor.supervisor import Supervisor
from meshwright_agent.telemetry.durations import Labels

_CHILD: Final = ("child",)


class ActivityCollector(Collector):
    """Reads the counts of an agent's parts at scrape time."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def describe(self) -> list[Metric]:
        """Returns nothing: the families depend on what has happened."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the families of this moment."""
        yield from self._collect_children()
        yield from self._collect_work()
        yield from self._collect_history()
        yield from self._collect_store()
        if self._agent.count_connections is not None:
            yield build_gauge("meshwright_http_connections", self._agent.count_connections())

    def _collect_children(self) -> Iterator[Metric]:
        agent = self._agent
        children: dict[str, Supervisor] = {"device": agent.device, "probe": agent.probe, "planner": agent.planner}
        crashes: dict[Labels, float] = {(name,): float(child.crash_count) for name, child in children.items()}
        yield build_counters("meshwright_child_crashes_total", _CHILD, crashes)
        abandoned = build_gauges("meshwright_child_abandoned", _CHILD)
        for name, child in children.items():
            abandoned.add_metric([name], len(child.abandoned_pids))
        yield abandoned
        calls = [((name,), child.durations) for name, child in children.items()]
        yield build_histogram("meshwright_child_call_duration_seconds", (*_CHILD, "op", "outcome"), calls)

    def _collect_work(self) -> Iterator[Metric]:
        runs, releases = self._agent.runs, self._agent.releases
        yield build_gauge("meshwright_leases_active", len(self._agent.registry.active()))
        yield build_counters("meshwright_preemptions_total", ("what",), self._agent.leases.preempted)
        yield build_histogram("meshwright_release_duration_seconds", ("outcome",), [((), releases)])
        yield build_histogram("meshwright_run_duration_seconds", ("kind", "state"), [((), runs.durations)])

    def _collect_history(self) -> Iterator[Metric]:
        history = self._agent.history
        yield build_counters("meshwright_health_events_total", ("component", "kind"), history.counts)
        yield build_counter("meshwright_health_events_lost_total", history.lost_count)

    def _collect_store(self) -> Iterator[Metric]:
        store = self._agent.store
        yield build_counter("meshwright_store_failures_total", store.failure_count)
        yield build_histogram("meshwright_store_write_duration_seconds", ("outcome",), [((), store.writes)])
        size = build_gauges("meshwright_store_size_bytes", ())
        if store.size_bytes is not None:
            size.add_metric([], store.size_bytes)
        yield size
