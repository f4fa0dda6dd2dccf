"""`meshwright check` with requirements: met only by what was seen, in every exit style."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.check import DRAINING, EXIT_CODES, NPD_BYTES, ExitStyle
from meshwright.cli.requirements import (
    COLLECTIVES,
    find_worst,
    judge_bandwidth,
    judge_devices,
    judge_health,
    judge_memory,
)
from meshwright.testing import FakeAgent, build_devices
from meshwright.testing.runs import build_record
from meshwright.topology.counted import ChipCount
from meshwright.wire.bench import BenchRecord, LatestBench
from meshwright.wire.devices import Mig
from meshwright.wire.health import WORST_FIRST, Component, Health, State
from tests.unit.cli.conftest import CommandLine

STYLES: tuple[ExitStyle, ...] = get_args(ExitStyle)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
EIGHT = build_devices("h100:8", at=NOW)
GIB = 2**30
H100 = 81_559 * 2**20
DAY_S = 86400.0


def _record(busbw: float, *, size_bytes: int = GIB, age_s: float = 60.0, **fields: Any) -> BenchRecord:
    made = build_record("all_reduce", EIGHT, NOW)
    seen = {"busbw_bytes_per_s": busbw, "size_bytes": size_bytes, "age_s": age_s}
    return made.model_copy(update={**seen, **fields})


def _judge(*records: BenchRecord, max_age_s: float | None = DAY_S) -> Any:
    return judge_bandwidth("all_reduce", 300e9, max_age_s, EIGHT.devices, LatestBench(records=records))


# ---- one requirement at a time


@pytest.mark.parametrize(("count", "state"), [(7, "healthy"), (8, "healthy"), (9, "unhealthy")])
def test_so_many_devices_or_more_are_there(count: int, state: State) -> None:
    finding = judge_devices(ChipCount(count, "h100"), EIGHT)
    assert (finding.state, finding.asked) == (state, f"{count}*h100")
    assert "8 (NVIDIA H100 80GB HBM3)" in finding.found


def test_devices_of_another_chip_do_not_count_and_are_named() -> None:
    finding = judge_devices(ChipCount(8, "a100"), EIGHT)
    assert (finding.state, finding.found) == ("unhealthy", "0 of 8 (NVIDIA H100 80GB HBM3)")


def test_a_part_of_a_card_is_none_of_the_chips_that_are_asked_for() -> None:
    card, *others = EIGHT.devices
    part = card.model_copy(update={"kind": f"{card.kind} MIG 1g.10gb", "mig": Mig(parent_uuid="GPU-1")})
    divided = EIGHT.model_copy(update={"devices": (part, *others)})
    assert judge_devices(ChipCount(8, "h100"), divided).state == "unhealthy"
    assert judge_devices(ChipCount(8), divided).state == "healthy"


def _change(index: int, **fields: Any) -> Any:
    changed = (each.model_copy(update=fields) if each.local_index == index else each for each in EIGHT.devices)
    return EIGHT.model_copy(update={"devices": tuple(changed)})


def test_what_is_declared_is_judged_and_said_to_be_declared() -> None:
    declared = _change(3, basis="declared")
    for found in (judge_devices(ChipCount(8), declared), judge_memory(GIB, declared.devices)):
        assert found.state == "healthy"
        assert found.found.endswith(", declared")
    assert judge_devices(ChipCount(9), declared).state == "unhealthy"
    assert judge_memory(GIB * 10**6, declared.devices).state == "unhealthy"


@pytest.mark.parametrize(("least", "state"), [(79 * GIB, "healthy"), (H100 + 1, "unhealthy"), (H100, "healthy")])
def test_each_device_has_so_much_memory(least: int, state: State) -> None:
    assert judge_memory(least, EIGHT.devices).state == state


def test_the_device_with_the_least_memory_decides_and_is_named() -> None:
    memory = EIGHT.devices[5].memory
    assert memory is not None
    small = _change(5, memory=memory.model_copy(update={"capacity_bytes": 40 * GIB}))
    finding = judge_memory(79 * GIB, small.devices)
    assert (finding.state, finding.found) == ("unhealthy", "40 GiB (device 5, the least of 8)")


def test_memory_that_nobody_tells_is_unknown_and_so_is_none_at_all() -> None:
    assert judge_memory(GIB, _change(5, memory=None).devices).state == "unknown"
    assert "device 5" in judge_memory(GIB, _change(5, memory=None).devices).found
    assert judge_memory(GIB, ()).state == "unknown"


@pytest.mark.parametrize(("busbw", "state"), [(300e9, "healthy"), (299.9e9, "unhealthy")])
def test_a_collective_was_so_fast(busbw: float, state: State) -> None:
    finding = _judge(_record(busbw))
    assert finding.state == state
    assert "1 GiB" in finding.found


@pytest.mark.parametrize(
    "record",
    [
        _record(400e9, case="all_gather"),
        _record(400e9, device_indices=(0, 1, 2, 3), axis_size=4),
        _record(400e9, axis_size=4),
        _record(400e9, busbw_bytes_per_s=None),
    ],
)
def test_another_collective_or_one_over_a_part_of_the_host_is_no_evidence(record: BenchRecord) -> None:
    finding = _judge(record)
    assert (finding.state, finding.action) == ("unknown", "meshwright bench --case all_reduce")
    assert "not measured" in finding.found


@pytest.mark.parametrize(("age_s", "state"), [(DAY_S, "healthy"), (DAY_S + 1, "unknown")])
def test_a_measurement_that_is_too_old_tells_nothing(age_s: float, state: State) -> None:
    assert _judge(_record(400e9, age_s=age_s)).state == state
    assert _judge(_record(400e9, age_s=age_s), max_age_s=None).state == "healthy"


def test_a_wrong_result_is_not_met_however_fast_it_was() -> None:
    assert _judge(_record(400e9, nwrong=3, correct=False)).state == "unhealthy"
    assert "3 elements wrong" in _judge(_record(400e9, nwrong=3, correct=False)).found


def test_the_largest_message_decides_and_of_one_size_the_newest() -> None:
    small, large = _record(50e9, size_bytes=2**16), _record(400e9)
    assert _judge(small, large).state == "healthy"
    older = _record(400e9, observed_at=datetime(2025, 1, 1, tzinfo=UTC))
    assert _judge(older, _record(200e9)).state == "unhealthy"


def test_a_small_message_does_not_condemn_a_host_whose_large_ones_are_too_old() -> None:
    small, large = _record(50e9, size_bytes=2**16), _record(400e9, age_s=2 * DAY_S)
    assert _judge(small, large).state == "unknown"
    assert _judge(_record(350e9, size_bytes=2**16), large).state == "healthy"


@pytest.mark.parametrize(("limit", "passing"), [("healthy", {"healthy"}), ("degraded", {"healthy", "degraded"})])
def test_health_passes_up_to_the_limit_and_never_unseen(limit: Any, passing: set[State]) -> None:
    states = {state: judge_health(limit, Health(state=state, components=())).state for state in get_args(State)}
    assert {state for state, found in states.items() if found == "healthy"} == passing
    assert states["unknown"] == states["initializing"] == "unknown"


@given(st.sampled_from(get_args(State)), st.lists(st.sampled_from(["healthy", "unhealthy", "unknown"]), max_size=4))
def test_the_whole_is_healthy_only_when_every_part_is(state: State, found: list[Any]) -> None:
    findings = [judge_health("healthy", Health(state=each, components=())) for each in found]
    worst = find_worst(Health(state=state, components=()), findings)
    assert (worst == "healthy") == ({state, *found} == {"healthy"})
    assert WORST_FIRST.index(worst) <= WORST_FIRST.index(state)


def test_every_state_has_a_rank() -> None:
    assert sorted(WORST_FIRST) == sorted(get_args(State))


# ---- the command

ALL = ("--require", "8*h100", "--min-hbm", "79GiB", "--min-busbw", "all-reduce=300GB/s", "--max-age", "24h")


@pytest.fixture
def h100(meshwright: CommandLine) -> CommandLine:
    """A host of 8 H100 whose all-reduce was measured at 400 GB/s a minute ago."""
    meshwright.fake = FakeAgent("h100:8")
    meshwright.fake.answer("GET", "/placement/bench", LatestBench(records=(_record(400e9),)))
    return meshwright


@pytest.mark.parametrize("style", STYLES)
def test_what_is_met_passes_in_every_style(h100: CommandLine, style: ExitStyle) -> None:
    printed = h100("check", *ALL, "--exit-style", style)
    assert printed.code == 0
    if style != "verdict":
        count = 8 if style in DRAINING else 10  # store and worker are the agent's own
        assert f"{count} components, healthy, 3 requirements met" in printed.out


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("wanted", "state"),
    [
        (("--require", "9*h100"), "unhealthy"),
        (("--require", "8*a100"), "unhealthy"),
        (("--min-hbm", "81GiB"), "unhealthy"),
        (("--min-busbw", "all-reduce=401GB/s"), "unhealthy"),
        (("--min-busbw", "all-gather=1GB/s"), "unknown"),
        (("--min-busbw", "all-reduce=1GB/s", "--max-age", "30s"), "unknown"),
    ],
)
def test_what_is_not_met_or_not_known_has_the_code_of_its_state(
    h100: CommandLine, style: ExitStyle, wanted: tuple[str, ...], state: State
) -> None:
    printed = h100("check", *wanted, "--exit-style", style)
    is_kept = (style, state) == ("slurm", "unknown")  # nothing was measured, which is no fault of a device
    assert printed.code == (0 if is_kept else EXIT_CODES[style][state])
    if style == "npd":
        assert len(printed.out.strip().encode()) <= NPD_BYTES
    if style == "nagios":
        assert f"{state}=1" in printed.out


@pytest.mark.parametrize("style", [style for style in STYLES if style != "slurm"])
@pytest.mark.parametrize("path", ["/devices", "/placement/bench"])
def test_what_could_not_be_looked_at_is_never_a_pass(h100: CommandLine, style: ExitStyle, path: str) -> None:
    h100.fake.fail_next(503, "not_ready", path=path, detail="the agent is starting")
    printed = h100("check", "--min-busbw", "all-reduce=300GB/s", "--exit-style", style)
    assert printed.code == EXIT_CODES[style]["unknown"] != 0
    assert "could not be looked at" in " ".join(printed.out.split())


def test_slurm_drains_what_is_missing_and_keeps_what_is_not_known_saying_so(h100: CommandLine) -> None:
    missing = h100("check", "--exit-style", "slurm", "--require", "9*h100")
    assert (missing.code, missing.out) == (1, "drain: not met: devices 9*h100: 8 (NVIDIA H100 80GB HBM3)\n")
    unknown = h100("check", "--exit-style", "slurm", "--min-busbw", "all-gather=1GB/s")
    assert (unknown.code, unknown.out.startswith("keep: unknown: all_gather >= 1 GB/s: not measured")) == (0, True)


@pytest.mark.parametrize("style", [style for style in STYLES if style != "verdict"])
def test_the_line_is_the_same_until_something_else_is_found(h100: CommandLine, style: ExitStyle) -> None:
    """A drain reason that is another each time is written anew each time, and its date with it."""
    lines = set()
    for age_s in (60.0, 365.0, 7200.0):
        h100.fake.answer("GET", "/placement/bench", LatestBench(records=(_record(200e9, age_s=age_s),)))
        lines.add(h100("check", *ALL, "--exit-style", style).out)
    assert len(lines) == 1
    (line,) = lines
    assert "200 GB/s at 1 GiB" in line or style == "npd"


def test_the_table_has_each_requirement_with_what_was_asked_and_found(h100: CommandLine) -> None:
    lines = h100("check", *ALL).out.splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.strip()}
    assert rows["devices"] == "8*h100 8 (NVIDIA H100 80GB HBM3) met"
    assert rows["hbm"] == "≥ 79 GiB each 79.6 GiB (device 0, the least of 8) met"
    assert rows["all_reduce"] == "≥ 300 GB/s, at most 24 h old 400 GB/s at 1 GiB, 1 min ago met"
    assert rows["host"] == "healthy"


def test_json_is_the_agents_health_with_the_requirements_and_the_verdict(h100: CommandLine) -> None:
    printed = h100("check", "--json", *("9*h100" if each == "8*h100" else each for each in ALL))
    assert printed.json["state"] == "healthy"
    assert printed.json["verdict"] == "unhealthy"
    assert len(printed.json["components"]) == 10
    assert [(each["name"], each["state"]) for each in printed.json["requirements"]] == [
        ("devices", "unhealthy"),
        ("hbm", "healthy"),
        ("all_reduce", "healthy"),
    ]


def test_memory_and_speed_are_asked_of_the_devices_that_are_required(h100: CommandLine) -> None:
    """A display card beside eight H100 is not held to their memory."""
    card = EIGHT.devices[0].model_copy(update={"local_index": 8, "position": 8, "kind": "NVIDIA T400", "memory": None})
    h100.fake.devices = EIGHT.model_copy(update={"devices": (*EIGHT.devices, card)})
    assert h100("check", *ALL).code == 0
    assert h100("check", "--min-hbm", "79GiB").code == 1


def test_a_sick_host_is_not_healed_by_what_is_met(h100: CommandLine) -> None:
    h100.fake.change_health("device:2", "unhealthy", "XID 79")
    assert h100("check", *ALL).code == 1
    h100.fake.health = Health(state="degraded", components=(Component(name="link:0", state="degraded"),))
    assert h100("check", *ALL).code == 0
    assert h100("check", "--max-health", "healthy").code == 1
    assert h100("check", "--max-health", "degraded").code == 0


def test_only_what_is_needed_is_asked(h100: CommandLine) -> None:
    for arguments, paths in (
        ((), ["/health"]),
        (("--max-health", "healthy"), ["/health"]),
        (("--require", "8"), ["/health", "/devices"]),
        (ALL, ["/health", "/devices", "/placement/bench"]),
    ):
        h100.fake.requests.clear()
        h100("check", *arguments)
        assert [request.path for request in h100.fake.requests] == paths


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--require", "h100"), "8*h100"),
        (("--min-hbm", "79"), "79GiB"),
        (("--min-busbw", "all-reduce"), "all-reduce=300GB/s"),
        (("--min-busbw", "all-reduce=300"), "300GB/s"),
        (("--min-busbw", "matmul=300GB/s"), "has no busbw"),
        (("--min-busbw", "all-reduces=300GB/s"), "did you mean all_reduce"),
        (("--max-age", "24h"), "--min-busbw"),
        (("--min-busbw", "all-reduce=300GB/s", "--max-age", "24"), "24h"),
        (("--max-health", "unhealthy"), "degraded"),
    ],
)
def test_a_requirement_that_is_none_is_a_usage_error_with_one_that_works(
    h100: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    printed = h100("check", *arguments)
    assert (printed.code, h100.fake.requests) == (2, [])
    assert said in " ".join(printed.err.replace("│", " ").split())


def test_the_collectives_are_those_that_have_a_busbw() -> None:
    assert {case for case in COLLECTIVES if build_record(case, EIGHT, NOW).busbw_factor is not None} == set(COLLECTIVES)
