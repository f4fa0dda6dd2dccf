from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.cli import main
from meshwright.cli.check import (
    EXIT_CODES,
    NAGIOS_BYTES,
    NPD_BYTES,
    SLURM_BYTES,
    ExitStyle,
    Outcome,
    format_line,
    summarize,
)
from meshwright.cli.time_limit import TimeLimit
from meshwright.errors import AgentTimeoutError
from meshwright.testing import FakeAgent
from meshwright.wire.health import HARDWARE, Component, Health, State
from meshwright_agent.health.own import COMPONENTS as OF_ITSELF
from meshwright_agent.health.verdicts import COMPONENTS as OF_HOST
from meshwright_agent.host.simulation import SIMULATED
from tests.unit.cli.conftest import CommandLine
from tests.unit.client.sockets import Heard, answer, serve

STATES: tuple[State, ...] = get_args(State)
STYLES: tuple[ExitStyle, ...] = get_args(ExitStyle)
OF_AGENT = {"worker", "store", "disk", "access", "kernel_log"}
LOOKED_AT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def find_time(state: State, seconds: int = 0) -> datetime | None:
    """Returns when a component in this state was looked at."""
    return None if state == "initializing" else LOOKED_AT + timedelta(seconds=seconds)


def _build_health(state: Any, reason: str = "it broke") -> Health:
    parts = (
        Component(name="driver", state="healthy", observed_at=LOOKED_AT),
        Component(name="device:0", state=state, reason=reason, observed_at=find_time(state)),
    )
    return Health(state=state, components=parts)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("state", STATES)
def test_each_state_has_the_code_of_the_style(meshwright: CommandLine, style: ExitStyle, state: State) -> None:
    meshwright.fake.health = _build_health(state)
    assert meshwright("check", "--exit-style", style).code == EXIT_CODES[style][state]


@pytest.mark.parametrize("style", STYLES)
def test_no_answer_has_a_code_of_its_own_in_each_style(meshwright: CommandLine, style: ExitStyle) -> None:
    meshwright.fake.drop_next(kind="refused")
    printed = meshwright("check", "--exit-style", style)
    assert printed.code == EXIT_CODES[style]["no_answer"]
    assert ("no answer" in printed.out, printed.err.startswith("error:")) == (
        style != "verdict",
        style == "verdict",
    )


def test_the_table_is_what_the_four_worlds_expect() -> None:
    wanted: dict[ExitStyle, dict[int, set[Outcome]]] = {
        "verdict": {
            0: {"healthy", "degraded"},
            1: {"unhealthy", "unknown", "initializing"},
            2: {"no_answer"},
        },
        "nagios": {
            0: {"healthy"},
            1: {"degraded"},
            2: {"unhealthy"},
            3: {"unknown", "initializing", "no_answer"},
        },
        "npd": {0: {"healthy"}, 1: {"degraded", "unhealthy"}, 2: {"unknown", "initializing", "no_answer"}},
        "slurm": {0: {"healthy", "degraded"}, 1: {"unhealthy", "unknown"}, 2: {"initializing", "no_answer"}},
    }
    for style, codes in wanted.items():
        assert EXIT_CODES[style] == {state: code for code, states in codes.items() for state in states}


@pytest.mark.parametrize("style", STYLES)
def test_only_healthy_and_degraded_can_pass(style: ExitStyle) -> None:
    assert {state for state, code in EXIT_CODES[style].items() if code == 0} <= {"healthy", "degraded"}


def test_the_verdict_shows_each_part_with_reason_and_action(meshwright: CommandLine) -> None:
    part = Component(name="device:3", state="unhealthy", reason="no answer", action="reboot", age_s=90.0)
    meshwright.fake.health = Health(state="unhealthy", components=(part, Component(name="new", state="initializing")))
    out = meshwright("check").out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["device:3"] == ["unhealthy", "1.5", "min", "ago", "no", "answer", "reboot"]
    assert rows["new"] == ["initializing", "never"]
    assert rows["host"] == ["unhealthy"]


def test_nagios_gets_status_text_and_figures_on_one_line(meshwright: CommandLine) -> None:
    meshwright.fake.health = _build_health("unhealthy", "a | b\nc")
    figures = "initializing=0 healthy=1 degraded=0 unhealthy=1 unknown=0"
    out = meshwright("check", "--exit-style", "nagios").out
    assert out == f"MESHWRIGHT CRITICAL - device:0 unhealthy: a / b c | {figures}\n"


def test_nagios_gets_no_figures_when_nobody_counted(meshwright: CommandLine) -> None:
    meshwright.fake.drop_next(kind="refused")
    out = meshwright("check", "--exit-style", "nagios").out
    assert out.startswith("MESHWRIGHT UNKNOWN - no answer from http://fake-agent: ")
    assert "|" not in out


@pytest.mark.parametrize(
    ("name", "state", "driver", "seconds", "code", "words"),
    [
        ("device:0", "unhealthy", "healthy", 0, 1, "drain: device:0 unhealthy: it broke"),
        ("memory:0", "unknown", "healthy", 0, 1, "drain: memory:0 unknown: it broke"),
        ("device:0", "unknown", "degraded", 0, 1, "drain: device:0 unknown: it broke"),
        ("device:0", "unknown", "healthy", -300, 2, "unknown: device:0 unknown: it broke"),
        ("device:0", "unknown", "unknown", 0, 2, "unknown: 2 parts unknown: it broke, such as driver"),
        ("simulated", "unknown", "healthy", 0, 2, "unknown: simulated unknown: it broke"),
        ("device:0", "initializing", "healthy", 0, 2, "unknown: device:0 initializing: it broke"),
        ("device:0", "degraded", "healthy", 0, 0, "keep: device:0 degraded: it broke"),
    ],
)
def test_slurm_drains_for_what_is_broken_or_does_not_answer_and_keeps_nothing_that_was_not_looked_at(
    meshwright: CommandLine, name: str, state: State, driver: State, seconds: int, code: int, words: str
) -> None:
    parts = (
        Component(name="driver", state=driver, reason="it broke", observed_at=LOOKED_AT),
        Component(name=name, state=state, reason="it broke", observed_at=find_time(state, seconds)),
    )
    meshwright.fake.health = Health(state=state, components=parts)
    printed = meshwright("check", "--exit-style", "slurm")
    assert (printed.code, printed.out) == (code, f"{words}\n")


@pytest.mark.parametrize("state", ["unhealthy", "unknown", "degraded"])
@pytest.mark.parametrize("name", sorted(OF_AGENT))
def test_nothing_of_the_agents_own_takes_a_node_out_of_service(
    meshwright: CommandLine, name: str, state: State
) -> None:
    meshwright.fake.health = _build_health("healthy")
    meshwright.fake.change_health(name, state, "it broke")
    for required in ((), ("--max-health", "healthy")):
        slurm = meshwright("check", *required, "--exit-style", "slurm")
        assert (slurm.code, slurm.out[:27]) == (0, "keep: 2 components, healthy")
        assert meshwright("check", *required, "--exit-style", "npd").code == 0
    assert meshwright("check", "--exit-style", "nagios").code == EXIT_CODES["nagios"][state] != 0
    meshwright.fake.change_health("device:0", "unhealthy", "XID 79")
    assert meshwright("check", "--exit-style", "slurm").out == "drain: device:0 unhealthy: XID 79\n"


def test_a_host_of_which_no_device_is_known_is_never_green(meshwright: CommandLine) -> None:
    meshwright.fake.health = Health(state="healthy", components=(Component(name="store", state="healthy"),))
    assert meshwright("check", "--exit-style", "npd").code == EXIT_CODES["npd"]["unknown"]
    assert meshwright("check", "--exit-style", "slurm").out == "unknown: 0 components, initializing\n"


def test_each_component_of_an_agent_is_of_the_hardware_or_its_own() -> None:
    names = {*OF_HOST, *OF_ITSELF, SIMULATED, "access", "device"}
    assert {name.partition(":")[0] for name in names} == HARDWARE | OF_AGENT


@given(st.sampled_from(STATES), st.text(max_size=200))
def test_one_line_stays_one_line_and_npd_gets_at_most_80_bytes(state: State, reason: str) -> None:
    summary = summarize(_build_health(state, reason))
    for style in STYLES:
        line = format_line(style, state, summary, {})
        assert len(line.splitlines()) == 1
        assert style != "npd" or len(line.encode()) <= NPD_BYTES


def test_npd_gets_a_long_reason_cut_and_in_ascii() -> None:
    line = format_line("npd", "unhealthy", "worker unhealthy: " + "é" * 200, {})
    assert line == "worker unhealthy: " + "?" * 59 + "..."


def test_a_healthy_host_says_how_many_parts_were_looked_at() -> None:
    assert summarize(_build_health("healthy", "fine")) == "2 components, healthy"


def test_a_check_asks_once_and_briefly_unless_told_otherwise(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(503, "not_ready", times=9)
    assert meshwright("check").code == 2
    meshwright("check", "--timeout", "3")
    assert meshwright.asked == [(None, 10.0, 0), (None, 3.0, 0)]
    assert len(meshwright.fake.requests) == 2


@pytest.mark.parametrize("style", STYLES)
def test_json_is_the_agents_answer_with_the_code_of_the_style(meshwright: CommandLine, style: ExitStyle) -> None:
    meshwright.fake.health = _build_health("degraded")
    printed = meshwright("check", "--json", "--exit-style", style)
    assert printed.json["state"] == "degraded"
    assert printed.code == EXIT_CODES[style]["degraded"]


@pytest.mark.parametrize("style", STYLES)
def test_json_without_an_answer_prints_no_line_on_stdout_and_keeps_the_code(
    meshwright: CommandLine, style: ExitStyle
) -> None:
    meshwright.fake.drop_next(kind="refused")
    printed = meshwright("check", "--json", "--exit-style", style)
    assert (printed.out, printed.code) == ("", EXIT_CODES[style]["no_answer"])


def test_a_verdict_that_could_not_be_had_is_2_whatever_the_error(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(500, "internal")
    assert meshwright("check").code == 2


def test_an_unknown_style_is_a_usage_error(meshwright: CommandLine) -> None:
    assert meshwright("check", "--exit-style", "zabbix").code == 2


def test_a_refusal_is_no_verdict_and_says_why_first(meshwright: CommandLine) -> None:
    meshwright.fake.require_token("mw_secret", scope="read")
    printed = meshwright("check", "--exit-style", "nagios")
    assert printed.code == 3
    assert printed.out.startswith("MESHWRIGHT UNKNOWN - no verdict: ")


def test_npd_gets_signs_that_ascii_has_not_in_letters_that_it_has() -> None:
    assert format_line("npd", "unknown", "all_reduce ≥ 300 GB/s: 5 µs", {}) == "all_reduce >= 300 GB/s: 5 us"


@pytest.mark.parametrize("wrong", [("--nope",), ("--min-hbm", "79"), ("--require", "1", "--require", "9"), ("x",)])
@pytest.mark.parametrize(("style", "code"), [("verdict", 2), ("nagios", 3), ("npd", 2), ("slurm", 2)])
def test_a_wrong_argument_is_no_verdict_on_the_host_in_any_style(
    meshwright: CommandLine, style: ExitStyle, code: int, wrong: tuple[str, ...]
) -> None:
    """Nagios' 2 is CRITICAL, npd's and slurm's 1 a broken node."""
    assert meshwright("check", f"--exit-style={style}", *wrong).code == code
    assert meshwright("check", *wrong, "--exit-style", style).code == code
    assert meshwright.fake.requests == []


@pytest.mark.parametrize(
    "twice",
    [
        ("--require", "8*cpu", "--require", "9"),
        ("--min-hbm", "1GiB", "--min-hbm", "2GiB"),
        ("--min-busbw", "all-reduce=1GB/s", "--max-age", "1h", "--max-age", "24h"),
        ("--min-busbw", "all-reduce=300GB/s", "--min-busbw", "all_reduce=1GB/s"),
    ],
)
def test_no_requirement_is_dropped_in_silence(meshwright: CommandLine, twice: tuple[str, ...]) -> None:
    printed = meshwright("check", *twice)
    assert (printed.code, meshwright.fake.requests) == (2, [])
    assert twice[-2] in printed.err


# ---- one time limit


@contextlib.contextmanager
def _drip(meshwright: CommandLine, slow: str) -> Iterator[str]:
    """Where an agent is that says `slow` byte by byte, and the rest at once, as `meshwright.fake` has it.

    It gives up after a few seconds, so that a check without a limit is a test that fails, and not one that hangs.
    """
    ended = threading.Event()
    over_at = time.monotonic() + 8.0

    def act(heard: Heard, file: BinaryIO) -> bool:
        path = heard.line.split()[1]
        with meshwright.fake.http_client() as client:
            told = answer(client.get(path).content)
        if path != slow:
            file.write(told)
            return True
        for byte in told:
            file.write(bytes([byte]))
            file.flush()
            if ended.wait(0.05) or time.monotonic() > over_at:
                break
        return False

    with serve(act) as server:
        try:
            yield server.url
        finally:
            ended.set()


def _check_within(limit_s: float, *arguments: str) -> int:
    began_s = time.monotonic()
    with pytest.raises(SystemExit) as stopped:
        main(("check", "--timeout", str(limit_s), *arguments))
    assert time.monotonic() - began_s < limit_s + 2
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_that_drips_is_none_when_the_time_is_over(
    meshwright: CommandLine, capsys: pytest.CaptureFixture[str], style: ExitStyle
) -> None:
    with _drip(meshwright, "/health") as url:
        assert _check_within(0.4, "--url", url, "--exit-style", style) == EXIT_CODES[style]["no_answer"]
        printed = capsys.readouterr()
        assert f"no answer from {url} within 0.4 s" in printed.out + printed.err


def test_the_limit_is_of_all_questions_and_a_requirement_without_an_answer_is_unknown(
    meshwright: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    meshwright.fake = FakeAgent("h100:8")
    wanted = ("--require", "8*h100", "--min-hbm", "1GiB", "--min-busbw", "all-reduce=300GB/s")
    with _drip(meshwright, "/devices") as url:
        assert _check_within(0.6, "--url", url, "--exit-style", "slurm", *wanted) == 0
        said = capsys.readouterr().out
        assert said.startswith("keep: unknown: devices 8*h100: could not be looked at: no answer from ")


def test_when_the_time_is_over_nothing_more_is_asked() -> None:
    moments = iter((0.0, 3.0, 4.0))
    limit = TimeLimit(4.0, "http://a", clock=lambda: next(moments))
    asked: list[int] = []
    assert limit.ask(lambda: asked.append(1)) is None
    with pytest.raises(AgentTimeoutError, match="no answer from http://a within 4 s"):
        limit.ask(lambda: asked.append(2))
    assert asked == [1]


# ---- one line that stays short

HUNG = "driver does not answer: the probe was ended after 10 s in nvmlDeviceGetHandleByIndex; its facts are 95 s old"


def _build_hung(count: int = 8, reason: str = HUNG) -> Health:
    names = [f"{part}:GPU-{number:036}" for number in range(count) for part in ("device", "thermal", "memory", "link")]
    parts = [Component(name=name, state="unknown", reason=reason) for name in ("driver", "inventory", *names)]
    return Health(state="unknown", components=(Component(name="store", state="healthy"), *parts))


def test_parts_that_share_a_cause_are_told_once_with_their_number(meshwright: CommandLine) -> None:
    meshwright.fake.health = _build_hung()
    assert summarize(_build_hung()) == f"34 parts unknown: {HUNG}, such as driver"
    out = meshwright("check", "--exit-style", "nagios").out
    assert out == (
        f"MESHWRIGHT UNKNOWN - 34 parts unknown: {HUNG}, such as driver "
        "| initializing=0 healthy=1 degraded=0 unhealthy=0 unknown=34\n"
    )


def test_parts_without_a_reason_are_told_together_too() -> None:
    assert summarize(_build_hung(1, "")) == "6 parts unknown, such as driver"


@given(st.lists(st.text(max_size=300), max_size=60))
@example([f"{number} µ" * 40 for number in range(30)])
def test_a_line_is_as_long_as_who_reads_it_keeps_and_figures_are_kept_whole(reasons: list[str]) -> None:
    parts = tuple(Component(name=f"device:{n}", state="unhealthy", reason=each) for n, each in enumerate(reasons))
    health = Health(state="unhealthy", components=parts)
    counts: dict[State, int] = {"unhealthy": len(parts)}
    nagios = format_line("nagios", "unhealthy", summarize(health), counts)
    assert len(nagios.encode()) <= NAGIOS_BYTES
    assert nagios.endswith(f" | initializing=0 healthy=0 degraded=0 unhealthy={len(parts)} unknown=0")
    assert len(format_line("slurm", "unhealthy", summarize(health), counts).encode()) <= SLURM_BYTES
