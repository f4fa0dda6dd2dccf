"""What a running job tells of its TPUs: messages that protobuf made, a real gRPC server, one that hangs, none."""

from __future__ import annotations

import socket
import struct
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.wire.devices import Devices
from meshwright_agent.facts.model import build_json, parse_host_facts
from meshwright_agent.facts.read import read_host_facts
from meshwright_agent.facts.runtimes import TpuPort, TpuRuntime, TpuRuntimes
from meshwright_agent.facts.tpu_metrics import (
    DUTY,
    METHOD,
    MOST_DEVICES,
    TOTAL,
    USED,
    format_request,
    parse_ports,
    parse_response,
    read_runtimes,
)
from meshwright_agent.view import build_devices
from tests.fakes.machines import NOW, READ_AT, WORKER, Machine, plant_machine
from tests.fakes.tpu_runtime import MESSAGES, build_response, check_against_record, read_values, serving


@pytest.fixture(scope="module")
def grpc() -> Any:
    return pytest.importorskip("grpc", reason="needs the extra tpu-metrics")


def find_free_port() -> int:
    with socket.create_server(("localhost", 0)) as listener:
        return int(listener.getsockname()[1])


# ---- messages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [USED, TOTAL, DUTY])
def test_the_question_is_that_of_the_recorded_service(metric: str) -> None:
    assert check_against_record(METHOD, format_request(metric), metric) == []
    assert metric in read_values("v3-8")


@given(st.lists(st.integers(0, 1 << 48) | st.floats(0, 100), max_size=20))
def test_what_protobuf_writes_is_read_as_it_was_meant(values: list[float]) -> None:
    assert parse_response(build_response(USED, values)) == dict(enumerate(values))


def test_what_is_not_known_of_a_message_is_passed_over() -> None:
    extra = struct.pack("<BBd", 2 << 3 | 2, 8, 1.0) + bytes((15 << 3 | 5, 1, 2, 3, 4))
    assert parse_response(build_response(USED, [7]) + extra) == {0: 7}


def test_a_metric_that_is_no_gauge_tells_nothing() -> None:
    response = MESSAGES["MetricResponse"]()
    response.metric.metrics.add().attribute.value.int_attr = 3
    assert parse_response(response.SerializeToString()) == {}


@given(st.binary(max_size=200))
def test_no_bytes_stop_the_reader_but_with_its_own_error(data: bytes) -> None:
    try:
        parse_response(data)
    except ValueError:
        return


@pytest.mark.parametrize("size", range(1, 12))
def test_a_message_that_is_cut_off_is_no_shorter_one(size: int) -> None:
    with pytest.raises(ValueError, match=r"left|end"):
        parse_response(build_response(USED, [1, 2])[:-size])


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        (None, (8431,)),
        ("", (8431,)),
        ("8431,8432,8433", (8431, 8432, 8433)),
        ("9000, 9000", (9000,)),
        ("0,70000,x", (8431,)),
    ],
)
def test_the_ports_are_those_that_are_named_or_the_usual_one(text: str | None, ports: tuple[int, ...]) -> None:
    assert parse_ports(text) == ports


# ---- the service ----------------------------------------------------------------------------------------------------


def test_each_device_has_its_memory_and_its_duty_cycle(grpc: Any) -> None:
    values = read_values("v5litepod-8")
    with serving(grpc, values) as port:
        told = read_runtimes(grpc, [port], limit_s=10.0)
    assert told.unavailable is None
    assert [one.used_bytes for one in told.devices] == values[USED]
    assert [one.total_bytes for one in told.devices] == values[TOTAL]
    assert [one.duty_ratio for one in told.devices] == [percent / 100 for percent in values[DUTY]]


def test_where_a_chip_is_two_devices_its_duty_cycle_is_that_of_both(grpc: Any) -> None:
    with serving(grpc, read_values("v3-8")) as port:
        told = read_runtimes(grpc, [port], limit_s=10.0)
    assert [one.duty_ratio for one in told.devices] == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_a_job_that_hangs_takes_no_more_than_the_limit(grpc: Any) -> None:
    with serving(grpc, {}, hangs=True) as port:
        began_s = time.monotonic()
        told = read_runtimes(grpc, [port, port], limit_s=0.3)
        assert time.monotonic() - began_s < 3.0
    assert told.devices == ()
    assert "DEADLINE_EXCEEDED" in (told.unavailable or "")


def test_a_port_on_which_nobody_answers_is_told_and_costs_the_others_nothing(grpc: Any) -> None:
    nobody = find_free_port()
    with serving(grpc, read_values("v3-8")) as port:
        assert len(read_runtimes(grpc, [nobody, port], limit_s=10.0).devices) == 8
    told = read_runtimes(grpc, [nobody], limit_s=2.0)
    assert f"port {nobody}: " in (told.unavailable or "")


def test_a_job_that_hangs_leaves_the_next_its_time(grpc: Any) -> None:
    with serving(grpc, {}, hangs=True) as stuck, serving(grpc, read_values("v3-8")) as port:
        assert len(read_runtimes(grpc, [stuck, port], limit_s=4.0).devices) == 8


def test_a_service_without_these_metrics_says_so(grpc: Any) -> None:
    with serving(grpc, {}) as port:
        assert "NOT_FOUND" in (read_runtimes(grpc, [port], limit_s=10.0).unavailable or "")


@pytest.mark.parametrize(
    ("values", "answer_bytes", "hangs", "fault", "words"),
    [
        ({}, None, False, "refused", "NOT_FOUND"),
        ({}, None, True, "late", "DEADLINE_EXCEEDED"),
        ({}, b"\x0a\xffno message", False, "garbled", "no such message"),
        ({}, build_response(USED, [1] * (MOST_DEVICES + 1)), False, "garbled", "257 devices"),
        ({USED: [], TOTAL: [], DUTY: []}, None, False, "empty", "tells of no device"),
    ],
)
def test_what_is_wrong_with_an_answer_is_told_of_its_port(
    grpc: Any, values: dict[str, list[float]], answer_bytes: bytes | None, hangs: bool, fault: str, words: str
) -> None:
    with serving(grpc, values, hangs=hangs, answer_bytes=answer_bytes) as port:
        told = read_runtimes(grpc, [port], limit_s=1.0 if hangs else 10.0)
    (asked,) = told.ports
    assert (asked.port, asked.fault, told.devices) == (port, fault, ())
    assert words in asked.text
    assert told.unavailable == f"port {port}: {asked.text}"


def test_a_program_that_speaks_no_grpc_is_no_answer(grpc: Any) -> None:
    def refuse(listener: socket.socket) -> None:
        with listener.accept()[0] as caller:
            caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("localhost", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        (asked,) = read_runtimes(grpc, [int(listener.getsockname()[1])], limit_s=2.0).ports
        thread.join(10)
    assert asked.fault in ("unanswered", "late")


def test_each_port_says_what_it_told_and_devices_know_theirs(grpc: Any) -> None:
    nobody = find_free_port()
    with serving(grpc, read_values("v3-8")) as one, serving(grpc, read_values("v5litepod-8")) as other:
        told = read_runtimes(grpc, [one, nobody, other], limit_s=10.0)
    assert [(asked.port, asked.fault) for asked in told.ports] == [(one, None), (nobody, "unanswered"), (other, None)]
    assert sorted(device.port or 0 for device in told.devices) == sorted([one] * 8 + [other] * 8)
    assert told.unavailable is None


@pytest.mark.parametrize(
    ("counts", "wanted", "selected"),
    [
        ((4, 4), {8}, 8),
        ((8, 8), {8}, 8),  # node aggregation: each tells of all
        ((1, 8), {8}, 8),
        ((3, 4), {8}, 0),
        ((), {8}, 0),
    ],
)
def test_answers_are_added_or_one_stands_for_all(counts: tuple[int, ...], wanted: set[int], selected: int) -> None:
    devices = tuple(TpuRuntime(device, port=port) for port, count in enumerate(counts) for device in range(count))
    told = TpuRuntimes(devices, ports=tuple(TpuPort(port) for port in range(len(counts))))
    assert len(told.select(wanted)) == selected


def test_without_grpc_it_is_said_what_to_install() -> None:
    assert "meshwright[tpu-metrics]" in (read_runtimes(None, [8431]).unavailable or "")


# ---- the facts and the view -----------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path: Path) -> Machine:
    return plant_machine("tpu-v5e-8", tmp_path)


def test_a_job_is_asked_only_where_one_holds_the_tpus_and_where_it_is_wanted(held: Machine, tmp_path: Path) -> None:
    assert read_host_facts(held.roots).tpu_runtimes is None
    assert read_host_facts(held.roots, asks_jobs=True).tpu_runtimes is not None
    free = plant_machine("tpu-v5p-4", tmp_path / "free")
    assert read_host_facts(free.roots, asks_jobs=True).tpu_runtimes is None


@pytest.mark.parametrize(("own", "theirs", "unasked"), [("7", "8", "elsewhere"), ("7", "7", None), ("7", "", None)])
def test_a_job_with_a_network_of_its_own_is_not_asked_and_one_whose_cannot_be_told_is(
    grpc: Any, held: Machine, own: str, theirs: str, unasked: str | None
) -> None:
    for process, number in (("901", own), ("3110", theirs)):
        if number:
            (held.roots.proc / process / "ns").mkdir()
            (held.roots.proc / process / "ns/net").symlink_to(f"net:[{number}]")
    told = read_host_facts(held.roots, asks_jobs=True).tpu_runtimes
    assert told is not None
    assert (told.unasked, bool(told.ports)) == (unasked, unasked is None)
    assert told.unavailable


def test_what_a_job_tells_goes_through_the_probes_json(grpc: Any, held: Machine) -> None:
    with serving(grpc, read_values("v5litepod-8")) as port:
        roots = replace(held.roots, environ={**held.roots.environ, "TPU_RUNTIME_METRICS_PORTS": str(port)})
        facts = read_host_facts(roots, asks_jobs=True)
    assert facts.tpu_runtimes is not None
    assert len(facts.tpu_runtimes.devices) == 8
    assert parse_host_facts(build_json(facts)) == facts


def view(held: Machine, told: TpuRuntimes) -> Devices:
    facts = replace(held.read(), tpu_runtimes=told)
    return build_devices(facts, READ_AT, None, WORKER, now=NOW, cpu_devices=None)


def test_devices_show_what_the_job_uses_with_its_evidence_and_age(held: Machine) -> None:
    told = tuple(TpuRuntime(place, used_bytes=100 + place, duty_ratio=place / 10) for place in range(8))
    devices = view(held, TpuRuntimes(told)).devices
    assert [device.memory and device.memory.used_bytes for device in devices] == list(range(100, 108))
    assert {(device.memory.basis, device.memory.age_s) for device in devices if device.memory} == {("passive", 30.0)}
    assert [device.attributes["tensorcoreDutyCyclePercent"] for device in devices] == list(range(0, 80, 10))


def test_devices_are_shown_once_where_several_ports_tell_of_all_of_them(held: Machine) -> None:
    told = tuple(TpuRuntime(place, used_bytes=place, port=port) for place in range(8) for port in (8431, 8432))
    devices = view(held, TpuRuntimes(told, ports=(TpuPort(8431), TpuPort(8432)))).devices
    assert [device.memory and device.memory.used_bytes for device in devices] == list(range(8))


def test_figures_of_another_number_of_devices_are_of_none(held: Machine) -> None:
    devices = view(held, TpuRuntimes((TpuRuntime(0, used_bytes=1),))).devices
    assert {device.memory and device.memory.used_bytes for device in devices} == {None}


def test_a_job_that_tells_nothing_is_a_notice_with_the_reason_and_no_fault(held: Machine) -> None:
    warnings = view(held, TpuRuntimes(unavailable="port 8431: UNAVAILABLE")).warnings
    (notice,) = [notice for notice in warnings if notice.code == "runtime_metrics_unavailable"]
    assert "UNAVAILABLE" in notice.message
    assert held.read().problems == ()
