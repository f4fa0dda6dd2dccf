"""Who is on the card, and whether it is given back: at rest, by a release, a lease, a kill; beside others."""

from __future__ import annotations

import random
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

from tests.agents import RunningAgent, wait_for
from tests.device.bed import (
    IDLE_S,
    TOLERANCE_BYTES,
    Bed,
    PeakOfCards,
    await_baseline,
    await_looked,
    await_stopped,
    count_used,
    hold_card,
    list_pids,
    start_bench,
)
from tests.device.gil import forget, is_deaf, is_granted, plant_hang, wish_hang
from tests.device.record import Finding
from tests.device.smi import SmiCard
from tests.process.living import (
    RELEASE_LIMIT_S,
    ask,
    await_end,
    do_bench,
    is_alive,
    list_children,
    list_mapped_files,
    list_open_files,
    post_bench,
    read_run,
    read_worker,
    submit,
    time_release,
    worker_pid,
)

FEW_BYTES: Final = 2 << 20
"""In which nvidia-smi rounds."""
GONE_S: Final = 5.0
QUICK_BYTES: Final = 2 << 30
"""Arrays of the quick suite on one device, at most. An H100 had 1,072 MiB, with those of XLA's search for kernels."""
CONTEXT_BYTES: Final = 1 << 30
"""What CUDA's context and libraries take of a card, beside arrays: an H100 had 774 MiB."""
_QUICK: Final[dict[str, Any]] = {"cases": ["matmul", "memory_bandwidth", "host_to_device"]}
_SMALL: Final[dict[str, Any]] = {"sizes_bytes": [1 << 20], "matmul_size": 128, "samples": 3}


def holds(name: str, is_so: bool, note: str = "") -> Finding:
    """Returns the finding of something that is so, or is not."""
    return Finding(name, is_so, is_so, rule="True", note=note)


def find_memory(bed: Bed, before: tuple[SmiCard, ...], name: str) -> Finding:
    """Returns whether the memory of the cards comes back."""
    late_s, more = await_baseline(bed, before)
    return Finding(name, more, more <= TOLERANCE_BYTES, "B", "≤ 64 MiB", f"{late_s:.1f} s later")


def take_lease(agent: RunningAgent, *, ttl_s: int) -> httpx.Response:
    """Takes a lease of all devices, under a new id."""
    body = {"purpose": "a job", "ttl_s": ttl_s}
    return httpx.put(f"{agent.url}/leases/{uuid.uuid4().hex}", json=body, timeout=30)


def check_rest(bed: Bed) -> Iterator[Finding]:
    """An agent whose worker is away: no device file, no library of the driver, no context, no memory."""
    before = bed.read_cards()
    began_s = time.monotonic()
    with bed.start_agent(idle_release_s="1") as agent:
        yield Finding("start to ready", time.monotonic() - began_s, unit="s")
        if bed.is_gpu:
            await_looked(agent)
            yield Finding("worker gone by itself after", await_stopped(agent), unit="s", note="it took JAX's view once")
        files = [file for file in list_open_files(agent.pid) if file.startswith(("/dev/nvidia", "/dev/dri"))]
        yield Finding("device files open in the agent", len(files), not files, rule="0", note=", ".join(files))
        maps = [file for file in list_mapped_files(agent.pid) if "libcuda" in file or "libnvidia" in file]
        yield Finding("driver libraries in the agent", len(maps), not maps, rule="0", note=", ".join(maps))
        if bed.is_gpu:
            _, more = await_baseline(bed, before)
            own = {agent.pid, *list_children(agent.pid)} & list_pids(bed.read_cards())
            yield Finding("contexts of agent and children", len(own), not own, rule="0", note="by nvidia-smi")
            rule = "0, as nvidia-smi rounds"
            yield Finding("memory of the card, against before the agent", more, abs(more) <= FEW_BYTES, "B", rule)


def check_quick(bed: Bed) -> Iterator[Finding]:
    """A worker on demand for a quick bench, and what that takes of the card."""
    before = bed.read_cards()
    with bed.start_agent(idle_release_s="60") as agent:
        time_release(agent)
        began_s = time.monotonic()
        do_bench(agent)
        yield Finding("first bench, with the worker's start", time.monotonic() - began_s, unit="s")
        with PeakOfCards(bed) as peak:
            body = _QUICK if bed.is_gpu else {**_QUICK, **_SMALL}
            run = await_end(agent, submit(agent, body), limit_s=90)
        state, note = run["state"], str(run["error"] or "")
        yield Finding("quick bench", state, state == "succeeded", rule="succeeded", note=note)
        if bed.is_gpu:
            more, rule = peak.bytes - count_used(before), "≤ 2 GiB and a context's 1 GiB"
            yield Finding("memory of the card at most", more, more <= QUICK_BYTES + CONTEXT_BYTES, "B", rule, "by NVML")


def check_release(bed: Bed) -> Iterator[Finding]:
    """Releases at random moments of a bench."""
    chance, before = random.Random(0), bed.read_cards()
    with bed.start_agent() as agent:
        for number in range(1, bed.tries + 1):
            start_bench(agent, bed.long_bench)
            time.sleep(chance.uniform(0.0, 2.0))
            yield from _release(bed, agent, before, f"release {number} in a bench")
        yield from _release(bed, agent, before, "release of nothing")


def check_release_from_gil(bed: Bed) -> Iterator[Finding]:
    """Releases of a worker that holds the GIL, ignores SIGTERM, and has a bench under way."""
    before = bed.read_cards()
    with tempfile.TemporaryDirectory(prefix="mw-") as name:
        folder = Path(name)
        settings = {**bed.settings, "PYTHONPATH": plant_hang(folder)}
        with Bed(bed.platform, bed.tries, settings).start_agent() as agent:
            for number in range(1, max(2, bed.tries // 2) + 1):
                start_bench(agent, bed.long_bench)
                pid = worker_pid(agent)
                wish_hang(folder)
                wait_for(lambda: is_granted(folder), agent, limit_s=20)
                yield holds(f"worker {number} ignores SIGTERM", is_deaf(pid))
                forget(folder)
                yield from _release(bed, agent, before, f"release {number} from the GIL", killed=True)


def _release(bed: Bed, agent: RunningAgent, before: Any, name: str, killed: bool | None = None) -> Iterator[Finding]:
    pid = read_worker(agent)["pid"]
    answer, duration_s = time_release(agent)
    ok, note = duration_s <= RELEASE_LIMIT_S and answer["released"], f"killed: {answer['worker_killed']}"
    yield Finding(name, duration_s, ok, "s", f"≤ {RELEASE_LIMIT_S:g} s", note)
    if killed is not None:
        was_killed = answer["worker_killed"]
        yield Finding(f"{name}: it had to be killed", was_killed, was_killed is killed, rule=str(killed))
    if pid is not None:
        yield holds(f"{name}: process gone", not is_alive(pid))
    if bed.is_gpu:
        yield find_memory(bed, before, f"{name}: memory against before")


def check_owners(bed: Bed) -> Iterator[Finding]:
    """A foreign process with a context is named, and keeps benches off."""
    with bed.start_agent() as agent:
        await_looked(agent)
        time_release(agent)
        with hold_card() as (pid, command):
            reply = post_bench(agent, {})
            problem = reply.json()
            rule = "409 device_busy"
            found = f"{reply.status_code} {problem.get('code')}"
            yield Finding("bench beside it", found, found == rule, rule=rule, note=str(problem.get("detail")))
            said = str(problem.get("detail"))
            yield holds("… names process and command", str(pid) in said and command in said)
            time.sleep(2.0)
            listed = [each for device in ask(agent, "/devices")["devices"] for each in device["processes"] or ()]
            seen: dict[str, Any] = next((each for each in listed if each["pid"] == pid), {})
            told = str(seen.get("command"))
            yield Finding("/devices: command of the holder", told, command in told, rule=command)
            yield Finding("/devices: its memory", seen.get("used_bytes"), bool(seen.get("used_bytes")), "B", "told")
            yield Finding("/devices: its container", seen.get("container"), note="none is right outside one")
            yield holds("/devices: it is not ours", seen.get("own") is False)
            answer, duration_s = time_release(agent)
            is_held = any(each["pid"] == pid for each in answer["holders"] or ())
            yield holds("a release names it", is_held, f"{duration_s:.2f} s")


def check_lease(bed: Bed) -> Iterator[Finding]:
    """A lease ends a bench and the worker within the bound of a release."""
    before = bed.read_cards()
    with bed.start_agent() as agent:
        for number in range(1, max(2, bed.tries // 2) + 1):
            run_id, pid = start_bench(agent, bed.long_bench), worker_pid(agent)
            began_s = time.monotonic()
            reply = take_lease(agent, ttl_s=120)
            duration_s = time.monotonic() - began_s
            assert reply.status_code in {200, 201}, reply.text
            lease = reply.json()
            gone = lease["cancelled_runs"] == [run_id] and read_run(agent, run_id)["state"] == "cancelled"
            ok = duration_s <= RELEASE_LIMIT_S and gone
            yield Finding(f"lease {number} in a bench", duration_s, ok, "s", "≤ 2 s")
            if bed.is_gpu:
                yield holds(f"lease {number}: worker gone", not is_alive(pid))
                yield find_memory(bed, before, f"lease {number}: memory")
            httpx.delete(f"{agent.url}/leases/{lease['id']}", timeout=30)


def check_kill(bed: Bed) -> Iterator[Finding]:
    """SIGKILL of the agent in a bench leaves no process, none on the card, and no memory."""
    before = bed.read_cards()
    for number in range(1, max(2, bed.tries // 2) + 1):
        with bed.start_agent() as agent:
            start_bench(agent, bed.long_bench)
            children = list_children(agent.pid)
            agent.kill()
            began_s = time.monotonic()
            while any(map(is_alive, children)) and time.monotonic() - began_s < GONE_S:
                time.sleep(0.02)
            left = [pid for pid in children if is_alive(pid)]
            duration_s = time.monotonic() - began_s
            rule, note = f"≤ {GONE_S:g} s", f"{left} left"
            yield Finding(f"kill {number}: children gone after", duration_s, not left, "s", rule, note)
            if bed.is_gpu:
                memory = find_memory(bed, before, f"kill {number}: memory")
                own = sorted(children & list_pids(bed.read_cards()))
                yield Finding(f"kill {number}: contexts left", len(own), not own, rule="0")
                yield memory


def check_idle(bed: Bed) -> Iterator[Finding]:
    """The worker goes when it is idle, and the memory comes back."""
    before = bed.read_cards()
    with bed.start_agent(idle_release_s=str(IDLE_S)) as agent:
        do_bench(agent)
        duration_s = await_stopped(agent, limit_s=IDLE_S + 15)
        yield Finding("worker gone after", duration_s, duration_s <= IDLE_S + 3.0, "s", f"≤ {IDLE_S:g} s idle and 3 s")
        yield find_memory(bed, before, "memory against before")


def check_hold(bed: Bed) -> Iterator[Finding]:
    """`hold: always`: no idleness ends the worker; a release and a lease do; it is back after the lease."""
    with bed.start_agent(idle_release_s="1", hold="always") as agent:
        await_looked(agent)
        first = read_worker(agent)
        time.sleep(4.0)
        later = read_worker(agent)
        kept = later["state"] == "ready" and later["generation"] == first["generation"]
        yield holds("kept for four times the idle time", kept, str(later))
        reply = take_lease(agent, ttl_s=60)
        away = read_worker(agent)["state"]
        yield Finding("during a lease", away, away == "stopped", rule="stopped", note=str(reply.status_code))
        httpx.delete(f"{agent.url}/leases/{reply.json()['id']}", timeout=30)
        began_s = time.monotonic()
        wait_for(lambda: read_worker(agent)["state"] == "ready", agent, limit_s=60)
        yield Finding("back after the lease", time.monotonic() - began_s, True, "s", "comes back")
        time_release(agent)
        time.sleep(3.0)
        away = read_worker(agent)["state"]
        yield Finding("three looks after a release", away, away == "stopped", rule="stopped")
