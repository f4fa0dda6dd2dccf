"""The load: actors that ask one kind of thing again and again, each in a thread, and what they were answered.

Rule: an answer is expected, or it is a finding. Expected are successes, and refusals that this very load causes: a full
queue, a worker that was killed, a run that was cancelled. Actors know HTTP and nothing of each other.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.agents import RunningAgent
from tests.process.living import FINAL, LONG, QUICK

EXPECTED: Final = {
    "queue_full", "worker_failed", "run_cancelled", "not_ready", "bench_too_large", "device_leased", "device_busy",
    "not_found",
}  # fmt: skip
"""Codes of refusals that this load brings about."""
MESHES: Final = ("dp:2", "dp:-1", "dp:2,tp:-1", "x:1,y:2,z:-1", "dp:3")
TARGETS: Final = ("v5e:16x16", "v5p:4x4x4", "8*h100:8")
KILL_EVERY_S: Final = (4.0, 12.0)
RELEASE_MOST_S: Final = 4.0
"""Twice the bound of a release: the load itself keeps the machine busy. How many were over the bound is told."""

Actor = Callable[["Load", httpx.Client, random.Random], None]


class Load:
    """Actors in threads, until `stop`; counts what they did and keeps what was not expected.

    Attributes:
        counts: by actor and outcome, how often.
        findings: answers that nothing of this load explains.
        killed: workers that were killed.
        releases_s: how long each release took.
    """

    def __init__(self, agent: RunningAgent) -> None:
        self.agent = agent
        self.counts: Counter[tuple[str, str]] = Counter()
        self.findings: list[str] = []
        self.killed = 0
        self.releases_s: list[float] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._act, args=(name, actor, random.Random(name)))
            for name, actor in ACTORS.items()
        ]

    def start(self) -> None:
        """Lets the actors act."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Lets each actor end what it does."""
        self.ended.set()
        for thread in self._threads:
            thread.join(timeout=120)

    def _act(self, name: str, actor: Actor, chance: random.Random) -> None:
        with httpx.Client(base_url=self.agent.url, timeout=60) as http:
            while not self.ended.is_set():
                try:
                    actor(self, http, chance)
                except httpx.HTTPError as error:
                    self.note(name, "no answer", f"{type(error).__name__}: {error}")
                self.ended.wait(chance.uniform(0.01, 0.2))

    def take(self, actor: str, reply: httpx.Response) -> Any:
        """Counts an answer, keeps one that is not expected, and returns its content."""
        content = reply.json() if "json" in reply.headers.get("content-type", "") else {}
        if reply.status_code < 400 or (reply.status_code == 422 and actor == "plans"):
            self.note(actor, "answered")
        else:
            code = str(content.get("code"))
            self.note(actor, code, "" if code in EXPECTED else f"{reply.status_code} {reply.text[:300]}")
        return content

    def note(self, actor: str, outcome: str, finding: str = "") -> None:
        """Counts an outcome; with words, it is a finding."""
        with self._lock:
            self.counts[actor, outcome] += 1
            if finding:
                self.findings.append(f"{actor}: {finding}")


# ---- actors ---------------------------------------------------------------------------------------------------------


def read(load: Load, http: httpx.Client, chance: random.Random) -> None:
    path = chance.choice(("/healthz", "/devices", "/health", "/metrics", "/runs", "/placement/bench", "/environment"))
    load.take("reads", http.get(path))


def plan(load: Load, http: httpx.Client, chance: random.Random) -> None:
    wanted = {"mesh": chance.choice(MESHES)}
    if chance.random() < 0.2:
        wanted["target"] = chance.choice(TARGETS)
    load.take("plans", http.post("/mesh/plan", json=wanted))


def size_batch(load: Load, http: httpx.Client, chance: random.Random) -> None:
    asked = {"hardware": "h100", "per_device_batch_size": chance.randint(1, 4096)}
    load.take("batch sizes", http.get("/batch-size", params=asked))


def bench(load: Load, http: httpx.Client, chance: random.Random) -> None:
    run = load.take("benches", http.post("/placement/bench", json=QUICK))
    while "id" in run and run["state"] not in FINAL and not load.ended.is_set():
        load.ended.wait(0.1)
        run = load.take("benches", http.get(f"/runs/{run['id']}"))
    failed = (run.get("error") or {}).get("code") if run.get("state") == "failed" else None
    if failed and failed not in EXPECTED:
        load.note("benches", "failed", str(run["error"])[:300])


def cancel(load: Load, http: httpx.Client, chance: random.Random) -> None:
    run = load.take("cancels", http.post("/placement/bench", json={**LONG, "sizes_bytes": [1 << 20]}))
    if "id" in run:
        load.ended.wait(chance.uniform(0, 2))
        load.take("cancels", http.delete(f"/runs/{run['id']}"))


def listen(load: Load, http: httpx.Client, chance: random.Random) -> None:
    """Follows a run's events for a moment, and goes away in the midst."""
    runs = load.take("listeners", http.get("/runs?limit=3")).get("runs", [])
    if not runs:
        return
    leaves_s = time.monotonic() + chance.uniform(0, 3)
    with (
        contextlib.suppress(httpx.ReadTimeout),
        http.stream("GET", f"/runs/{chance.choice(runs)['id']}/events", timeout=1.0) as stream,
    ):
        for _ in stream.iter_raw():
            if time.monotonic() > leaves_s:
                break
    load.note("listeners", "left")


def release(load: Load, http: httpx.Client, chance: random.Random) -> None:
    load.ended.wait(chance.uniform(3, 12))
    began_s = time.monotonic()
    answer = load.take("releases", http.post("/devices/release"))
    duration_s = time.monotonic() - began_s
    if "released" in answer:
        load.releases_s.append(duration_s)
    if not answer.get("released", True) or duration_s > RELEASE_MOST_S:
        load.note("releases", "late", str(answer)[:300])


def reserve(load: Load, http: httpx.Client, chance: random.Random) -> None:
    """Leases a device or all, which preempts a bench; gives it back, or lets it run out."""
    load.ended.wait(chance.uniform(1, 6))
    wanted = {"devices": chance.choice(("all", [0], [1, 2])), "purpose": "soak", "ttl_s": chance.uniform(0.2, 2)}
    wanted["preemptible"] = chance.random() < 0.3
    lease = load.take("leases", http.put(f"/leases/soak-{chance.getrandbits(64):x}", json=wanted))
    if "id" in lease and chance.random() < 0.5:
        load.ended.wait(chance.uniform(0, 1))
        load.take("leases", http.delete(f"/leases/{lease['id']}"))


def kill(load: Load, http: httpx.Client, chance: random.Random) -> None:
    """Kills the device worker, whatever it does; waits for one where none lives: after a release, under a lease."""
    load.ended.wait(chance.uniform(*KILL_EVERY_S))
    while not load.ended.wait(0.1):
        pid = load.take("kills", http.get("/devices")).get("worker", {}).get("pid")
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV)))
                load.killed += 1
            return


ACTORS: Final[dict[str, Actor]] = {
    "reads": read, "plans": plan, "batch sizes": size_batch, "benches": bench, "cancels": cancel, "listeners": listen,
    "releases": release, "leases": reserve, "kills": kill,
}  # fmt: skip
