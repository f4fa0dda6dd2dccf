"""/metrics of a real agent after real traffic: every family of the table is there, or has nothing to say here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.agents import RunningAgent, wait_for
from tests.contract.openapi import SNAPSHOT
from tests.deploy.promql import run_promtool
from tests.documents import Document

SMALL = {"cases": ["all_reduce", "matmul"], "sizes_bytes": [4096], "matmul_size": 64, "samples": 3}
UNKNOWN_ON_CPU = {"meshwright_device_memory_used_bytes"}
"""A virtual CPU device has no memory of its own, so the memory in use is unknown."""
CHILDREN = {"device", "preflight", "probe", "planner", "large_planner"}
PAGES = {"/openapi.json", "/", "/docs", *(f"/web/{name}" for name in ("dom.js", "page.js", "docs.js", "style.css"))}
ROWS = Document.read("docs/reference/metrics.md").table("Metrics")
METRICS = {row[0]: row[3] for row in ROWS}


@pytest.fixture(scope="module")
def http(agent: RunningAgent) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=agent.url, timeout=60) as client:
        assert client.post("/devices/release").json()["released"]  # first, so that the bench leaves a worker to others
        run_id = client.post("/placement/bench", json=SMALL).json()["id"]
        wait_for(lambda: client.get(f"/runs/{run_id}").json()["state"] == "succeeded", agent)
        for path in ("/healthz", "/devices", "/runs", "/placement/bench", "/nowhere", "/docs"):
            client.get(path)
        client.post("/mesh/plan", json={"mesh": "dp:-1"})
        yield client


@pytest.fixture(scope="module")
def families(http: httpx.Client) -> dict[str, Metric]:
    found = text_string_to_metric_families(http.get("/metrics").text)
    return {f"{family.name}_total" if family.type == "counter" else family.name: family for family in found}


def _samples(family: Metric) -> list[tuple[dict[str, Any], float]]:
    return [(sample.labels, sample.value) for sample in family.samples]


def test_every_metric_of_the_table_is_exposed_and_has_samples_where_anything_is_known(
    families: dict[str, Metric],
) -> None:
    assert {name for name in families if name.startswith("meshwright_")} == set(METRICS)
    silent = {name for name in METRICS if not families[name].samples}
    assert silent == UNKNOWN_ON_CPU
    assert {name: families[name].documentation for name in METRICS} == METRICS
    for name, kind, labels, _ in ROWS:
        seen = {label for sample in families[name].samples for label in sample.labels} - {"le"}
        assert families[name].type == kind, name
        assert name in silent or seen == set(labels.replace(",", "").split()), name


def test_the_agents_own_process_is_measured_as_well(families: dict[str, Metric]) -> None:
    rss = _samples(families["process_resident_memory_bytes"])[0][1]
    assert 10e6 < rss < 1e9


def test_the_text_says_its_format(http: httpx.Client) -> None:
    assert http.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_routes_are_templates_of_the_contract_whatever_was_asked_for(families: dict[str, Metric]) -> None:
    routes = {labels["route"] for labels, _ in _samples(families["meshwright_http_requests_total"])}
    assert {"/devices", "/mesh/plan", "/runs/{run_id}", "/placement/bench", "unmatched"} <= routes
    assert routes <= {*json.loads(SNAPSHOT.read_text())["paths"], *PAGES, "unmatched"}


def test_a_request_is_counted_by_the_time_the_next_scrape_sees_it(http: httpx.Client) -> None:
    def count() -> float:
        found = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").text)}
        labels = {"route": "/healthz", "method": "GET", "status": "200"}
        return next(v for seen, v in _samples(found["meshwright_http_requests"]) if seen == labels)

    before = count()
    http.get("/healthz")
    assert count() == before + 1


def test_eight_devices_are_ready_and_healthy(families: dict[str, Metric]) -> None:
    assert _samples(families["meshwright_ready"]) == [({}, 1.0)]
    assert len(families["meshwright_device_info"].samples) == 8
    health = _samples(families["meshwright_component_health"])
    states = {labels["component"]: labels["state"] for labels, value in health if value == 1}
    assert {states[f"device:{index}"] for index in range(8)} == {"healthy"}


def test_what_was_measured_is_told_with_its_case_and_age(families: dict[str, Metric]) -> None:
    bandwidth = _samples(families["meshwright_bench_bus_bandwidth_bytes_per_second"])
    assert all(value > 0 for _, value in bandwidth)
    assert "all_reduce" in {labels["case"] for labels, _ in bandwidth}
    assert "matmul" in {labels["case"] for labels, _ in _samples(families["meshwright_bench_flops_per_second"])}
    ((_, started_s),) = _samples(families["process_start_time_seconds"])
    ages_s = [value for _, value in _samples(families["meshwright_bench_age_seconds"])]
    assert ages_s
    assert all(0 <= age_s < time.time() - started_s for age_s in ages_s)


def test_promtool_finds_nothing_but_the_name_that_dcgm_exporter_gave_a_label(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    assert 'modelName="' in text
    run_promtool("check", "metrics", input_text=text.replace("modelName=", "model_name="))


def test_what_happened_is_counted_by_child_run_and_release(families: dict[str, Metric]) -> None:
    crashes = {labels["child"]: value for labels, value in _samples(families["meshwright_child_crashes_total"])}
    assert crashes == dict.fromkeys(CHILDREN, 0)
    ended = families["meshwright_run_duration_seconds"].samples
    assert {("bench", "succeeded")} <= {(sample.labels["kind"], sample.labels["state"]) for sample in ended}


def test_a_histogram_counts_up_to_all_that_it_saw(families: dict[str, Metric]) -> None:
    for family in (family for family in families.values() if family.type == "histogram"):
        found: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for sample in family.samples:
            key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if sample.name.endswith("_bucket"):
                found.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_count"):
                assert found[key] == sorted(found[key])
                assert found[key][-1] == sample.value


def test_no_series_is_told_twice(families: dict[str, Metric]) -> None:
    for family in families.values():
        series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(series) == len(set(series)), family.name
