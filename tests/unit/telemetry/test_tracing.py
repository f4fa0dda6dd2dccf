"""What is said in the log of where spans are sent, and under which name they are."""

from __future__ import annotations

import logging

import pytest

from meshwright_agent.telemetry.tracing import build_provider, hide_query


@pytest.mark.parametrize(
    ("said", "arguments", "told"),
    [
        ("Max retries exceeded with url: /v1/traces?key=s3cret (Caused by", (), "/v1/traces?... (Caused by"),
        (
            '%s://%s:%s "%s %s %s" %s %s',
            ("http", "c", 4318, "POST", "/t?key=s3cret", "HTTP/1.1", 200, 2),
            "/t?... HTTP",
        ),
        ("('http://c/t?a=b&key=s3cret')", (), "('http://c/t?...')"),
    ],
)
def test_a_key_in_the_collectors_address_is_not_told(said: str, arguments: tuple[object, ...], told: str) -> None:
    record = logging.LogRecord("urllib3.connectionpool", logging.DEBUG, "f.py", 1, said, arguments, None)
    assert hide_query(record)
    assert told in record.getMessage()
    assert "s3cret" not in record.getMessage()


def test_other_words_stay_as_they_are() -> None:
    record = logging.LogRecord("a", logging.DEBUG, "f.py", 1, "%d spans? 50%% went", (3,), None)
    assert hide_query(record)
    assert record.getMessage() == "3 spans? 50% went"


@pytest.mark.parametrize(
    ("variables", "name", "version"),
    [
        ({}, "meshwright-agent", "1.2"),
        ({"OTEL_SERVICE_NAME": "a"}, "a", "1.2"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b,service.version=9"}, "b", "9"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=b,k8s.node.name=n", "OTEL_SERVICE_NAME": "a"}, "a", "1.2"),
    ],
)
def test_the_service_is_named_by_opentelemetrys_variables_and_by_us_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str, version: str
) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    provider = build_provider("1.2")
    try:
        attributes = provider.resource.attributes
        assert (attributes["service.name"], attributes["service.version"]) == (name, version)
        assert ("k8s.node.name" in attributes) == ("k8s" in variables.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    finally:
        provider.shutdown()
