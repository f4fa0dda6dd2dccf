"""Spans of a living agent, taken by a collector that parses the protobuf; and what an agent without the extra says."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.collector import Collector, read_attributes, start_collector
from tests.process.living import QUICK, await_end

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
FAST = {"MESHWRIGHT_TRACING": "true", "OTEL_BSP_SCHEDULE_DELAY": "100"}
SERVER, CLIENT, ERROR = 2, 3, 2
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
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "r-1"}
    httpx.get(f"{traced.url}/runs/run-0000000000", headers=headers)
    wait_for(lambda: collector.spans("GET /runs/{run_id}"), traced)
    (span,) = collector.spans("GET /runs/{run_id}")
    assert (span.trace_id.hex(), span.parent_span_id.hex(), span.kind) == (TRACE, PARENT, SERVER)
    assert read_attributes(span.attributes) == {
        "http.request.method": "GET",
        "http.route": "/runs/{run_id}",
        "http.response.status_code": 404,
        "meshwright.request_id": "r-1",
    }
    assert span.status.code != ERROR
    assert 0 <= span.end_time_unix_nano - span.start_time_unix_nano < 60e9
    assert collector.resource["service.name"] == "meshwright-agent"
    assert collector.refused == []


def test_a_bench_is_a_run_beneath_its_request_and_a_call_beneath_the_run(
    traced: RunningAgent, collector: Collector
) -> None:
    run = httpx.post(f"{traced.url}/placement/bench", json=QUICK).json()
    await_end(traced, run["id"])
    wait_for(lambda: collector.spans("run bench"), traced)
    (request,), (work,), (call,) = (
        collector.spans(name) for name in ("POST /placement/bench", "run bench", "device bench")
    )
    assert read_attributes(work.attributes) == {"meshwright.run_id": run["id"]}
    assert (work.trace_id, work.parent_span_id) == (request.trace_id, request.span_id)
    assert (call.trace_id, call.parent_span_id, call.kind) == (request.trace_id, work.span_id, CLIENT)
    assert read_attributes(call.attributes) == {"meshwright.generation": 1}
    assert work.start_time_unix_nano <= call.start_time_unix_nano <= call.end_time_unix_nano <= work.end_time_unix_nano


def test_routes_that_pass_the_framework_by_are_traced_and_probes_are_not(
    traced: RunningAgent, collector: Collector
) -> None:
    for path in ("/healthz", "/readyz", "/metrics", "/devices"):
        httpx.get(f"{traced.url}{path}")
    wait_for(lambda: collector.spans("GET /devices"), traced)
    assert {span.name for span in collector.spans() if span.kind == SERVER} >= {"GET /devices"}
    assert not [span.name for span in collector.spans() if span.name.endswith(("healthz", "readyz", "metrics"))]


@pytest.mark.exhaustive
def test_what_was_not_sent_yet_is_sent_before_the_end(collector: Collector) -> None:
    slow = {"MESHWRIGHT_TRACING": "true", "OTEL_BSP_SCHEDULE_DELAY": "3600000", "OTEL_SERVICE_NAME": "named"}
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


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_there", [True, False])
def test_a_key_in_the_collectors_address_stands_in_no_log(collector: Collector, is_there: bool) -> None:
    url = collector.url if is_there else "http://127.0.0.1:9"  # port 9, discard: nobody listens
    endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces?key=s3cret"}
    with start_agent(cpu_devices=1, MESHWRIGHT_LOG_LEVEL="debug", **endpoint, **FAST) as agent:
        wait_for(lambda: httpx.get(f"{agent.url}/targets") and "/v1/traces?..." in agent.log_text(), agent)
        agent.stop()
        assert "s3cret" not in agent.log_text()


def test_without_the_extra_the_agent_does_not_start_and_says_how_to_get_it(tmp_path: Path) -> None:
    name = "opentelemetry.exporter"  # a folder of its own, beside opentelemetry-api, which FastAPI needs
    (tmp_path / "opentelemetry" / "exporter").mkdir(parents=True)
    (tmp_path / "opentelemetry" / "exporter" / "__init__.py").write_text(
        f"raise ModuleNotFoundError(\"No module named '{name}'\", name='{name}')"
    )
    command = [sys.executable, "-m", "meshwright_agent", "serve", "--port", "0", "--state-dir", str(tmp_path)]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path), "MESHWRIGHT_TRACING": "true"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert f"{name} is not installed; pip install 'meshwright[otel]', or turn it off" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_tracing_nothing_of_it_is_imported() -> None:
    with start_agent(cpu_devices=1, ready=False, PYTHONPROFILEIMPORTTIME="1") as agent:
        imported = {line.rpartition("|")[2].strip() for line in agent.log_text().splitlines() if "import time:" in line}
    assert "fastapi" in imported
    extra = ("opentelemetry.sdk", "opentelemetry.exporter", "requests")
    assert not {name for name in imported if name.startswith(extra)}
