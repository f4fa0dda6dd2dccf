"""What a preflight says of connections and contents: who is named, and when nobody can tell."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.cli.preflight import write_report
from meshwright.fleet import FleetHost, FleetState
from meshwright.preflight.check import compare_hosts
from meshwright.preflight.pairs import choose_rounds
from meshwright.preflight.report import HostFinding, HostReport, build_report, build_verdict, describe_results
from meshwright.preflight.rule import DEVICE_FIGURES, Wrong, blame_contents, blame_sums
from meshwright.wire.preflight import CollectiveRate, PreflightDevice, PreflightResult, SlowFigure, WrongContent

NAMES = [f"h{number}" for number in range(4)]
WELL = PreflightResult(
    devices=(PreflightDevice(local_index=0, matmul_flops_per_s=1e12, memory_bandwidth_bytes_per_s=1e11),)
)


def cut(*others: int) -> PreflightResult:
    return PreflightResult(unreachable=others)


@pytest.mark.parametrize(("results", "met", "named"), [
    ({3: cut(0)}, {0, 1, 2}, {3}),  # of those that wait, all have reached the first host
    ({2: cut(0), 3: cut(0)}, {0, 1}, {2, 3}),
    ({1: cut(0), 2: cut(0), 3: cut(0)}, {0}, {0}),  # nobody has reached it
    ({1: cut(0)}, {0}, {0, 1}),  # of two, either
    ({0: cut(), 1: cut(), 2: cut(3), 3: cut(2)}, {0, 1, 2, 3}, {2, 3}),
    ({0: cut(3), 1: cut(3), 2: cut(3), 3: cut(0, 1, 2)}, {0, 1, 2, 3}, {3}),
])  # fmt: skip
def test_a_cut_connection_names_who_reaches_nobody(
    results: dict[int, PreflightResult], met: set[int], named: set[int]
) -> None:
    found = describe_results(results, NAMES, met)
    assert set(found) == named
    assert all("no TCP connection" in finding.text for findings in found.values() for finding in findings)


@pytest.mark.parametrize(("seen", "blamed"), [
    ([Wrong(1, 2, 0, "network", 5), Wrong(3, 2, 0, "network", 7)], [(2, 0, 7)]),  # two have seen it
    ([Wrong(1, 2, 0, "network", 5)], [(2, 0, 5)]),
    ([Wrong(1, 0, 0, "network", 5), Wrong(1, 2, 1, "network", 5)], [(1, None, 5)]),  # it receives wrongly
    ([Wrong(2, 2, 1, "matmul", 9)], [(2, 1, 9)]),
    ([Wrong(0, -1, -1, "network", 3), Wrong(1, -1, -1, "network", 3)], [(None, None, 3)]),
    ([Wrong(0, -1, -1, "network", 3), Wrong(2, 2, 1, "matmul", 9)], [(2, 1, 9)]),  # which explains the sum
])  # fmt: skip
def test_a_wrong_content_is_its_producers_fault(seen: list[Wrong], blamed: list[tuple[int | None, ...]]) -> None:
    assert [(each.host, each.device, each.wrong_elements) for each in blame_contents(seen)] == blamed


@pytest.mark.parametrize(("wrong", "blamed"), [
    ([[0, 0, 3], [3, 4, 3], [3, 0, 0], [0, 4, 0]], [1]),  # its partners' sums with others are right
    ([[3], [3]], []),  # of two, either
    ([[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]], []),  # this time all is right
])  # fmt: skip
def test_a_wrong_sum_is_of_the_host_whose_sums_are_all_wrong(wrong: list[list[int]], blamed: list[int]) -> None:
    assert [each.host for each in blame_sums(wrong, choose_rounds(len(wrong)))] == blamed


@pytest.mark.parametrize("count", [3, 4, 5, 8, 13, 64])
@pytest.mark.parametrize("bad", [{0}, {2}, {1, 2}])
def test_hosts_that_add_wrongly_are_named_and_no_other(count: int, bad: set[int]) -> None:
    rounds = choose_rounds(count)
    wrong = [[int(bool(bad & {host, pairs.get(host, host)})) for pairs in rounds] for host in range(count)]
    assert {each.host for each in blame_sums(wrong, rounds)} <= bad
    assert count < 5 or {each.host for each in blame_sums(wrong, rounds)} == bad


def test_a_wrong_sum_alone_blames_nobody_and_is_not_well() -> None:
    wrong = WELL.model_copy(update={"wrong": (WrongContent(host=None, figure="network", wrong_elements=3),)})
    findings = describe_results(dict.fromkeys(range(4), wrong), NAMES, range(4))
    hosts = [HostReport(address=name, name=name, findings=tuple(findings[place])) for place, name in enumerate(NAMES)]
    report = build_report(hosts, 1.0)
    assert (report.verdict, report.culprits) == ("unknown", ())


@pytest.mark.parametrize(("count", "devices", "words"), [
    (1, 1, "its figures had no peer to be compared with"), (1, 2, "with each other only"),
    (2, 1, "the network between two hosts has no peer to be compared with"), (3, 1, ""),
])  # fmt: skip
def test_a_verdict_says_what_had_no_peer(count: int, devices: int, words: str) -> None:
    result = WELL.model_copy(update={"devices": WELL.devices * devices})
    report = build_report([HostReport(address=name, name=name, result=result) for name in NAMES[:count]], 1.0)
    assert report.verdict == "ok"
    assert report.summary.endswith(words or "checked in 1 s")


MISSING = HostFinding(state="missing", text="no answer\nfor 10 s", action="look at it")


def test_if_no_agent_answers_nothing_was_checked_and_nobody_is_blamed() -> None:
    """An address without https blames every host of a job otherwise."""
    silent = HostReport(address="h0", name="h0", findings=(MISSING,))
    report = build_report([silent, silent], 1.0)
    assert (report.verdict, report.summary) == ("unknown", "2 of 2 hosts could not be checked: no agent answers")
    assert build_report([silent, HostReport(address="h1", name="h1", result=WELL)], 1.0).verdict == "fault"


def test_agents_of_two_releases_may_have_other_collectives() -> None:
    reduced = CollectiveRate(case="all_reduce", busbw_bytes_per_s=1e9)
    results = [WELL.model_copy(update={"collectives": (reduced,) * count}) for count in (1, 2)]
    hosts = [HostReport(address=name, name=name, result=result) for name, result in zip(NAMES, results, strict=False)]
    assert write_report(build_report(hosts, 1.0))[-1] == "  all-reduce over all devices: 1 GB/s busbw"


def test_a_host_without_a_finding_was_not_checked_because_of_another_and_each_finding_has_its_own_state() -> None:
    leased = HostFinding(state="unchecked", text="it is leased")
    hosts = [HostReport(address="h0", name="h0"), HostReport(address="h1", name="h1", findings=(leased,))]
    assert build_report(hosts, 1.0).summary == "2 of 2 hosts could not be checked, because of h1"
    both = HostReport(address="h1", name="h1", findings=(leased, HostFinding(state="fault", text="it is slow")))
    assert write_report(build_report([both], 1.0))[1:] == ["  h1 (fault): it is slow", "  h1 (unchecked): it is leased"]
    same = [host.model_copy(update={"findings": (leased,)}) for host in hosts]
    assert write_report(build_report([*same, both], 1.0))[2:] == ["  h0, h1, h1 (unchecked): it is leased"]


def test_a_device_has_one_line_with_its_figures_those_of_its_peers_and_what_to_do() -> None:
    slow = [SlowFigure(host=1, figure=each, device=0, value=3e9, peers=3.35e15) for each in DEVICE_FIGURES]
    wrong = [WrongContent(host=1, device=1, figure=each, wrong_elements=2) for each in DEVICE_FIGURES]
    results = dict.fromkeys(range(4), WELL.model_copy(update={"slow": (*slow,), "wrong": (*wrong,)}))
    host = HostReport(address="a", name="h1", findings=(*describe_results(results, NAMES, range(4))[1],))
    of_slow, of_wrong = write_report(build_report([host], 1.0))[1:]
    figures = "matmul 3 GFLOP/s, peers' median 3.35 PFLOP/s; memory bandwidth 3 GB/s, peers' median 3.35 PB/s"
    assert of_slow.startswith(f"  h1 (fault): device 0: {figures}; look at its clocks")
    assert "; look at its memory errors" in of_slow
    assert of_wrong.startswith("  h1 (fault): device 1 produced 2 wrong elements (matmul, memory bandwidth); take")


def test_what_to_do_is_said_in_commands() -> None:
    finding = HostFinding(state="fault", text="slow", action="see GET /health; or give a longer timeout_s")
    lines = write_report(build_report([HostReport(address="a", name="a", findings=(finding,))], 1.0))
    assert lines[1:] == ["  a (fault): slow; see `meshwright health`; or give a longer --timeout"]


@pytest.mark.parametrize(("state", "detail", "found"), [
    ("error", "", "unchecked"),
    ("unreachable", "", "missing"),
    ("not_ready", "starting since 12:00:00 UTC: the driver has not answered the probe yet", "unchecked"),
    ("not_ready", "draining: the agent is shutting down", "unchecked"),
    ("not_ready", "worker failed: it crashed 5 times", "missing"),
    ("not_ready", "worker does not start: no libtpu", "missing"),
])  # fmt: skip
def test_an_agent_that_refuses_the_caller_or_only_starts_is_not_missing(state: Any, detail: str, found: str) -> None:
    ((_, finding),) = compare_hosts(FleetState((FleetHost("http://a", state, detail=detail),)), None, "")
    assert finding.state == found


@pytest.mark.parametrize(("result", "findings", "state", "verdict", "reason"), [
    (WELL, (), "ok", "ok", "all is well"),
    (None, (), "unchecked", "unchecked", "the check ended before it was measured: all is well"),
    (PreflightResult(), (), "unchecked", "unchecked", "the check ended before it was measured: all is well"),
    (None, (MISSING,), "missing", "unchecked", "no answer for 10 s (look at it)"),
    (WELL, (HostFinding(state="fault", text="it is slow"), MISSING), "fault", "fault", "it is slow; no answer"),
])  # fmt: skip
def test_who_was_not_measured_is_not_well_and_who_hears_a_verdict_is_not_missing(
    result: PreflightResult | None, findings: tuple[HostFinding, ...], state: str, verdict: str, reason: str
) -> None:
    host = HostReport(address="http://a:8790", name="a", findings=findings, result=result)
    told = build_verdict(host, "all is well")
    assert (host.state, told.state) == (state, verdict)
    assert told.reason.startswith(reason)
