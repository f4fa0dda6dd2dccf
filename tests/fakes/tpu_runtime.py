"""A fake of libtpu's metrics service: a real gRPC server on loopback, which answers from a recorded document.

Its messages are made by protobuf itself from the recorded field numbers, so that what reads them is held to another's
encoding. `check_against_record` holds service, method and messages of the reader to the same record.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.fakes.machines import RECORDED

FOLDER: Final = RECORDED / "tpu-runtime-metrics"
RECORD: Final = json.loads((FOLDER / "messages.json").read_text())
Values = Mapping[str, Sequence[float]]

_TYPES: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "double": descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
}


def _build_messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="recorded_tpu_metric_service.proto", package=RECORD["package"], syntax="proto3"
    )
    for name, fields in RECORD["messages"].items():
        message = file.message_type.add(name=name)
        if name in RECORD["oneofs"]:
            message.oneof_decl.add(name=RECORD["oneofs"][name])
        for field, (number, words) in fields.items():
            _add_field(message, field, number, words, in_oneof=name in RECORD["oneofs"])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{RECORD['package']}.{name}"))
        for name in RECORD["messages"]
    }


def _add_field(message: Any, name: str, number: int, words: str, *, in_oneof: bool) -> None:
    *repeated, kind = words.split()
    added = message.field.add(name=name, number=number)
    added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
    if kind in _TYPES:
        added.type = _TYPES[kind]
    else:
        added.type, added.type_name = added.TYPE_MESSAGE, f".{RECORD['package']}.{kind}"
    if in_oneof:
        added.oneof_index = 0


MESSAGES: Final = _build_messages()


def read_values(name: str) -> dict[str, list[float]]:
    """Returns the recorded values of a slice, by metric."""
    values: dict[str, list[float]] = json.loads((FOLDER / f"{name}.json").read_text())
    return values


def build_response(metric: str, values: Sequence[float]) -> bytes:
    """Returns what libtpu answers of a metric: whole numbers of bytes, percentages with a point."""
    response = MESSAGES["MetricResponse"]()
    response.metric.name = metric
    for device, value in enumerate(values):
        one = response.metric.metrics.add()
        one.attribute.key = "device-id"
        one.attribute.value.int_attr = device
        setattr(one.gauge, "as_double" if isinstance(value, float) else "as_int", value)
    data: bytes = response.SerializeToString()
    return data


@contextlib.contextmanager
def serving(
    grpc: Any, values: Values, *, hangs: bool = False, port: int = 0, answer_bytes: bytes | None = None
) -> Iterator[int]:
    """Serves the values on a port of loopback, as tpu-info's server for tests does; yields the port.

    Args:
        grpc: the module.
        values: by metric, in the order of devices; one that is not there is NOT_FOUND.
        hangs: it takes a question and never answers.
        port: 0: a free one.
        answer_bytes: what it answers whatever it is asked, as another program on that port may.
    """
    end = threading.Event()

    def answer(request: bytes, context: Any) -> bytes:
        metric = MESSAGES["MetricRequest"].FromString(request).metric_name
        if hangs:
            end.wait(30)
        if answer_bytes is not None:
            return answer_bytes
        if metric not in values:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no metric {metric}")
        return build_response(metric, values[metric])

    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    method = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=bytes, response_serializer=bytes)
    service = f"{RECORD['package']}.{RECORD['service']}"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {RECORD["method"]: method}),))
    port = server.add_secure_port(f"localhost:{port}", grpc.local_server_credentials())
    server.start()
    try:
        yield port
    finally:
        end.set()
        server.stop(None).wait(10)


def check_against_record(method: str, request: bytes, metric: str) -> list[str]:
    """Returns where the reader's method and request differ from the record; nothing is what a test wants."""
    wanted = f"/{RECORD['package']}.{RECORD['service']}/{RECORD['method']}"
    told = MESSAGES["MetricRequest"].FromString(request).metric_name
    return [f"{ours!r} is not {theirs!r}" for ours, theirs in ((method, wanted), (told, metric)) if ours != theirs]
