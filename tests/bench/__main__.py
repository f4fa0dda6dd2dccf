"""`make bench`: the budgets of the design, measured in one run and printed as a table. It tells, it does not judge.

A comparison is between two servers in the same run, as a ratio of medians over rounds that take turns.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path

import httpx

from meshwright import Client
from tests.agents import RunningAgent, start_agent
from tests.bench.compiling import bench_compiling
from tests.bench.limits import measure_limits
from tests.bench.mesh import bench_create_mesh
from tests.bench.planner import bench_planner
from tests.bench.prefetch import bench_prefetch
from tests.bench.rows import judge, time_in_turns
from tests.bench.searching import bench_searching
from tests.bench.traffic import RESTART_S, measure_traffic
from tests.process.living import read_rss_bytes


def main() -> None:
    """Runs all parts."""
    print(f"# make bench: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    began_s = time.perf_counter()
    with start_agent() as agent:
        ready_s = time.perf_counter() - began_s
        note = judge("8 virtual CPU devices, jax imported", f"{RESTART_S:g} s", is_kept=ready_s <= RESTART_S)
        tell("start to ready", f"{ready_s:.2f} s", note)
        bench_memory(agent)
        bench_client(agent)
        bench_release(agent)
    library = (bench_prefetch, bench_create_mesh, bench_planner, bench_searching)
    for rows in (*library, measure_traffic, measure_limits, bench_compiling):
        for name, value, note in rows():
            tell(name, value, note)


def tell(name: str, value: str, note: str = "") -> None:
    """Prints one line of the table."""
    print(f"{name:<44} {value:>18}   {note}")


def bench_memory(agent: RunningAgent) -> None:
    """The agent process at rest: memory, CPU share, descriptors."""
    rss_bytes = read_rss_bytes(agent.pid)
    before, seconds = _cpu_seconds(agent.pid), 20.0
    time.sleep(seconds)
    share = (_cpu_seconds(agent.pid) - before) / seconds
    tell("agent RSS at rest", f"{rss_bytes / 1e6:.1f} MB", "budget 90 MB")
    tell("agent CPU at rest", f"{share * 100:.2f} % of a core", "budget 1 % (agent process; probes counted below)")
    children = _cpu_seconds(agent.pid, children=True)
    tell("ended probes so far", f"{children:.2f} s CPU", "cumulative, one every probe_interval_s")


def _cpu_seconds(pid: int, *, children: bool = False) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    first = 13 if children else 11
    return sum(int(value) for value in fields[first : first + 2]) / os.sysconf("SC_CLK_TCK")


def bench_client(agent: RunningAgent) -> None:
    """What the typed client adds to raw httpx, per call."""
    with Client(agent.url) as client, httpx.Client(base_url=agent.url, trust_env=False) as raw:
        plan, mesh = (lambda: raw.post("/mesh/plan", json={"mesh": mesh}).json()), "dp:2,tp:-1"
        for name, typed, plain in (
            ("devices()", client.devices, lambda: raw.get("/devices").json()),
            ("plan()", lambda: client.plan(mesh), plan),
        ):
            a, b = time_in_turns((None, typed), (None, plain), rounds=300)
            note = f"raw httpx and json {b * 1e3:.2f} ms; adds {(a - b) * 1e6:.0f} µs"
            tell(f"client {name}", f"{a * 1e3:.2f} ms", note)


def bench_release(agent: RunningAgent, tries: int = 5) -> None:
    """Time from POST /devices/release to a worker that is gone, and from there to ready again."""
    took, back = [], []
    with Client(agent.url, timeout=60) as client:
        for _ in range(tries):
            began_s = time.perf_counter()
            release = client.release()
            took.append(time.perf_counter() - began_s)
            assert release.released, release
            began_s = time.perf_counter()
            client.bench(cases=["host_to_device"], sizes_bytes=[1 << 20], samples=3)
            back.append(time.perf_counter() - began_s)
    tell("release to devices free", f"{max(took):.2f} s", f"worst of {tries}; budget 2 s")
    tell("first bench after a release", f"{statistics.median(back):.2f} s", "median; a new worker starts")


if __name__ == "__main__":
    main()
