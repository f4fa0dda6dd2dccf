"""What the agent's process bears, and what a command costs; `python -m tests.bench.limits`.

The wait of other clients beside each kind of request, the memory under 512 bad clients, and the user CPU of commands
beside that of importing the libraries that they import.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import httpx

from tests.agents import RunningAgent, start_agent
from tests.bench.rows import Row, judge
from tests.faults.test_attack import CALM_S, CLIENTS, MAX_ATTACKED_BYTES, MAX_CALM_BYTES, attack_together
from tests.process.living import read_rss_bytes
from tests.process.polling import polling

STALL_S: Final = 0.05
TIMES: Final = 20
ROUNDS: Final = 21
CPU_TIMES: Final = 1.3
READ: Final = (
    "/devices", "/devices?format=text", "/health", "/health?format=text", "/events", "/environment", "/targets",
    "/leases", "/runs", "/placement/bench", "/mesh/plan?mesh=dp:2,tp:-1", "/batch-size?hardware=h100", "/metrics",
    "/openapi.json", "/",
)  # fmt: skip
SENT: Final = {
    "/mesh/plan": '{"mesh": "fsdp:-1", "target": "v5p:16x20x28", "include_devices": false}',
    "/mesh/search": '{"targets": ["1024*h100:8"], "model": "llama3-8b", "training": {"global_batch_size": 8192}, '
    '"include_devices": false}',
    "/batch-size": '{"pad": "' + "x" * ((1 << 18) - 11) + '"}',
}
JSON: Final = {"Content-Type": "application/json"}
COMMANDS: Final = (("health",), ("plan", "dp:8", "--offline", "--target", "h100:8"))
_IMPORT: Final = (
    "import contextlib, sys\nfor name in sys.argv[1:]:\n with contextlib.suppress(Exception): __import__(name)"
)


def measure_limits() -> Iterator[Row]:
    """Yields the rows, as they are measured."""
    with start_agent() as agent:
        yield _measure_stall(agent)
        for command in COMMANDS:
            yield _measure_user_cpu(agent, command)
    with start_agent(cpu_devices=2) as agent:
        yield from _measure_bad_clients(agent)


def _measure_stall(agent: RunningAgent) -> Row:
    """Asks for /healthz every 2 ms beside one request at a time."""
    worst: dict[str, float] = {}
    with httpx.Client(base_url=agent.url, timeout=120) as client:
        for path in (*READ, *SENT):
            with polling(agent, every_s=0.002) as waits:
                for _ in range(TIMES):
                    method = "POST" if path in SENT else "GET"
                    reply = client.request(method, path, content=SENT.get(path), headers=JSON)
                    assert reply.status_code == (422 if path == "/batch-size" else 200), reply.text
            worst[path] = max(waits)
    longest = sorted(worst, key=lambda path: worst[path], reverse=True)
    note = ", ".join(f"{worst[path] * 1e3:.0f} ms beside {path}" for path in longest[:3])
    note = judge(f"{note}; {len(worst)} kinds of requests", "50 ms", is_kept=worst[longest[0]] <= STALL_S)
    return ("longest wait of /healthz beside any one request", f"{worst[longest[0]] * 1e3:.0f} ms", note)


def _measure_bad_clients(agent: RunningAgent) -> Iterator[Row]:
    most_bytes, _ = asyncio.run(attack_together(agent))
    note = judge("headers, bodies, slow or no reading, silence", "300 MB", is_kept=most_bytes < MAX_ATTACKED_BYTES)
    yield (f"agent RSS under {CLIENTS} bad clients", f"{most_bytes / 1e6:.0f} MB", note)
    time.sleep(CALM_S)
    left_bytes = read_rss_bytes(agent.pid)
    note = judge("", "150 MB", is_kept=left_bytes < MAX_CALM_BYTES)
    yield (f"… {CALM_S:.0f} s later", f"{left_bytes / 1e6:.0f} MB", note)


def _measure_user_cpu(agent: RunningAgent, command: tuple[str, ...]) -> Row:
    """Compares a command with the imports of the same modules of others, in turns."""
    environ = {**os.environ, "MESHWRIGHT_URL": agent.url}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each round compiles what an installed package has compiled
    whole = [sys.executable, "-m", "meshwright", *command]
    subprocess.run(whole, env=environ, capture_output=True, check=True)
    told = subprocess.run([whole[0], "-X", "importtime", *whole[1:]], env=environ, capture_output=True, text=True)
    names = [line.rpartition("|")[2].strip() for line in told.stderr.splitlines() if line.startswith("import time:")][
        1:
    ]
    others = [whole[0], "-c", _IMPORT, *(name for name in names if not name.startswith(("meshwright", "__")))]
    taken = [(measure_user_s(whole, environ), measure_user_s(others, environ)) for _ in range(ROUNDS)]
    mine_s, others_s = (statistics.median(side) for side in zip(*taken, strict=True))
    ratio = statistics.median(mine / theirs for mine, theirs in taken)
    note = judge(f"{mine_s:.2f} s beside {others_s:.2f} s", "1.3 ×", is_kept=ratio <= CPU_TIMES)
    return (f"user CPU of `{' '.join(command[:1])}` ÷ its imports of others", f"{ratio:.2f} ×", note)


def measure_user_s(command: list[str], environ: dict[str, str]) -> float:
    """Returns the user CPU of a process, in seconds."""
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime


if __name__ == "__main__":
    for name, value, note in measure_limits():
        print(f"{name:<52} {value:>12}   {note}", flush=True)
