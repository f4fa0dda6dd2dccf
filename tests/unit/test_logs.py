"""The log: what a line says, and that a stderr that is not read holds nothing up."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from meshwright_agent.logs import REQUEST_ID, JsonFormatter, TextFormatter


def build_record(message: str = "hello %s", *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("a.b").makeRecord("a.b", logging.WARNING, "f.py", 1, message, args, None, extra=extra)


def read_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    value: dict[str, Any] = json.loads(line)
    return value


@pytest.fixture
def asked() -> Iterator[str]:
    token = REQUEST_ID.set("id-7")
    yield "id-7"
    REQUEST_ID.reset(token)


def test_a_json_line_has_its_fields_and_those_of_its_author(asked: str) -> None:
    record = build_record("took %d s", 3, generation=4, color_message="\x1b[1m", level="mine", strange={1, 2}.union)
    seen = read_json(record)
    assert datetime.fromisoformat(seen.pop("time")).timestamp() == pytest.approx(record.created, abs=1e-5)
    assert "strange" in seen
    del seen["strange"]
    ours = {"level": "warning", "logger": "a.b", "message": "took 3 s", "request_id": asked}
    assert seen == {**ours, "generation": 4}


def test_a_text_line_names_the_request_where_there_is_one(asked: str) -> None:
    assert TextFormatter().format(build_record("x")).endswith(f"Z WARNING a.b [{asked}]: x")
    REQUEST_ID.set("")
    assert TextFormatter().format(build_record("x")).endswith("Z WARNING a.b: x")


def test_an_exception_is_text_in_the_line_or_below_it() -> None:
    try:
        raise KeyError("gone")
    except KeyError as error:
        record = build_record("failed")
        record.exc_info = (KeyError, error, error.__traceback__)
    exception = read_json(record)["exception"]
    assert exception.startswith("Traceback (most recent call last)")
    assert TextFormatter().format(record).splitlines()[-1] == "KeyError: 'gone'"


PROGRAM = """
import logging
from meshwright_agent.logs import logging_to_stderr
with logging_to_stderr("text", "info"):
    for number in range(30_000):
        logging.info("line %d %s", number, "x" * 100)
    logging.info("%d", "not a number")
print("done", flush=True)
"""


def test_all_lines_are_written_in_order_before_the_end() -> None:
    short = PROGRAM.replace("30_000", "100")
    ended = subprocess.run([sys.executable, "-c", short], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[4] for line in ended.stderr.splitlines()] == [str(number) for number in range(100)]
