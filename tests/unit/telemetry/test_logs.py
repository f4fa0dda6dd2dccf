"""The log: what a line says, that no record can break it, and that nobody waits for stderr."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.telemetry.logs import ACCESS, JsonFormatter, LineLog, TextFormatter, log_access
from meshwright_agent.telemetry.request_id import REQUEST_ID

LIMIT_S = 30.0


class Hostile:
    """Text cannot be made of it."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


def build_record(message: str = "hello %s", *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("a.b").makeRecord("a.b", logging.WARNING, "f.py", 1, message, args, None, extra=extra)


def read_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    value: dict[str, Any] = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return value


def wait_until(question: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not question():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.fixture
def asked() -> Iterator[str]:
    token = REQUEST_ID.set("id-7")
    yield "id-7"
    REQUEST_ID.reset(token)


# ---- lines ----------------------------------------------------------------------------------------------------------


def test_a_json_line_has_its_fields_and_those_of_its_author(asked: str) -> None:
    record = build_record("took %d s", 3, generation=4, path=None)
    seen = read_json(record)
    assert datetime.fromisoformat(seen.pop("time")).timestamp() == pytest.approx(record.created, abs=1e-5)
    assert seen == {
        "level": "warning",
        "logger": "a.b",
        "message": "took 3 s",
        "request_id": asked,
        "generation": 4,
        "path": None,
    }


def test_the_message_is_not_told_again_in_the_colours_of_a_terminal() -> None:
    """As uvicorn logs: uvicorn/server.py and config.py give each message a second time, for their own formatter."""
    assert "color_message" not in read_json(build_record("ready on %d", 80, color_message="ready on \x1b[1m%d\x1b[0m"))


def test_outside_of_requests_there_is_no_request_id() -> None:
    assert "request_id" not in read_json(build_record("x"))
    assert TextFormatter().format(build_record("x")).endswith("Z WARNING a.b: x")


def test_a_text_line_names_the_request(asked: str) -> None:
    assert TextFormatter().format(build_record("x")).endswith(f" WARNING a.b [{asked}]: x")


def test_an_exception_is_text_in_the_line_or_below_it() -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        record = build_record("failed")
        record.exc_info = (KeyError, error, error.__traceback__)
    exception = read_json(record)["exception"]
    assert exception.startswith("Traceback (most recent call last)")
    assert exception.endswith("KeyError: 'gone'")
    assert TextFormatter().format(record).splitlines()[-1] == "KeyError: 'gone'"


def test_what_an_author_adds_does_not_take_the_place_of_our_own_fields() -> None:
    seen = read_json(build_record("x", level="mine", time="never"))
    assert (seen["level"], seen["extra_level"], seen["extra_time"]) == ("warning", "mine", "never")


CIRCLE: list[object] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value", [Hostile(), {1, 2}, float("nan"), {("a", 1): 2}, CIRCLE, b"\xff", object, "\ud800", {"x": Hostile()}]
)
def test_what_json_cannot_say_is_described_and_the_rest_stands(value: object) -> None:
    seen = read_json(build_record("x", strange=value, sound=1))
    assert seen["message"] == "x"
    assert "strange" in seen
    assert seen["sound"] in {1, "1"}


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_arguments_that_do_not_fit_are_shown_and_not_raised(formatter: logging.Formatter) -> None:
    line = formatter.format(build_record("%d of %d", "many"))
    assert "%d of %d" in line
    assert "many" in line
    assert "Hostile" in formatter.format(build_record("%s", Hostile()))


ANY = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=8,
)


@given(message=st.text(st.characters()), values=st.dictionaries(st.text(min_size=1), ANY, max_size=4))
def test_every_record_is_one_line_of_json(message: str, values: dict[str, Any]) -> None:
    record = build_record("%s", message)
    vars(record).update({name: value for name, value in values.items() if name not in vars(record)})
    written: list[bytes] = []
    log = LineLog(JsonFormatter(), write=written.append)
    log.emit(record)
    log.close()
    (line,) = written
    assert line.count(b"\n") == 1
    json.loads(line)


# ---- stderr ---------------------------------------------------------------------------------------------------------


def test_lines_are_written_in_order_and_all_of_them_before_the_end() -> None:
    written: list[bytes] = []
    log = LineLog(TextFormatter(), write=written.append)
    for number in range(1000):
        log.emit(build_record("line %d", number))
    log.close()
    log.close()
    assert [line.rsplit(b" ", 1)[1] for line in written] == [b"%d\n" % n for n in range(1000)]
    assert log.dropped_count == 0


def test_while_stderr_takes_nothing_nobody_waits_and_what_was_dropped_is_told() -> None:
    taken, written = threading.Event(), []

    def write(data: bytes) -> None:
        taken.wait(LIMIT_S)
        written.append(data)

    log = LineLog(TextFormatter(), write=write, most=10)
    try:
        began_s = time.monotonic()
        for number in range(1000):
            log.emit(build_record("line %d", number))
        assert time.monotonic() - began_s < LIMIT_S / 2
        assert 1000 - 11 <= log.dropped_count <= 1000 - 10
        dropped_count = log.dropped_count
        taken.set()
        wait_until(lambda: any(f"{dropped_count} lines of the log were dropped".encode() in line for line in written))
        log.emit(build_record("after"))
        wait_until(lambda: written[-1].endswith(b"after\n"))
        assert sum(b"were dropped" in line for line in written) == 1
    finally:
        log.close()


def test_a_pipe_that_is_full_does_not_hold_up_the_end() -> None:
    read_end, write_end = os.pipe()

    def write(data: bytes) -> None:
        os.write(write_end, data)

    log = LineLog(TextFormatter(), write=write)
    log.emit(build_record("x" * (1 << 20)))
    began_s = time.monotonic()
    log.close()
    assert time.monotonic() - began_s < LIMIT_S
    os.close(read_end)  # the thread gets EPIPE, and goes
    log._thread.join(LIMIT_S)
    assert not log._thread.is_alive()
    os.close(write_end)


def test_a_reader_that_is_gone_costs_the_lines_alone() -> None:
    def write(data: bytes) -> None:
        raise BrokenPipeError

    log = LineLog(TextFormatter(), write=write)
    for _ in range(3):
        log.emit(build_record("x"))
    log.close()
    assert log.dropped_count == 3


def test_an_answered_request_is_told_by_its_template(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", ACCESS)
    log_access("/runs/{run_id}", "GET", 404, 0.00123456)
    (record,) = caplog.records
    assert record.getMessage() == "GET /runs/{run_id} 404 in 0.001235 s"
    seen = read_json(record)
    assert (seen["route"], seen["method"], seen["status"], seen["duration_s"]) == (
        "/runs/{run_id}",
        "GET",
        404,
        0.001235,
    )
