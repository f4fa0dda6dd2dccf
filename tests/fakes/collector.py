"""An OpenTelemetry collector on loopback: takes OTLP over HTTP as the specification says, and keeps the spans.

It validates what it gets: path, media type, and a protobuf that parses as the published messages; anything else is
refused and noted. Source: opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """What has come in.

    Attributes:
        url: where to send.
        resource: the newest sender, as its attributes.
        refused: what was no OTLP.
    """

    def __init__(self) -> None:
        self.url = ""
        self.resource: dict[str, Any] = {}
        self.refused: list[str] = []
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        """Keeps the spans of an export."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            for part in request.resource_spans:
                self.resource = read_attributes(part.resource.attributes)
                self._spans += [span for scope in part.scope_spans for span in scope.spans]

    def spans(self, name: str = "") -> list[Span]:
        """Returns the spans of a name, or all, in the order in which they came."""
        with self._lock:
            return [span for span in self._spans if name in ("", span.name)]


def read_attributes(attributes: Any) -> dict[str, Any]:
    """Returns attributes as Python's values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@contextlib.contextmanager
def start_collector() -> Iterator[Collector]:
    """Yields a collector that listens on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if (self.path, self.headers["Content-Type"]) != ("/v1/traces", "application/x-protobuf"):
                collector.refused.append(f"{self.path} {self.headers['Content-Type']}")
                self.send_error(400)
                return
            collector.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
