"""What a running job's libtpu tells of its TPUs: memory in use, and how busy they are. Runs in the probe.

Rule: the job is asked, never the TPU; whoever does not answer in time costs nothing but these figures. The messages are
few and small, so they are read here field by field, and what is not known of them is passed over. gRPC is an argument.

Not told here: the health of ICI links. The service has no metric for it; libtpu's SDK has one, which speaks only in the
process that has the TPUs: see `worker.libtpu`.

Source: tpu-info (github.com/google/cloud-accelerator-diagnostics, tpu_info/): the service tpu.monitoring.runtime.
RuntimeMetricService and its messages in proto/tpu_metric_service.proto, the metrics' names and the port 8431 in
metrics.py, TPU_RUNTIME_METRICS_PORTS in README.md. Encoding: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import importlib
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from meshwright_agent.facts.runtimes import PortFault, TpuPort, TpuRuntime, TpuRuntimes
from meshwright_agent.facts.sysfs import parse_int

PORTS_VARIABLE: Final = "TPU_RUNTIME_METRICS_PORTS"
DEFAULT_PORT: Final = 8431
MOST_PORTS: Final = 16
MOST_DEVICES: Final = 256
"""Of one answer: whoever has the port may say what he likes, and what is said is kept and shown."""
LIMIT_S: Final = 1.0
"""For all ports and metrics together: a job that hangs must not keep the probe from what else it looks at."""
INSTALL: Final = "pip install 'meshwright[tpu-metrics]'"

METHOD: Final = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
TOTAL: Final = "tpu.runtime.hbm.memory.total.bytes"
USED: Final = "tpu.runtime.hbm.memory.usage.bytes"
DUTY: Final = "tpu.runtime.tensorcore.dutycycle.percent"

_FAULTS: Final[Mapping[str, PortFault]] = {"UNAVAILABLE": "unanswered", "DEADLINE_EXCEEDED": "late"}
"""By gRPC's status; any other is an answer, and a refusal. Source: grpc.io/docs/guides/status-codes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of a field."""


def find_grpc() -> Any:
    """Returns the module `grpc` (package grpcio); None where it is not installed."""
    try:
        return importlib.import_module("grpc")
    except ImportError:
        return None


def parse_ports(text: str | None) -> tuple[int, ...]:
    """Returns "8431,8432" as ports; the usual one where none is named, and without what is none."""
    ports = [parse_int(word) for word in (text or "").split(",")]
    known = [port for port in ports if port is not None and 0 < port < 65536]
    return tuple(dict.fromkeys(known))[:MOST_PORTS] or (DEFAULT_PORT,)


def read_runtimes(grpc: Any, ports: Sequence[int], *, limit_s: float = LIMIT_S) -> TpuRuntimes:
    """Returns what the jobs on these ports of this host tell of their TPUs.

    Args:
        grpc: the module, or what behaves like it; None: it is not installed.
        ports: each of one process.
        limit_s: for everything; a port that hangs has its share of it.
    """
    if grpc is None:
        return TpuRuntimes(unavailable=f"the package grpcio is not installed: {INSTALL}", unasked="no_package")
    began_s = time.monotonic()
    found: list[TpuRuntime] = []
    asked: list[TpuPort] = []
    for number, port in enumerate(ports, 1):
        told, fault, text = _ask_all(grpc, port, began_s + limit_s * number / len(ports))
        found += told
        asked.append(TpuPort(port, fault, text))
    found.sort(key=lambda one: one.device_id)
    unavailable = None if found else "; ".join(f"port {each.port}: {each.text}" for each in asked)
    return TpuRuntimes(tuple(found), unavailable, ports=tuple(asked))


def _ask_all(grpc: Any, port: int, until_s: float) -> tuple[list[TpuRuntime], PortFault | None, str]:
    """Returns the devices that one process tells of; else what is wrong with its answers, and in which words."""
    try:
        found = _join({name: _ask(grpc, port, name, until_s) for name in (USED, TOTAL, DUTY)}, port)
        if len(found) > MOST_DEVICES:
            raise ValueError(f"{len(found)} devices, where a host has some")
    except grpc.RpcError as error:
        code = str(error.code().name)
        return [], _FAULTS.get(code, "refused"), code
    except ValueError as error:
        return [], "garbled", f"no such message: {error}"
    return (found, None, "") if found else ([], "empty", "the job tells of no device")


def _ask(grpc: Any, port: int, metric: str, until_s: float) -> Mapping[int, float]:
    """Returns what one process tells of one metric, by device.

    Raises:
        grpc.RpcError: it does not answer, or not in time. ValueError: what it answers is no such message.
    """
    credentials = grpc.local_channel_credentials()
    with grpc.secure_channel(f"localhost:{port}", credentials, options=(("grpc.enable_http_proxy", 0),)) as channel:
        call = channel.unary_unary(METHOD, request_serializer=format_request, response_deserializer=bytes)
        return parse_response(call(metric, timeout=max(0.01, until_s - time.monotonic())))


def _join(values: Mapping[str, Mapping[int, float]], port: int) -> list[TpuRuntime]:
    """Returns the devices that have a memory. A duty cycle is of a chip: of two where there are half as many."""
    used, total, duty = values[USED], values[TOTAL], values[DUTY]
    ids = sorted({*used, *total})
    per_chip = len(ids) // len(duty) if duty and len(ids) % len(duty) == 0 else 0
    chips = [duty[key] for key in sorted(duty)]
    return [
        TpuRuntime(
            device_id=device,
            used_bytes=_to_bytes(used.get(device)),
            total_bytes=_to_bytes(total.get(device)),
            duty_ratio=_to_ratio(chips[place // per_chip]) if per_chip else None,
            port=port,
        )
        for place, device in enumerate(ids)
    ]


def _to_bytes(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 1 << 60 else None


def _to_ratio(percent: float) -> float | None:
    return percent / 100 if 0 <= percent <= 100 else None


# ---- messages -------------------------------------------------------------------------------------------------------


def format_request(metric: str) -> bytes:
    """Returns a MetricRequest: field 1 is the metric's name, shorter than 128 bytes."""
    name = metric.encode()
    return bytes((1 << 3 | _BYTES, len(name))) + name


def parse_response(data: bytes) -> dict[int, float]:
    """Returns what a MetricResponse tells, by device: the gauges of those metrics that name a device by a number.

    MetricResponse.metric (1) → TPUMetric.metrics (3) → Metric.attribute (1), .gauge (3); Attribute.value (2) →
    AttrValue.int_attr (3); Gauge.as_double (1), .as_int (2). A field that has its type's zero is not sent.

    Raises:
        ValueError: it is not in protobuf's encoding.
    """
    found: dict[int, float] = {}
    for metric in _find(_find_one(data, 1), 3):
        gauge = _find_one(metric, 3, default=None)
        if gauge is not None:
            found[_read_device(metric)] = _read_gauge(gauge)
    return found


def _read_device(metric: bytes) -> int:
    value = _find_one(_find_one(metric, 1), 2)
    return next((_to_signed(number) for field, kind, number in _split(value) if (field, kind) == (3, _VARINT)), 0)


def _read_gauge(gauge: bytes) -> float:
    for field, kind, value in _split(gauge):
        if (field, kind) == (1, _FIXED64):
            number = float(struct.unpack("<d", value)[0])
            if number != number or abs(number) == float("inf"):
                raise ValueError("a gauge that is no number")
            return number
        if (field, kind) == (2, _VARINT):
            return _to_signed(value)
    return 0.0


def _find(data: bytes, wanted: int) -> list[bytes]:
    return [value for field, kind, value in _split(data) if (field, kind) == (wanted, _BYTES)]


def _find_one(data: bytes, wanted: int, default: Any = b"") -> Any:
    """Returns the last message of a number, as protobuf has it for one that is not repeated."""
    return (_find(data, wanted) or [default])[-1]


def _to_signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _split(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yields (number, wire type, value) of each field of a message.

    Raises:
        ValueError: the message is cut off, or has a wire type that is none.
    """
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _read_varint(data, place)
            yield key >> 3, kind, value
            continue
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of wire type {kind}, which is none")
        if place + size > len(data):
            raise ValueError(f"a field of {size} bytes where {len(data) - place} are left")
        yield key >> 3, kind, data[place : place + size]
        place += size


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = 0
    for count, byte in enumerate(data[place : place + 10]):
        number |= (byte & 0x7F) << 7 * count
        if not byte & 0x80:
            return number & (1 << 64) - 1, place + count + 1
    raise ValueError("a number that does not end")
