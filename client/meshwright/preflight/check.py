"""check_hosts(): a preflight of a fleet. Everything that agents know is compared before a device is opened.

Rule: whatever happens, the processes are ended and the leases are given back. A run that failed names its host; a run
that was cancelled only waited. A host that does not answer is named.
"""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median_low
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from meshwright._client.blocking import Client
from meshwright._client.settings import is_loopback
from meshwright._fleet import FleetHost, FleetState
from meshwright._threads import run_all
from meshwright.errors import (
    AgentConnectionError,
    AgentTimeoutError,
    MeshwrightError,
    NotFoundError,
    ProblemError,
    SettingsError,
)
from meshwright.fleet import MAX_AT_ONCE, Fleet
from meshwright.preflight.report import (
    HostFinding,
    HostReport,
    HostState,
    PreflightReport,
    build_report,
    build_verdict,
    describe_results,
)
from meshwright.preflight.rule import find_laggards
from meshwright.topology.chips import ChipCount, parse_chip_count
from meshwright.wire.base import read_known
from meshwright.wire.devices import Devices
from meshwright.wire.health import State as HealthState
from meshwright.wire.leases import Verdict
from meshwright.wire.mesh import Plan
from meshwright.wire.preflight import DEFAULT_PORT, DEFAULT_TIMEOUT_S, PreflightRequest, PreflightResult, order_phase
from meshwright.wire.runs import FINAL_STATES, Run

ASK_S: Final = 10.0
START_S: Final = 30.0
"""How long an agent may take to start its part: it asks the driver, twice `MESHWRIGHT_PROBE_TIMEOUT_S` at most."""
POLL_S: Final = 0.5
GRACE_S: Final = 3.0
"""How long the other hosts may still find their own faults after one has failed."""
END_RATIO: Final = 0.2
"""Of the time limit: it is left for the end of the processes, verdicts and leases."""
JOB_RATIO: Final = 0.95
"""Of the time that is left for the job: an agent ends its process at that time, and knows why."""
LEASE_RATIO: Final = 0.25
"""Of the time limit: how long the hosts may take until they have the caller's lease."""
LEAST_TIMEOUT_S: Final = 10.0
LEAST_JOB_S: Final = 5.0
MOST_JOB_S: Final = 3600.0
MIN_BLAME_JOB_S: Final = 25.0
"""Of the job: in less time a well host may not have come through a phase of its own."""
WAITED: Final = "it waited for the others when the check ended"
BY_REQUEST: Final = "by request (DELETE)"
"""The agent's words for a run that this check has cancelled."""
CLOCKS_S: Final = 30.0
"""Clocks may be apart by so much: tokens and certificates of a job have such tolerances."""

_OWN_FAULTS: Final = frozenset({"run_failed", "worker_failed"})
"""Codes of errors that are a host's fault."""
_BAD_HEALTH: Final[tuple[tuple[set[HealthState], HostState, str], ...]] = (
    ({"unhealthy"}, "fault", "unhealthy"),
    ({"unknown", "initializing"}, "unchecked", "not known to be healthy"),
)
T = TypeVar("T")


def check_hosts(
    fleet: Fleet,
    *,
    expect: ChipCount | str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    port: int = DEFAULT_PORT,
    lease: str | None = None,
    plan: Plan | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> PreflightReport:
    """Checks the hosts of a fleet in one JAX job, and names those that are not well.

    Args:
        fleet: the agents; the process of the first is the job's coordinator.
        expect: devices that each host must have, such as "h100:8".
        timeout_s: time limit of the check, at least 10; below 40 no host is blamed for being slow to start.
        port: where the coordinator listens during the check.
        lease: id of the caller's lease of all devices on every host, which may still be on its way to some; each
            agent keeps the verdict on its host with it. None: leases are taken and given back.
        plan: made on these hosts with all their devices; the collectives of its axes are measured too.
        on_phase: hears the phase that the slowest host is in.

    Raises:
        SettingsError: the other hosts cannot reach the first by its address, or the plan is of other devices.
        ValueError: `expect` is not a number of devices, or names a chip that is in no table; or `timeout_s` is
            below 10 or not finite.
    """
    if not LEAST_TIMEOUT_S <= timeout_s < math.inf:
        raise ValueError(f"timeout_s is {timeout_s:g}; the check ends in a finite time of 10 s or more, such as 60")
    wanted = parse_chip_count(expect) if isinstance(expect, str) else expect
    coordinator, own_lease = build_coordinator(fleet.urls, port), f"preflight-{secrets.token_hex(8)}"
    on_phase = on_phase or (lambda _: None)
    return _Check(fleet, timeout_s, coordinator, lease or own_lease, lease is None, plan, on_phase).run(wanted)


@dataclass
class _Check:
    """One preflight."""

    _fleet: Fleet
    _timeout_s: float
    _coordinator: str
    _lease: str
    _is_own_lease: bool
    _plan: Plan | None
    _on_phase: Callable[[str], None]
    _began_s: float = field(default_factory=time.monotonic)
    _job_s: float = 0.0
    _ended_s: float = 0.0
    _names: list[str] = field(default_factory=list)
    _mesh: dict[str, Any] = field(default_factory=dict)
    _findings: dict[int, list[HostFinding]] = field(default_factory=dict)
    _results: dict[int, PreflightResult] = field(default_factory=dict)
    _seen_s: dict[int, dict[str, float]] = field(default_factory=dict)
    """Place → phase, or "" for the end → when it was first seen there."""

    def run(self, expect: ChipCount | None) -> PreflightReport:
        """Goes through the check, to the first step that finds something."""
        self._on_phase("agents")
        state = self._ask_agents()
        counts = Counter(host.name for host in state.hosts)
        self._names = [host.name if host.name and counts[host.name] == 1 else host.url for host in state.hosts]
        for place, finding in compare_hosts(state, expect, self._lease):
            self._note(place, finding)
        if self._findings:
            return self._conclude()
        if self._plan is not None:
            self._mesh = read_mesh(self._plan, state)
        with self._hold() as is_held:
            if is_held:
                self._measure()
        return self._conclude()

    @property
    def _left_s(self) -> float:
        """Seconds until the time limit; 1 at least, so that what was begun is ended."""
        return max(1.0, self._began_s + self._timeout_s - time.monotonic())

    @property
    def _job_left_s(self) -> float:
        """Seconds that the job may still take."""
        return max(0.0, self._left_s - END_RATIO * self._timeout_s)

    def _ask_agents(self) -> FleetState:
        """Returns what the agents know, once all answer and have the caller's lease, or it took too long."""
        until_s = self._began_s + LEASE_RATIO * self._timeout_s
        while True:
            state = self._fleet.devices(timeout_s=min(ASK_S, self._left_s))
            leases = [_find_leases(host) for host in state.hosts if host.devices is not None]
            has_all = len(leases) == len(state.hosts) and all(self._lease in each or each - {None} for each in leases)
            if self._is_own_lease or has_all or time.monotonic() + POLL_S > until_s:
                return state
            time.sleep(POLL_S)

    def _conclude(self) -> PreflightReport:
        """Returns the report, after the agents have heard the verdicts on their hosts."""
        hosts = [
            HostReport(
                address=url,
                name=self._names[place],
                findings=tuple(self._findings.get(place, ())),
                result=self._results.get(place),
            )
            for place, url in enumerate(self._fleet.urls)
        ]
        report = build_report(hosts, time.monotonic() - self._began_s)
        if not self._is_own_lease:
            verdicts = [build_verdict(host, report.summary) for host in hosts]
            self._ask_all(lambda place, client: client.put_verdict(self._lease, verdicts[place]))
        return report

    def _note(self, place: int, finding: HostFinding) -> None:
        self._findings.setdefault(place, []).append(finding)

    def _note_error(self, place: int, error: MeshwrightError) -> None:
        failed = isinstance(error, ProblemError) and error.code in _OWN_FAULTS
        state: HostState = "missing" if isinstance(error, AgentConnectionError) else "fault" if failed else "unchecked"
        self._note(place, HostFinding(state=state, text=error.detail, action=error.hint))

    def _ask_all(self, work: Callable[[int, Client], T], limit_s: float = ASK_S) -> dict[int, T | MeshwrightError]:
        """Returns the answer or the error of each host; none of a host that took too long."""
        found: dict[int, T | MeshwrightError] = {}

        def ask(place: int, client: Client) -> None:
            try:
                found[place] = work(place, client)
            except MeshwrightError as error:
                found[place] = error

        tasks = [functools.partial(ask, place, client) for place, client in enumerate(self._fleet.clients)]
        run_all(tasks, limit_s=min(limit_s, self._left_s), at_once=MAX_AT_ONCE)
        return dict(found)

    @contextlib.contextmanager
    def _hold(self) -> Iterator[bool]:
        """Leases all devices of all hosts in the block, or of none and notes why.

        The host with the least address comes first and alone: of two checks of the same hosts one gets it.
        """
        if not self._is_own_lease:
            yield True
            return
        first = min(range(len(self._names)), key=lambda each: self._fleet.urls[each])

        def lease(place: int, client: Client, *, is_first: bool) -> None:
            if (place == first) is is_first:
                client.lease("all", purpose="preflight", ttl_s=2 * self._timeout_s + 60, lease_id=self._lease)

        try:
            self._require_all(self._ask_all(functools.partial(lease, is_first=True)))
            if not self._findings:
                self._require_all(self._ask_all(functools.partial(lease, is_first=False)))
            yield not self._findings
        finally:
            self._ask_all(lambda _, client: client.end_lease(self._lease))

    def _require_all(self, answers: Mapping[int, object]) -> None:
        """Notes each host whose answer is an error, or missing."""
        for place in range(len(self._names)):
            answer = answers.get(place, AgentTimeoutError("its agent did not answer in time"))
            if isinstance(answer, MeshwrightError):
                self._note_error(place, answer)

    def _measure(self) -> None:
        """Runs the job, and notes what it finds."""
        self._job_s = min(MOST_JOB_S, JOB_RATIO * self._job_left_s)  # agents end it first
        if self._job_s < LEAST_JOB_S:
            text = f"the agents took {time.monotonic() - self._began_s:.0f} s, and no time was left for the check"
            for place in range(len(self._names)):
                self._note(place, HostFinding(state="unchecked", text=text, action="give a longer --timeout"))
            return
        runs: dict[int, Run] = {}
        try:
            started = self._start()
            runs |= {place: run for place, run in started.items() if isinstance(run, Run)}
            self._require_all(started)
            if not self._findings:
                self._follow(runs)
        finally:
            self._ended_s = time.monotonic()
            self._cancel(runs)
        self._evaluate(dict(runs))  # an agent that answers late still changes it

    def _start(self) -> dict[int, Run | MeshwrightError]:
        fixed: dict[str, Any] = {"lease": self._lease, "hosts": tuple(self._names), "coordinator": self._coordinator}
        fixed |= {"timeout_s": self._job_s, **self._mesh}
        requests = [PreflightRequest(process_id=place, **fixed) for place in range(len(self._names))]
        limit_s = min(START_S, self._job_left_s)
        return self._ask_all(lambda place, client: client.start_preflight(requests[place], timeout_s=limit_s), limit_s)

    def _follow(self, runs: dict[int, Run]) -> None:
        """Updates the runs until all have ended, or one has failed and the others had time to fail too."""
        until_s = time.monotonic() + self._job_left_s
        heard_s = dict.fromkeys(runs, time.monotonic())
        while time.monotonic() < until_s:
            answers = self._ask_all(lambda place, client: client.run(runs[place].id), min(ASK_S / 2, self._job_left_s))
            now_s = time.monotonic()
            for place, run in answers.items():
                if isinstance(run, Run):
                    runs[place], heard_s[place] = run, now_s
                    self._note_phase(place, run)
            silent = [place for place in runs if now_s - heard_s[place] > ASK_S and place not in self._findings]
            for place in silent:
                self._note(place, HostFinding(state="missing", text=f"its agent has not answered for {ASK_S:g} s"))
            going = [run for run in runs.values() if run.state not in FINAL_STATES]
            if not going:
                return
            self._on_phase(min((run.progress.message for run in going if run.progress), default="", key=order_phase))
            if silent or any(run.state == "failed" for run in runs.values()):
                until_s = min(until_s, now_s + GRACE_S)
            time.sleep(POLL_S)

    def _cancel(self, runs: dict[int, Run]) -> None:
        """Cancels the runs that go on, and waits until their processes have ended, or half of the time that is left."""

        def cancel(place: int, client: Client) -> None:
            if place not in runs:  # it may have begun one without an answer in time
                for run in client.runs(limit=4).runs:
                    is_own = run.kind == "preflight" and run.request.get("lease") == self._lease
                    if is_own and run.state not in FINAL_STATES:
                        runs.setdefault(place, run)
            if place in runs and runs[place].state not in FINAL_STATES:
                runs[place] = client.cancel_run(runs[place].id)

        until_s = time.monotonic() + self._left_s / 2
        is_all = len(runs) == len(self._names)
        while not is_all or any(run.state not in FINAL_STATES for run in tuple(runs.values())):
            if (left_s := until_s - time.monotonic()) <= 0:
                return
            self._ask_all(cancel, left_s)
            is_all = True
            time.sleep(min(POLL_S, left_s))

    def _evaluate(self, runs: Mapping[int, Run]) -> None:
        read = {place: read_known(PreflightResult, run.result) for place, run in runs.items()}
        self._results = {place: result for place, result in read.items() if result is not None}
        for place, run in runs.items():
            if run.state == "failed" and run.error is not None:
                state: HostState = "fault" if run.error.code in _OWN_FAULTS else "unchecked"  # a port or device in use
                self._note(place, HostFinding(state=state, text=run.error.detail, action=run.error.hint))
        meet = order_phase("meet")
        met = {place for place, run in runs.items() if run.progress and order_phase(run.progress.message) >= meet}
        for place, findings in describe_results(self._results, self._names, met).items():
            self._findings.setdefault(place, []).extend(findings)
        if not self._findings and any(run.state != "succeeded" for run in runs.values()):
            self._note_laggards()
        for place, run in runs.items():
            if run.state != "succeeded" and place not in self._findings:
                reason = run.error.detail.rpartition("was cancelled: ")[2] if run.error else f"its run is {run.state}"
                reason = WAITED if reason == BY_REQUEST else reason
                self._note(place, HostFinding(state="unchecked", text=reason))

    def _note_phase(self, place: int, run: Run) -> None:
        seen, now_s = self._seen_s.setdefault(place, {}), time.monotonic()
        if run.progress:
            seen.setdefault(run.progress.message, now_s)
        if run.state in FINAL_STATES:
            seen.setdefault("", now_s)

    def _note_laggards(self) -> None:
        """Notes the hosts that were busy with themselves while the others waited for them, until the time was over."""
        state: HostState = "fault" if self._job_s >= MIN_BLAME_JOB_S else "unchecked"
        for place, phase, took_s, usual_s in find_laggards(self._seen_s, self._ended_s):
            text = f"it was in phase {phase} for {took_s:.0f} s, most others for {usual_s:.0f} s; the check did not end"
            action = "look at its processors, memory, driver and GET /health; or give a longer --timeout"
            self._note(place, HostFinding(state=state, text=text, action=action))


def wait_for_verdict(client: Client, lease: str, timeout_s: float) -> Verdict:
    """Returns the verdict on this host of the preflight under a lease, as soon as the agent has it.

    Args:
        client: a client of this host's agent.
        lease: the id of the lease.
        timeout_s: seconds to wait for the verdict.

    Raises:
        NotFoundError: the lease ended meanwhile, or there was no verdict in time.
        AgentConnectionError: the agent does not answer.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return client.get_verdict(lease)
        except NotFoundError:
            if time.monotonic() + POLL_S > until_s:
                raise
            client.get_lease(lease)
        time.sleep(POLL_S)


def build_coordinator(urls: tuple[str, ...], port: int) -> str:
    """Returns the address where the first host's process listens.

    Raises:
        SettingsError: the other hosts cannot reach it.
    """
    name = urlsplit(urls[0]).hostname
    if name is None:
        detail = f"the first host is {urls[0]}, which other hosts cannot reach"
        raise SettingsError(f"{detail}; name it by its address, such as http://10.0.0.1:8790")
    if is_loopback(name) and not all(is_loopback(urlsplit(url).hostname or "localhost") for url in urls):
        detail = f"the first host is {name}, where other hosts find themselves"
        raise SettingsError(f"{detail}; name it by an address that the others reach, such as http://10.0.0.1:8790")
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def compare_hosts(state: FleetState, expect: ChipCount | None, lease: str) -> Iterator[tuple[int, HostFinding]]:
    """Yields what agents know and what would spoil the check, with the host's place. No device is opened."""
    now = datetime.now(UTC)
    known = {place: host for place, host in enumerate(state.hosts) if host.devices is not None}
    for place, host in enumerate(state.hosts):
        if host.devices is None:
            is_fault = host.state == "unreachable" or host.detail.startswith("worker")  # it failed, or does not start
            missing: HostState = "missing" if is_fault else "unchecked"
            yield place, HostFinding(state=missing, text=host.detail or "its agent does not answer")
    for place in [place for place, host in known.items() if _list(host).host.basis == "declared"]:
        del known[place]
        yield place, HostFinding(state="unchecked", text="its agent simulates a host", action="leave it out")
    first: dict[object, str] = {}
    for place, host in known.items():
        devices = _list(host)
        identity = devices.host.boot_id, devices.worker.pid, devices.worker.since  # equal only for the same agent
        if (twin := first.setdefault(identity, host.url)) != host.url:
            text = f"it is the same host as {twin}"
            yield place, HostFinding(state="unchecked", text=text, action="name each host once")
        yield from ((place, finding) for finding in _check_host(host, expect, lease))
    yield from _compare(known, "devices", lambda host: str(len(_list(host).devices)), "look at GET /health of the host")
    yield from _compare(known, "platform", lambda host: _list(host).platform, "see `meshwright-agent doctor` there")
    started = {place: host for place, host in known.items() if _list(host).software.jax}  # others have not imported it
    yield from _compare(started, "jax", lambda host: str(_list(host).software.jax), "install the same JAX on all hosts")
    agents = _compare(known, "agent", lambda host: _list(host).software.agent, "upgrade the agents of all hosts")
    yield from ((place, finding.model_copy(update={"state": "unchecked"})) for place, finding in agents)
    yield from _compare_clocks(known, now)


def read_mesh(plan: Plan, state: FleetState) -> dict[str, Any]:
    """Returns the axes of a plan and the order of the hosts' devices on them, as a preflight's request has them.

    Raises:
        SettingsError: the plan is of other devices, or of some only.
    """
    joined = state.joined
    ranks = {}
    for place, (host, seats) in enumerate(zip(state.hosts, joined.places, strict=True)):
        for number, seat in enumerate(seats):
            device = joined.topology.devices[seat]
            ranks[device.host, device.local_index] = place * len(_list(host).devices) + number
    named = [(device.host, device.local_index) for device in plan.devices]
    if set(named) != set(ranks):
        there = ", ".join(sorted({host for host, _ in named})) or "no devices"
        detail = f"the plan lists {len(named)} devices of {there}; these hosts have {len(ranks)}"
        hint = "plan on them: meshwright plan MESH --hosts … --save plan.json"
        raise SettingsError(f"{detail} of {', '.join(sorted({host for host, _ in ranks}))}; {hint}")
    return {"axes": plan.mesh_shape, "order": tuple(ranks[each] for each in named)}


def _compare_clocks(hosts: Mapping[int, FleetHost], now: datetime) -> Iterator[tuple[int, HostFinding]]:
    read = ((place, _list(host).host) for place, host in hosts.items())
    offsets = {place: (host.observed_at - now).total_seconds() + host.age_s for place, host in read}
    middle = median_low(offsets.values()) if offsets else 0.0
    for place, offset_s in offsets.items():
        if abs(offset_s - middle) > CLOCKS_S:
            where = "ahead of" if offset_s > middle else "behind"
            text = f"its clock is {abs(offset_s - middle):.0f} s {where} its peers'"
            state: HostState = "fault" if len(offsets) > 2 else "unchecked"
            yield place, HostFinding(state=state, text=text, action="let chrony or systemd-timesyncd keep its time")


def _find_leases(host: FleetHost) -> set[str | None]:
    """Returns the leases of the host's devices; None for a free one."""
    return {device.lease.id if device.lease else None for device in _list(host).devices}


def _check_host(host: FleetHost, expect: ChipCount | None, lease: str) -> Iterator[HostFinding]:
    devices = _list(host).devices
    count = sum(expect.is_of(device.kind, device.mig) for device in devices) if expect else 0
    if expect is not None and count < expect.count:
        text = f"it has {count} of {expect.words}"
        yield HostFinding(state="fault", text=text, action="look at GET /health of the host")
    for health, state, words in _BAD_HEALTH:
        found = [str(d.local_index) for d, each in zip(devices, host.device_states, strict=True) if each in health]
        if found:
            text = f"device {', '.join(found[:8])} is {words}"
            yield HostFinding(state=state, text=text, action=f"meshwright --url {host.url} health")
    taken = [device for device in devices if device.lease is not None and device.lease.id != lease]
    if taken and taken[0].lease is not None:
        text = f"device {taken[0].local_index} is reserved by lease {taken[0].lease.id} ({taken[0].lease.purpose})"
        yield HostFinding(state="unchecked", text=text, action="wait for its end, or check under that lease (--lease)")
    used = [(device, other) for device in devices for other in device.processes or () if not other.own]
    for device, process in used[:1]:
        text = f"device {device.local_index} is used by process {process.pid} ({process.name or process.command})"
        yield HostFinding(state="unchecked", text=text, action="wait for its end; a preflight opens idle devices only")


def _compare(
    hosts: Mapping[int, FleetHost], what: str, read: Callable[[FleetHost], str], action: str
) -> Iterator[tuple[int, HostFinding]]:
    """Yields the hosts that differ from most others; all of them where there is no majority."""
    found = {place: read(host) for place, host in hosts.items()}
    counts = Counter(found.values()).most_common()
    if len(counts) < 2:
        return
    (usual, count), is_clear = counts[0], 2 * counts[0][1] > len(found)
    for place, value in found.items():
        if not is_clear:
            yield place, HostFinding(state="unchecked", text=f"{what}: it has {value}, others not", action=action)
        elif value != usual:
            text = f"{what}: it has {value}, {count} others {usual}"
            yield place, HostFinding(state="fault", text=text, action=action)


def _list(host: FleetHost) -> Devices:
    assert host.devices is not None
    return host.devices
