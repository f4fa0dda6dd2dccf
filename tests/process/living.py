"""What tests of a living agent ask of the operating system and of its runs: children, memory, open files, states.

Knows /proc (proc(5)) and the routes of runs; starts nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any, Final

import httpx

from tests.agents import RunningAgent, wait_for

QUICK: Final[dict[str, Any]] = {"cases": ["host_to_device"], "sizes_bytes": [65536], "samples": 3}
"""A bench that is over in a moment."""
LONG: Final[dict[str, Any]] = {"cases": ["all_reduce"], "sizes_bytes": [64 << 20], "samples": 1000, "max_s": 600}
"""A bench that no test waits for."""

RELEASE_LIMIT_S: Final = 2.0
LATE_S: Final = 5.0
"""By how much a machine that does other things may be late once; the median of `TRIES` keeps the limit itself."""
TRIES: Final = 3
FINAL: Final = {"succeeded", "failed", "cancelled"}


# ---- processes ------------------------------------------------------------------------------------------------------


def list_children(pid: int) -> set[int]:
    """Returns the processes that descend from `pid` and still live (a zombie does not)."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def list_own_children(pid: int) -> set[int]:
    """Returns the living processes whose parent is `pid`: not those that an agent of other tests starts meanwhile."""
    grown = {each: list_children(each) for each in list_children(pid)}
    return set(grown) - {below for each in grown.values() for below in each}


def find_children(agent: RunningAgent, kind: str) -> set[int]:
    """Returns the children of a kind, "device", "probe", "planner" or "compiler", by what `ps` shows of them."""
    found = set()
    module = "compiling" if kind == "compiler" else f"children.{kind}"
    for pid in list_children(agent.pid):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def is_alive(pid: int) -> bool:
    """Returns whether the process is there and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def list_open_files(pid: int) -> set[str]:
    """Returns what the descriptors of a process lead to."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(str(link.readlink()))
    return found


def list_mapped_files(pid: int) -> set[str]:
    """Returns the files in the address space of a process: its shared libraries among them."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}


def read_rss_bytes(pid: int) -> int:
    """Returns the resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def stop_process(pid: int) -> None:
    """Stops a process (SIGSTOP): it is there and does nothing, as in a hung driver.

    Waits until each of its threads has stopped, 60 ms on busy cores: until then one may still hear its socket and exit.
    """

    def has_stopped() -> bool:
        states = set()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
        return states == {"T"}

    os.kill(pid, signal.SIGSTOP)
    wait_for(has_stopped, limit_s=10)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stops a process for the length of the block."""
    stop_process(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def plant_jax(folder: Path, text: str) -> str:
    """Returns a PYTHONPATH under which `import jax` does what `text` says."""
    (folder / "jax").mkdir(parents=True)
    (folder / "jax" / "__init__.py").write_text(text)
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


# ---- the agent ------------------------------------------------------------------------------------------------------


def ask(agent: RunningAgent, path: str) -> Any:
    """Returns what a route answers, which must be 200."""
    reply = httpx.get(f"{agent.url}{path}", timeout=30)
    assert reply.status_code == 200, reply.text
    return reply.json()


def read_worker(agent: RunningAgent) -> dict[str, Any]:
    """Returns the device worker as /devices shows it."""
    worker: dict[str, Any] = ask(agent, "/devices")["worker"]
    return worker


def worker_pid(agent: RunningAgent) -> int:
    """Returns the process id of the device worker, which must run."""
    pid = read_worker(agent)["pid"]
    assert isinstance(pid, int), read_worker(agent)
    return pid


def read_component(agent: RunningAgent, name: str) -> dict[str, Any]:
    """Returns one component of /health; empty if it is not listed."""
    return next((part for part in ask(agent, "/health")["components"] if part["name"] == name), {})


def await_state(agent: RunningAgent, name: str, state: str, *, limit_s: float = 30.0) -> dict[str, Any]:
    """Returns a component of /health once it has this state."""
    wait_for(lambda: read_component(agent, name).get("state") == state, agent, limit_s=limit_s)
    return read_component(agent, name)


def await_newer_look(agent: RunningAgent, name: str) -> dict[str, Any]:
    """Returns a component once it has been looked at again; or at all, if it never was."""
    before = read_component(agent, name)["observed_at"] or ""
    wait_for(lambda: (read_component(agent, name)["observed_at"] or "") > before, agent, limit_s=30)
    return read_component(agent, name)


def time_release(agent: RunningAgent) -> tuple[dict[str, Any], float]:
    """Returns the answer to a release, and how long it took as the caller sees it."""
    began_s = time.monotonic()
    reply = httpx.post(f"{agent.url}/devices/release", timeout=30)
    duration_s = time.monotonic() - began_s
    assert reply.status_code == 200, reply.text
    return reply.json(), duration_s


def release(agent: RunningAgent) -> dict[str, Any]:
    """Returns the answer to a release, which must come in time."""
    answer, duration_s = time_release(agent)
    assert duration_s < RELEASE_LIMIT_S + LATE_S
    return answer


# ---- runs -----------------------------------------------------------------------------------------------------------


def post_bench(agent: RunningAgent, body: dict[str, Any]) -> httpx.Response:
    """Sends a bench."""
    return httpx.post(f"{agent.url}/placement/bench", json=body, timeout=30)


def submit(agent: RunningAgent, body: dict[str, Any]) -> str:
    """Returns the id of a bench that was taken."""
    reply = post_bench(agent, body)
    assert reply.status_code == 202, reply.text
    run_id: str = reply.json()["id"]
    return run_id


def read_run(agent: RunningAgent, run_id: str) -> dict[str, Any]:
    """Returns a run as it stands."""
    run: dict[str, Any] = ask(agent, f"/runs/{run_id}")
    return run


def await_end(agent: RunningAgent, run_id: str, *, limit_s: float = 60.0) -> dict[str, Any]:
    """Returns a run once it has ended."""
    wait_for(lambda: read_run(agent, run_id)["state"] in FINAL, agent, limit_s=limit_s)
    return read_run(agent, run_id)


def start_long_bench(agent: RunningAgent, **fields: Any) -> str:
    """Returns the id of a bench that runs now, in a worker that has begun to measure, and will not end by itself."""
    wait_for(lambda: read_component(agent, "driver")["observed_at"], agent, limit_s=60)  # else a bench must be small
    run_id = submit(agent, LONG | fields)
    wait_for(lambda: read_run(agent, run_id)["progress"] is not None, agent, limit_s=60)
    assert read_run(agent, run_id)["state"] == "running"
    return run_id


def do_bench(agent: RunningAgent) -> dict[str, Any]:
    """Returns a small bench after it has succeeded."""
    run = await_end(agent, submit(agent, QUICK))
    assert run["state"] == "succeeded", run["error"]
    return run


def kill_until_it_stays_down(agent: RunningAgent, states: Set[str] = frozenset({"ready", "busy"})) -> None:
    """Kills the device worker each time that it is in one of these states, until the agent no longer starts it."""
    deadline_s = time.monotonic() + 60
    while (worker := read_worker(agent))["state"] != "failed":
        assert time.monotonic() < deadline_s, worker
        if worker["state"] in states and worker["pid"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker["pid"], signal.SIGKILL)
        time.sleep(0.1)


def fill_queue(post: Callable[[int], httpx.Response]) -> tuple[list[str], httpx.Response]:
    """Sends runs until one is refused; returns the ids of those that wait, and the refusal, which says how many may."""
    replies = [post(0)]
    while replies[-1].status_code == 202:
        replies.append(post(len(replies)))
    *taken, refused = replies
    assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["detail"].startswith(f"{len(taken)} runs wait; at most {len(taken)} may")
    return [reply.json()["id"] for reply in taken], refused


def parse_events(text: str) -> list[dict[str, Any]]:
    """Returns the events of an SSE text, each with `id`, `event` and its data."""
    events = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in fields:
            events.append({**fields, "data": json.loads(fields["data"])})
    return events


# ---- leases ---------------------------------------------------------------------------------------------------------


def end_leases(agent: RunningAgent) -> None:
    """Ends all leases, so that the next test finds the devices free."""
    for lease in ask(agent, "/leases")["leases"]:
        httpx.delete(f"{agent.url}/leases/{lease['id']}", timeout=30).raise_for_status()
