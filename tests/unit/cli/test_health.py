from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, BinaryIO, get_args

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.cli import main
from meshwright.cli.health import (
    EXIT_CODES,
    NAGIOS_BYTES,
    SLURM_BYTES,
    Format,
    Outcome,
    Requirement,
    find_worst,
    format_line,
    summarize,
)
from meshwright.errors import ForbiddenError, UnavailableError
from meshwright.wire.devices import Mig
from meshwright.wire.health import HARDWARE, WORST_FIRST, Component, Health, State
from meshwright_agent.health.monitor import KINDS
from tests.contract.client.sockets import Heard, answer, serve
from tests.unit.cli.conftest import CommandLine

STATES: tuple[State, ...] = get_args(State)
STYLES: tuple[Format, ...] = get_args(Format)
OF_AGENT = {"worker", "store", "access", "kernel_log"}
LOOKED_AT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)


def find_time(state: State, seconds: int = 0) -> datetime | None:
    """Returns when a component in this state was looked at."""
    return None if state == "initializing" else LOOKED_AT + timedelta(seconds=seconds)


def _build_health(
    state: Any, reason: str = "it broke", *, name: str = "device:0", driver: State = "healthy", seconds: int = 0
) -> Health:
    """Returns a host of a driver and of another part, which was looked at so many seconds later."""
    first = Component(name="driver", state=driver, reason=reason, observed_at=LOOKED_AT)
    other = Component(name=name, state=state, reason=reason, observed_at=find_time(state, seconds))
    return Health(state=state, components=(first, other))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("state", STATES)
def test_each_state_has_the_code_of_the_style(meshwright: CommandLine, style: Format, state: State) -> None:
    meshwright.fake.health = _build_health(state)
    assert meshwright("health", "--format", style).code == EXIT_CODES[style][state]


@pytest.mark.parametrize("style", STYLES)
def test_no_answer_has_a_code_of_its_own_in_each_style(meshwright: CommandLine, style: Format) -> None:
    meshwright.fake.fail_next(httpx.ConnectError("refused"))
    printed = meshwright("health", "--format", style)
    assert printed.code == EXIT_CODES[style]["no_answer"]
    assert ("no answer" in printed.out) == (style in ("nagios", "slurm"))
    assert printed.err.startswith("error:") == (style == "text")


def test_the_table_is_what_the_three_worlds_expect() -> None:
    wanted: dict[Format, dict[int, set[Outcome]]] = {
        "text": {0: {"healthy", "degraded"}, 1: {"unhealthy", "unknown", "initializing"}, 2: {"no_answer"}},
        "nagios": {0: {"healthy"}, 1: {"degraded"}, 2: {"unhealthy"}, 3: {"unknown", "initializing", "no_answer"}},
        "slurm": {0: {"healthy", "degraded"}, 1: {"unhealthy", "unknown"}, 2: {"initializing", "no_answer"}},
    }
    for style, codes in wanted.items():
        assert EXIT_CODES[style] == {state: code for code, states in codes.items() for state in states}


def test_the_verdict_shows_each_part_with_reason_and_action(meshwright: CommandLine) -> None:
    part = Component(name="device:3", state="unhealthy", reason="no answer", action="reboot", age_s=90.0)
    meshwright.fake.health = Health(state="unhealthy", components=(part, Component(name="new", state="initializing")))
    out = meshwright("health").out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["device:3"] == ["unhealthy", "1.5", "min", "ago", "no", "answer", "reboot"]
    assert rows["new"] == ["initializing", "never"]
    assert out.startswith("host unhealthy: device:3 unhealthy: no answer\n")


def test_only_what_is_not_healthy_is_listed_the_worst_first(meshwright: CommandLine) -> None:
    states: tuple[State, ...] = ("healthy", "degraded", "unhealthy", "unknown")
    parts = tuple(Component(name=f"part:{state}", state=state) for state in states)
    meshwright.fake.health = Health(state="unhealthy", components=parts)

    def list_rows(*options: str) -> list[str]:
        rows = [line.split()[0] for line in meshwright("health", *options).out.splitlines() if line.startswith("part:")]
        return [name.removeprefix("part:") for name in rows]

    assert list_rows() == ["unhealthy", "unknown", "degraded"]
    assert list_rows("--all") == ["unhealthy", "unknown", "degraded", "healthy"]


def test_nagios_gets_status_text_and_figures_on_one_line(meshwright: CommandLine) -> None:
    meshwright.fake.health = _build_health("unhealthy", "a | b\nc")
    figures = "initializing=0 healthy=1 degraded=0 unhealthy=1 unknown=0"
    out = meshwright("health", "--format", "nagios").out
    assert out == f"MESHWRIGHT CRITICAL - device:0 unhealthy: a / b c | {figures}\n"


@pytest.mark.parametrize(("name", "state", "driver", "seconds", "code", "words"), [
    ("device:0", "unhealthy", "healthy", 0, 1, "drain: device:0 unhealthy: it broke"),
    ("memory:0", "unknown", "healthy", 0, 1, "drain: memory:0 unknown: it broke"),
    ("device:0", "unknown", "degraded", 0, 1, "drain: device:0 unknown: it broke"),
    ("device:0", "unknown", "healthy", -300, 2, "unknown: device:0 unknown: it broke"),
    ("device:0", "unknown", "unknown", 0, 2, "unknown: 2 parts unknown: it broke, such as driver"),
    ("driver", "unknown", "healthy", 0, 2, "unknown: driver unknown: it broke"),
    ("device:0", "initializing", "healthy", 0, 2, "unknown: device:0 initializing: it broke"),
    ("device:0", "degraded", "healthy", 0, 0, "keep: device:0 degraded: it broke"),
])  # fmt: skip
def test_slurm_drains_for_what_is_broken_or_does_not_answer_and_keeps_nothing_that_was_not_looked_at(
    meshwright: CommandLine, name: str, state: State, driver: State, seconds: int, code: int, words: str
) -> None:
    meshwright.fake.health = _build_health(state, name=name, driver=driver, seconds=seconds)
    printed = meshwright("health", "--format", "slurm")
    assert (printed.code, printed.out) == (code, f"{words}\n")


@pytest.mark.parametrize("state", ["unhealthy", "unknown", "degraded"])
@pytest.mark.parametrize("name", sorted(OF_AGENT))
def test_nothing_of_the_agents_own_takes_a_node_out_of_service(
    meshwright: CommandLine, name: str, state: State
) -> None:
    meshwright.fake.health = _build_health("healthy")
    meshwright.fake.change_health(name, state, "it broke")
    slurm = meshwright("health", "--format", "slurm")
    assert (slurm.code, slurm.out) == (0, "keep: 2 components, healthy\n")
    assert meshwright("health", "--format", "nagios").code == EXIT_CODES["nagios"][state] != 0
    meshwright.fake.change_health("device:0", "unhealthy", "XID 79")
    assert meshwright("health", "--format", "slurm").out == "drain: device:0 unhealthy: XID 79\n"


def test_a_host_of_which_no_device_is_known_is_never_green(meshwright: CommandLine) -> None:
    for count, name in enumerate(("store", "driver")):
        meshwright.fake.health = Health(state="healthy", components=(Component(name=name, state="healthy"),))
        printed = meshwright("health", "--format", "slurm")
        assert (printed.code, printed.out) == (2, f"unknown: {count} components, initializing\n")


def test_each_component_of_an_agent_is_of_the_hardware_or_its_own() -> None:
    names = {*KINDS, "access"}
    assert {name.partition(":")[0] for name in names} == HARDWARE | OF_AGENT


@given(st.sampled_from(STATES), st.text(max_size=200))
def test_one_line_stays_one_line(state: State, reason: str) -> None:
    summary = summarize(_build_health(state, reason))
    assert all(len(format_line(style, state, summary, {}).splitlines()) == 1 for style in STYLES)


def test_a_refusal_is_no_verdict_and_says_why_first(meshwright: CommandLine) -> None:
    meshwright.fake.fail_next(ForbiddenError("a token is needed"))
    printed = meshwright("health", "--format", "nagios")
    assert printed.code == 3
    assert printed.out.startswith("MESHWRIGHT UNKNOWN - no verdict: ")


@pytest.mark.parametrize("wrong", [("--nope",), ("--expect", "h100"), ("x",), ("--timeout", "0")])
@pytest.mark.parametrize(("style", "code"), [("text", 2), ("nagios", 3), ("slurm", 2)])
def test_a_wrong_argument_is_no_verdict_on_the_host_in_any_style(
    meshwright: CommandLine, style: Format, code: int, wrong: tuple[str, ...]
) -> None:
    """Nagios' 2 is CRITICAL, slurm's 1 a broken node."""
    assert meshwright("health", f"--format={style}", *wrong).code == code
    assert meshwright(*wrong, "health", "--format", style).code == code
    assert meshwright("--format", style, "health", *wrong).code == code
    assert meshwright("lease", "run", *wrong, "--", "health", "--format", style).code == 2
    assert meshwright.fake.requests == []


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
        told = answer(meshwright.fake.transport().handle_request(httpx.Request("GET", f"http://a{path}")).content)
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
        main(("health", "--timeout", str(limit_s), *arguments))
    assert time.monotonic() - began_s < limit_s + 2
    return int(stopped.value.code or 0)


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_that_drips_is_none_when_the_time_is_over(
    meshwright: CommandLine, capsys: pytest.CaptureFixture[str], style: Format
) -> None:
    with _drip(meshwright, "/health") as url:
        assert _check_within(0.4, "--url", url, "--format", style) == EXIT_CODES[style]["no_answer"]
        printed = capsys.readouterr()
        assert f"no answer from {url} within 0.4 s" in printed.out + printed.err


def test_the_limit_is_of_all_questions_and_a_requirement_without_an_answer_is_unknown(
    h100: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    with _drip(h100, "/devices") as url:
        assert _check_within(0.6, "--url", url, "--format", "slurm", "--expect", "h100:8") == 2
        said = capsys.readouterr().out
        assert said.startswith("unknown: unknown: devices h100:8: could not be read: no answer from ")


def test_a_check_that_is_late_all_the_same_keeps_the_exit_code_of_its_format(
    meshwright: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the machine stands still: --timeout of other commands would end it with nagios' 2, which is CRITICAL."""
    monkeypatch.setattr("meshwright.cli.health.run_all", lambda *_, **__: time.sleep(1.0))
    assert meshwright("health", "--timeout", "0.1", "--format", "nagios").code == 3


# ---- one line that stays short


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
    assert format_line("slurm", "unhealthy", "at 92 °C or more", {}) == "drain: at 92 deg C or more"


# ---- requirements


@given(st.sampled_from(STATES), st.lists(st.sampled_from(["healthy", "unhealthy", "unknown"]), max_size=4))
def test_the_whole_is_healthy_only_when_every_part_is(state: State, found: list[Any]) -> None:
    findings = [Requirement("devices", "8", "", each) for each in found]
    worst = find_worst(Health(state=state, components=()), findings)
    assert (worst == "healthy") == ({state, *found} == {"healthy"})
    assert WORST_FIRST.index(worst) <= WORST_FIRST.index(state)


@pytest.mark.parametrize("style", STYLES)
def test_what_is_met_passes_in_every_style(h100: CommandLine, style: Format) -> None:
    printed = h100("health", "--expect", "h100:8", "--expect", "1", "--format", style)
    assert printed.code == 0
    if style in ("nagios", "slurm"):
        count = 8 if style == "slurm" else 10  # store and worker are the agent's own
        assert f"{count} components, healthy, 2 requirements met" in printed.out


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("wanted", [("h100:9",), ("a100:8",), ("h100:8", "--expect", "9")])
def test_what_is_not_met_counts_as_unhealthy(h100: CommandLine, style: Format, wanted: tuple[str, ...]) -> None:
    printed = h100("health", "--expect", *wanted, "--format", style)
    assert printed.code == EXIT_CODES[style]["unhealthy"]
    assert style != "nagios" or "unhealthy=1" in printed.out


@pytest.mark.parametrize(("wanted", "code"), [("h100:2", 0), ("h100:3", 1), ("3", 0), ("4", 1)])
def test_a_divided_card_is_one_of_its_chip_and_its_instances_are_devices(
    h100: CommandLine, wanted: str, code: int
) -> None:
    there = h100.fake.devices
    mig = {"kind": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "mig": Mig(parent_uuid="GPU-0", profile="3g.40gb")}
    parts = [each.model_copy(update={**mig, "uuid": f"MIG-{each.local_index}"}) for each in there.devices[:2]]
    h100.fake.devices = there.model_copy(update={"devices": (*parts, there.devices[2])})
    assert h100("health", "--expect", wanted, "--format", "slurm").code == code


def test_devices_that_an_unknown_driver_may_hide_are_not_missing(h100: CommandLine) -> None:
    h100.fake.health = Health(state="unknown", components=(Component(name="driver", state="unknown"),))
    assert h100("health", "--expect", "h100:9", "--format", "slurm").code == 2


@pytest.mark.parametrize("style", STYLES)
def test_what_could_not_be_read_is_unknown_and_slurm_neither_keeps_nor_drains(h100: CommandLine, style: Format) -> None:
    h100.fake.fail_next(UnavailableError("the agent is starting"), path="/devices")
    printed = h100("health", "--expect", "h100:8", "--format", style)
    assert printed.code == EXIT_CODES[style]["no_answer" if style == "slurm" else "unknown"]
    assert "could not be read: the agent is starting" in " ".join(printed.out.split())
    assert style != "slurm" or printed.out.startswith("unknown: unknown: devices h100:8: ")


@pytest.mark.parametrize(("style", "code"), [("slurm", 2), ("nagios", 3), ("text", 1)])
def test_what_is_declared_alone_is_no_evidence_that_devices_are_missing(
    h100: CommandLine, style: Format, code: int
) -> None:
    """As the placeholder of a host on which nothing has answered yet: it neither drains the node nor passes."""
    there = h100.fake.devices
    placeholder = there.devices[0].model_copy(update={"kind": "cpu", "basis": "declared"})
    h100.fake.devices = there.model_copy(update={"devices": (placeholder,)})
    h100.fake.health = Health(state="initializing", components=(Component(name="driver", state="initializing"),))
    assert h100("health", "--expect", "h100:8", "--format", style).code == code


@pytest.mark.parametrize("first", ["json", "text"])
def test_the_format_nearest_to_the_end_counts(meshwright: CommandLine, first: str) -> None:
    meshwright.fake.fail_next(httpx.ConnectError("refused"))
    assert meshwright("--format", first, "health", "--format", "nagios").code == 3


def test_json_is_the_agents_health_with_the_requirements_and_the_verdict(h100: CommandLine) -> None:
    said = h100("health", "--format=json", "--expect", "h100:9").json
    assert (said["state"], said["verdict"], len(said["components"])) == ("healthy", "unhealthy", 10)
    assert [(each["name"], each["state"]) for each in said["requirements"]] == [("devices", "unhealthy")]


def test_a_requirement_that_is_none_is_a_usage_error_with_one_that_works(h100: CommandLine) -> None:
    printed = h100("health", "--expect", "h100")
    assert (printed.code, h100.fake.requests) == (2, [])
    assert "h100:8" in printed.err
