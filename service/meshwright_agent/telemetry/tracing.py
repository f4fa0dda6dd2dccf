"""Spans by OpenTelemetry: of requests, runs and calls of children. Off unless asked for; then sent by OTLP over HTTP.

Rule: without tracing a span costs a look at one name, and neither the SDK nor an exporter is imported. Where to
send, how many and under which name is said by OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT,
OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES). Knows no route, no run and no child.

Source: opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables and …/protocol/exporter.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from meshwright.errors import MeshwrightError

PIP_LINE: Final = "pip install 'meshwright[otel]'"
STOP_WAIT_S: Final = 2.0
"""How long the end waits for the collector to take what is left."""

_TALKERS: Final = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "urllib3.connectionpool")
"""Who logs the collector's address: at each failure, and at level debug with each request."""
_QUERY: Final = re.compile(r"\?[^\s\"')]+")

Attribute = str | int | float | bool


def hide_query(record: logging.LogRecord) -> bool:
    """Takes queries of addresses out of a record of the log, since collectors take keys there; passes every record."""
    with contextlib.suppress(Exception):  # whoever logs never fails
        record.msg, record.args = _QUERY.sub("?...", record.getMessage()), ()
    return True


class TracingUnavailableError(MeshwrightError):
    """Tracing was asked for, and what it needs is not installed."""


class Span:
    """A span under way; of one that is not recorded nothing is kept."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def rename(self, name: str) -> None:
        """Gives it another name: of a request, its route is known only in the end."""
        if self._span is not None:
            self._span.update_name(name)

    def note(self, **attributes: Attribute) -> None:
        """Adds attributes; `__` in a name stands for a dot."""
        if self._span is not None:
            self._span.set_attributes({name.replace("__", "."): value for name, value in attributes.items()})

    def fail(self, reason: str) -> None:
        """Marks it as failed."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_status(StatusCode.ERROR, reason)


_NO_SPAN: Final = Span()


class Tracing:
    """The one tracer of this process; `TRACING` is it. Off until a `sending` block begins."""

    def __init__(self) -> None:
        self._tracer: Any = None

    @contextlib.contextmanager
    def sending(self, version: str) -> Iterator[None]:
        """Sends the spans of the block to the collector; in the end it waits `STOP_WAIT_S` for those that are left.

        Raises:
            TracingUnavailableError: the extra `otel` is not installed.
        """
        for name in _TALKERS:
            logging.getLogger(name).addFilter(hide_query)
        provider = build_provider(version)
        self._tracer = provider.get_tracer("meshwright_agent", version)
        try:
            yield
        finally:
            self._tracer = None
            ending = threading.Thread(target=provider.shutdown, name="meshwright-tracing-end", daemon=True)
            ending.start()
            ending.join(STOP_WAIT_S)

    @contextlib.contextmanager
    def span(
        self, name: str, *, kind: str = "INTERNAL", carrier: Mapping[str, str] | None = None, **attributes: Attribute
    ) -> Iterator[Span]:
        """Yields a span of the block, beneath the one that is current; an exception is noted on it and goes on.

        Args:
            name: a small number of them: routes and operations, no ids.
            kind: SERVER for requests that came in, else INTERNAL or CLIENT.
            carrier: headers of a request; their `traceparent`, if any, is what the span is beneath.
            attributes: `__` in a name stands for a dot.
        """
        if self._tracer is None:
            yield _NO_SPAN
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        above = None if carrier is None else extract(carrier)
        with self._tracer.start_as_current_span(name, above, SpanKind[kind]) as recorded:
            span = Span(recorded)
            span.note(**attributes)
            yield span


TRACING: Final = Tracing()


def build_provider(version: str) -> Any:
    """Returns what makes spans and sends them, under the name and version that OpenTelemetry's variables say, or ours.

    Raises:
        TracingUnavailableError: the extra `otel` is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        missing = error.name or "OpenTelemetry"
        message = f"MESHWRIGHT_TRACING is on, and {missing} is not installed; {PIP_LINE}, or turn it off"
        raise TracingUnavailableError(message) from error
    told = OTELResourceDetector().detect().attributes  # of the two variables; what is given to `create` would win
    ours = {"service.name": "meshwright-agent", "service.version": version}
    resource = Resource.create({name: value for name, value in ours.items() if name not in told})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
