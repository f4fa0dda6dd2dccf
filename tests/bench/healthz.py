"""GET /healthz while the planner searches; `python -m tests.bench.healthz`.

Rounds take turns: nobody else asks; a client asks for searches back to back; a loop with the planner's niceness takes a
core and asks nothing. What the third costs is the machine's, what the second costs beyond it is the agent's. Where the
kernel allows it, rounds follow with agent and probe before all other processes: then only what keeps the agent's own
event loop is left. The probe is one kept-alive connection that sends at fixed times, far fewer than are answered.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import httpx

from tests.agents import start_agent
from tests.bench.load import Target, fetch
from tests.bench.rows import Row, run_rows, tell_rows
from tests.bench.strain import Done, Strain, start_strain

ROUNDS: Final = 10
ROUND_S: Final = 2.0
PERIOD_S: Final = 0.002
"""Between two requests: 1,000 of them in a round, so that its p99 is the tenth slowest."""
SETTLE_S: Final = 0.05
"""A load works for so long before the first request, and after the last."""
REAL_TIME: Final = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
"""Before all processes that share the cores by turns; children are not."""

Samples = list[list[float]]
"""Seconds of each answer, by round."""


@dataclass(frozen=True)
class Way:
    """One way to be asked.

    Attributes:
        strain: the load beside; None: there is none.
        policy: of the kernel's scheduler, for agent and probe.
    """

    strain: Strain | None = None
    policy: int = os.SCHED_OTHER


def bench_healthz() -> list[Row]:
    """Returns the rows, measured in a process of their own."""
    return run_rows("tests.bench.healthz", {})


def measure_rows() -> list[Row]:
    """Returns the rows, measured in this process."""
    about = ("/healthz: measured on", f"load {os.getloadavg()[0]:.1f}", f"{os.cpu_count()} cores; {ROUNDS} rounds")
    with start_agent() as agent:
        port = httpx.URL(agent.url).port
        assert port is not None
        with start_strain("searches", str(port)) as searches, start_strain("spin") as spin, Probe(port) as probe:
            ways = [Way(), Way(searches), Way(spin)]
            ways += [Way(None, REAL_TIME), Way(searches, REAL_TIME)] if may_go_first(agent.pid) else []
            samples, done = measure_in_turns(probe, agent.pid, ways)
    return [about, *tell_shared(samples[:3], done[1]), *tell_first(samples[3:], done[3:])]


def tell_shared(samples: Sequence[Samples], done: Sequence[Done]) -> list[Row]:
    """Returns the rows of an agent that shares the cores."""
    alone, searched, spun = samples
    asked_s, count = statistics.median(each.median_s for each in done), sum(each.count for each in done)
    return [
        tell("/healthz alone: p99", alone, f"one request each {PERIOD_S * 1e3:.0f} ms"),
        tell("… while searches run", searched, f"{count} searches back to back, {asked_s * 1e3:.0f} ms each"),
        tell("… while a loop as nice as the planner runs", spun, "no searches"),
        compare("… searches beside alone", searched, alone, "budget: no change"),
        compare("… searches beside the loop", searched, spun, "the agent's own part"),
    ]


def tell_first(samples: Sequence[Samples], done: Sequence[Sequence[Done]]) -> list[Row]:
    """Returns the rows of an agent that goes before all other processes."""
    if not samples:
        return [("/healthz with no other process before the agent", "not measured", "the kernel forbids SCHED_FIFO")]
    alone, searched = samples
    count = sum(each.count for each in done[1])
    return [
        tell("/healthz alone, agent and probe first (SCHED_FIFO)", alone, "the machine's other work does not count"),
        tell("… while searches run", searched, f"{count} searches back to back"),
        compare("… searches beside alone", searched, alone, "what keeps the event loop; budget: no change"),
    ]


def may_go_first(pid: int) -> bool:
    """Returns whether the kernel lets us put a process and this one before all others."""
    try:
        set_policy(REAL_TIME, pid)
    except PermissionError:
        return False
    set_policy(os.SCHED_OTHER, pid)
    return True


def set_policy(policy: int, pid: int) -> None:
    """Schedules the main threads of a process and of this one by a policy of the kernel's."""
    is_first = policy == REAL_TIME
    for each in (pid, 0):
        os.sched_setscheduler(each, policy, os.sched_param(1 if is_first else 0))


def measure_in_turns(probe: Probe, pid: int, ways: Sequence[Way]) -> tuple[list[Samples], list[list[Done]]]:
    """Returns the seconds of each answer each way, and what the loads did meanwhile."""
    samples: list[Samples] = [[] for _ in ways]
    done: list[list[Done]] = [[] for _ in ways]
    probe.send_for(ROUND_S)
    for _ in range(ROUNDS):
        for way, rounds, ends in zip(ways, samples, done, strict=True):
            if way.policy != os.SCHED_OTHER:
                set_policy(way.policy, pid)
            rounds.append(measure_round(probe, way.strain, ends))
            if way.policy != os.SCHED_OTHER:
                set_policy(os.SCHED_OTHER, pid)
    return samples, done


def measure_round(probe: Probe, strain: Strain | None, ends: list[Done]) -> list[float]:
    """Returns the seconds of each answer of one round; what its load did is added to `ends`."""
    if strain is None:
        return probe.send_for(ROUND_S)
    strain.begin(ROUND_S + 2 * SETTLE_S)
    time.sleep(SETTLE_S)
    taken = probe.send_for(ROUND_S)
    ends.append(strain.end())
    return taken


class Probe:
    """One kept-alive connection that asks for /healthz at fixed times."""

    def __init__(self, port: int) -> None:
        target = Target("healthz", port, "/healthz")
        self._request, self._body = target.request, fetch(target)
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_for(self, seconds: float) -> list[float]:
        """Returns how long each answer took; a request whose time has passed is sent at once."""
        first_s, taken = time.perf_counter(), []
        for number in range(round(seconds / PERIOD_S)):
            time.sleep(max(0.0, first_s + number * PERIOD_S - time.perf_counter()))
            began_s = time.perf_counter()
            self._ask()
            taken.append(time.perf_counter() - began_s)
        return taken

    def _ask(self) -> None:
        self._socket.sendall(self._request)
        answer = b""
        while not answer.endswith(self._body):
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("the agent closed the connection")
            answer += piece


def find_p99(seconds: Sequence[float]) -> float:
    """Returns what 99 of 100 stay below."""
    return statistics.quantiles(seconds, n=100)[98]


def tell(name: str, samples: Samples, note: str) -> Row:
    """Returns the p99 of the median round, with the median and the worst of all answers."""
    middle_s, worst_s = statistics.median(chain(*samples)), max(map(max, samples))
    p99_s = statistics.median(map(find_p99, samples))
    return (name, f"{p99_s * 1e3:.2f} ms", f"median {middle_s * 1e3:.2f}, worst {worst_s * 1e3:.1f} ms; {note}")


def compare(name: str, samples: Samples, others: Samples, note: str) -> Row:
    """Returns the median over the rounds of one p99 ÷ the other, with that of the medians."""
    p99, middle = (divide(samples, others, of) for of in (find_p99, statistics.median))
    return (name, f"p99 {p99:.2f} ×", f"median {middle:.2f} ×; {note}")


def divide(samples: Samples, others: Samples, of: Callable[[Sequence[float]], float]) -> float:
    """Returns the median over the rounds, which stand side by side, of a figure of one ÷ that of the other."""
    return statistics.median(of(one) / of(other) for one, other in zip(samples, others, strict=True))


if __name__ == "__main__":
    tell_rows(measure_rows, bench_healthz)
