"""Spans of a living agent, taken by a collector that parses the protobuf."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.collector import Collector, read_attributes, start_collector

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
SERVER, ERROR = 2, 2
"""Of the enumerations SpanKind and StatusCode in opentelemetry/proto/trace/v1/trace.proto."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with start_collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced(collector: Collector) -> Iterator[RunningAgent]:
    with start_agent(cpu_devices=1, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **FAST) as agent:
        yield agent


def test_a_request_is_a_span_of_its_route_beneath_the_callers(traced: RunningAgent, collector: Collector) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    httpx.get(f"{traced.url}/runs/run-0000000000", headers=headers)
    wait_for(lambda: collector.spans("GET /runs/{run_id}"), traced)
    (span,) = collector.spans("GET /runs/{run_id}")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (TRACE, PARENT, SERVER)
    seen = read_attributes(span.attributes)
    assert (seen["http.request.method"], seen["http.route"], seen["http.response.status_code"]) == (
        "GET",
        "/runs/{run_id}",
        404,
    )
    assert span.status.code != ERROR
    assert 0 <= span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert collector.refused == []


def test_probes_and_scrapes_have_no_span(traced: RunningAgent, collector: Collector) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/devices"):
        httpx.get(f"{traced.url}{path}")
    wait_for(lambda: collector.spans("GET /devices"), traced)
    assert {span.name for span in collector.spans() if span.kind == SERVER} >= {"GET /devices"}
    assert not [span.name for span in collector.spans() if span.name.endswith(("healthz", "readyz", "metrics"))]


@pytest.mark.exhaustive
def test_what_was_not_sent_yet_is_sent_before_the_end(collector: Collector) -> None:
    slow = {"OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_SERVICE_NAME": "named"}
    with start_agent(cpu_devices=1, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, **slow) as agent:
        httpx.get(f"{agent.url}/targets")
        assert agent.stop() == 0
    assert collector.spans("GET /targets")
    assert collector.resource["service.name"] == "named"


@pytest.mark.exhaustive
def test_a_collector_that_takes_nothing_holds_up_neither_answers_nor_the_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it listens, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with start_agent(cpu_devices=1, OTEL_EXPORTER_OTLP_ENDPOINT=url, **FAST) as agent:
            for _ in range(50):
                assert httpx.get(f"{agent.url}/targets").status_code == 200
            began_s = time.monotonic()
            assert agent.stop() == 0
            assert time.monotonic() - began_s < 30


def test_without_tracing_nothing_of_it_is_imported() -> None:
    with start_agent(cpu_devices=1, ready=False, PYTHONPROFILEIMPORTTIME="1") as agent:
        imported = {line.rpartition("|")[2].strip() for line in agent.log_text().splitlines() if "import time:" in line}
    assert "fastapi" in imported
    extra = ("opentelemetry.sdk", "opentelemetry.exporter", "requests")
    assert not {name for name in imported if name.startswith(extra)}
