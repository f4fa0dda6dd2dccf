"""The hosts that are asked: real agents in front of recorded machines, of faults, of simulated targets; and a job.

Each is started once and serves every request that names it. What a host is asked may
not change what it answers to others: a lease or a fault that replies show is made when the host is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import httpx

import tests
from tests.agents import RunningAgent, start_agent, wait_for
from tests.fakes.tree import RECORDED, plant_host
from tests.fakes.well import WELL, write_record, xid
from tests.golden.replies import Golden
from tests.tokens import add_token

ROOT: Final = Path(tests.__file__).parents[1]
BIN: Final = Path(sys.executable).parent
AT_ONCE: Final = 3
"""Hosts that are started at a time."""

H100: Final = tuple(gpu["uuid"] for gpu in json.loads((RECORDED / "dgx-h100/nvml.json").read_text())["gpus"])
ADDRESSES: Final = ("0000:1b:00", "0000:43:00", "0000:52:00", "0000:61:00", "0000:9d:00", "0000:c3:00", "0000:d1:00")
ONE_LOOK: Final = {"PROBE_INTERVAL_S": "1200"}
"""One look, when the agent starts, and nothing grows old however slow the machine is."""
WITH_JAX: Final = (("driver", "healthy"), ("worker", "healthy"), ("device:7", "healthy"))
SEEN: Final = {"healthy", "degraded", "unhealthy", "unknown"}
SECRETS: Final = {"prometheus": "read", "slurm": "operate", "root": "admin"}
"""Name of a token → its scope; the secret is `mw_` and the name."""


@dataclass(frozen=True)
class Host:
    """How a host is made.

    Attributes:
        machine: a folder of tests/recorded; "" for this machine's own facts.
        gpus: index of a card → what its fake NVML says otherwise than that it is well; None: it is not there.
        fail: function of NVML → error code, as FakeNvml takes it.
        remove: paths of the recorded tree that are not there; `hang`: those that never answer.
        log: messages of the kernel.
        settings: of the agent, by their names without MESHWRIGHT_.
        settled: name and state of a component that is waited for; "": that it was looked at.
        first: requests that are made before all others: method, path, body.
    """

    machine: str = ""
    gpus: Mapping[int, Mapping[str, Any] | None] = field(default_factory=dict)
    fail: Mapping[str, int] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    hang: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    settled: tuple[tuple[str, str], ...] = (("inventory", ""),)
    first: tuple[tuple[str, str, Any], ...] = ()
    cpu_devices: int | None = None


def _on(machine: str, **fields: Any) -> Host:
    """A recorded machine whose JAX is not started: it has none for its hardware here."""
    settings = {"HOLD": "never", **fields.pop("settings", {})}
    return Host(machine, settings=settings, **fields)


def _simulate(target: str) -> Host:
    return Host(settings={"SIMULATE": target}, settled=(("driver", "unknown"),))


HOSTS: Final[Mapping[str, Host]] = {
    "cpu": Host("cpu-vm", cpu_devices=8, settled=WITH_JAX),
    **{name: _on(name) for name in sorted(path.name for path in RECORDED.iterdir() if (path / "tree.txt").exists())},
    "faults": _on(
        "dgx-h100",
        gpus={
            1: {"ecc": [3, 5]}, 2: {"remapped": [0, 2, 1, 0]}, 3: {"remapped": [0, 8, 0, 1]},
            4: {"temperature": 90, "clocks": 0x40}, 5: {"clocks": 0x80, "power": [350_000, 700_000]},
            6: {"pcie": [8, 16, 5, 5]}, 7: {"nvlinks": [None, *["switch"] * 17]},
        },
    ),
    "lost": _on(
        "dgx-h100",
        gpus={2: {"recovery": 1}, 3: {"temperature": 95}, 4: {"thresholds": None}},
        fail={f"nvmlDeviceGetHandleByIndex:{H100[0]}": 15, f"nvmlDeviceGetTotalEccErrors:{H100[1]}": 999},
    ),
    "xids": _on(
        "dgx-h100",
        log=(
            xid(ADDRESSES[0], 79, "pid=7, name=python3, GPU has fallen off the bus."),
            xid(ADDRESSES[1], 48),
            xid(ADDRESSES[2], 94),
            xid(ADDRESSES[3], 31, "pid=4242, name=python3, MMU Fault"),
            xid(ADDRESSES[4], 63),
            xid(ADDRESSES[5], 119),
            xid(ADDRESSES[6], 999),
        ),
        settled=((f"device:{H100[0]}", "unhealthy"), (f"device:{H100[5]}", "unhealthy"), ("inventory", "")),
    ),
    "acknowledged": _on(
        "dgx-h100",
        log=(xid(ADDRESSES[0], 48),),
        settled=((f"device:{H100[0]}", "unhealthy"), ("inventory", "")),
        first=(("POST", "/health/acknowledge", {"component": f"device:{H100[0]}", "reason": "card replaced"}),),
    ),
    "no driver": _on("dgx-h100", fail={"nvmlInit": 9}, settled=(("driver", "unhealthy"),)),
    "driver hangs": _on(
        "dgx-h100", hang=("proc/cpuinfo",), settings={"PROBE_TIMEOUT_S": "5"}, settled=(("driver", "unknown"),)
    ),
    "one missing": _on("dgx-h100", gpus={7: None}, settings={"EXPECT": "h100:8"}),
    "two domains": _on("gb200-nvl72", gpus={3: {"fabric": {"state": 3, "clique": 4027, "cluster": "00" * 16}}}),
    "chip gone": _on("tpu-v5p-4", remove=("sys/bus/pci/devices/0000:86:00.0",)),
    "leased": _on("dgx-h100", first=(("PUT", "/leases/slurm-4711", {"devices": [0, 1], "purpose": "slurm job 4711"}),)),
    "tokens": _on(
        "dgx-h100",
        settings={"TOKENS_FILE": "{folder}/tokens"},
    ),
    "simulated h100:8": _simulate("h100:8"),
    "simulated v5e:4x4": _simulate("v5e:4x4"),
}  # fmt: skip

JOB_HOST: Final = Host(cpu_devices=8, settled=WITH_JAX)


@dataclass(frozen=True)
class Asked:
    """A running host: what it answers, and the words in it that differ from run to run."""

    answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    words: Mapping[str, str]


class Hosts:
    """Hosts by name, each started once and stopped in the end, `AT_ONCE` at a time; requests are made through it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._contexts = {name: ask_job() if name == "job" else ask_agent(HOSTS[name]) for name in dict.fromkeys(names)}
        self._started = {name: self._pool.submit(each.__enter__) for name, each in self._contexts.items()}

    def answer(self, golden: Golden) -> str:
        """Returns the text of a request with the reply that it has now."""
        asked = self._started[golden.host].result()
        return golden.write(asked.answer(golden.asked), asked.words)

    def close(self) -> None:
        """Stops all that were started."""
        started = [name for name, future in self._started.items() if not future.cancel() and not future.exception()]
        for stopped in [self._pool.submit(self._contexts[name].__exit__, None, None, None) for name in started]:
            stopped.result()
        self._pool.shutdown()


# ---- agents ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def run_agent(host: Host) -> Iterator[tuple[RunningAgent, dict[str, str]]]:
    """Yields a settled agent with its own words."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        environment = build_environment(host, Path(folder))
        with start_agent(cpu_devices=host.cpu_devices, ready=False, **environment) as agent:
            settle(agent, host)
            own = {agent.url: "<url>", str(agent.state_dir.parent): "<home>", folder: "<folder>"}
            yield agent, own | build_words()


@contextlib.contextmanager
def ask_agent(host: Host) -> Iterator[Asked]:
    """Yields an agent as what answers requests of HTTP, and commands that are told its address."""
    with run_agent(host) as (agent, words), httpx.Client(base_url=agent.url, timeout=60) as client:
        yield Asked(lambda asked: answer(client, asked), words)


def build_words() -> dict[str, str]:
    """Returns what this machine and its installation are called in replies."""
    versions = [version(name) for name in ("meshwright", "jax", "jaxlib")] + [platform.python_version()]
    system = platform.freedesktop_os_release()["PRETTY_NAME"]
    names = {system: "<operating system>", platform.node(): "<host name>", f"uid:{os.geteuid()}": "uid:<user>"}
    return dict.fromkeys(versions, "<version>") | names


def build_environment(host: Host, folder: Path) -> dict[str, str]:
    """Returns the environment of the agent of a host, whose files it makes below a folder."""
    settings = {**ONE_LOOK, **host.settings}
    environment = {f"MESHWRIGHT_{name}": value.format(folder=folder) for name, value in settings.items()}
    if "TOKENS_FILE" in settings:
        for name, scope in SECRETS.items():
            add_token(folder / "tokens", name, scope, secret=f"mw_{name}")
    if not host.machine:
        return environment
    recorded, root = RECORDED / host.machine, folder / "root"
    environment |= plant_host(host.machine, root)
    for path in host.remove:
        (root / path).unlink()
    for path in host.hang:
        (root / path).unlink()
        os.mkfifo(root / path)
    if (recorded / "environ.json").exists():
        environment |= json.loads((recorded / "environ.json").read_text())
    if (recorded / "nvml.json").exists():
        environment |= build_driver(host, recorded, folder)
    return environment


def build_driver(host: Host, recorded: Path, folder: Path) -> dict[str, str]:
    """Returns the environment in which `pynvml` is a fake that answers for the host's cards, and a kernel log."""
    document = json.loads((recorded / "nvml.json").read_text())
    told = [(gpu, host.gpus.get(index, {})) for index, gpu in enumerate(document["gpus"])]
    document["gpus"] = [{**gpu, **WELL, **other} for gpu, other in told if other is not None]
    (folder / "nvml.json").write_text(json.dumps({**document, "fail": host.fail}))
    log = folder / "kmsg"
    for number, message in enumerate(("Linux version 6.12", *host.log)):
        write_record(log, number, message)
    path = os.pathsep.join((str(ROOT / "tests/fakes/as_pynvml"), str(ROOT)))
    return {"FAKE_NVML": str(folder), "PYTHONPATH": path, "MESHWRIGHT_KERNEL_LOG": str(log)}


def settle(agent: RunningAgent, host: Host) -> None:
    """Waits until the components that the host names have their states; makes its first requests.

    By the unix socket, where the agent's own user may everything.
    """
    socket = httpx.HTTPTransport(uds=str(agent.uds))
    with httpx.Client(transport=socket, base_url="http://localhost", timeout=60) as client:

        def is_settled() -> bool:
            states = {part["name"]: part["state"] for part in client.get("/health").json()["components"]}
            return all(states.get(name) in ({state} if state else SEEN) for name, state in host.settled)

        wait_for(is_settled, agent, limit_s=60)
        for method, path, body in host.first:
            client.request(method, path, json=body).raise_for_status()


# ---- requests -------------------------------------------------------------------------------------------------------


def answer(client: httpx.Client, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an agent says to a request of HTTP, or what a command prints that is told its address.

    `of`: the plan that gives the path its fingerprint; `long`: bytes of a body of blanks.
    """
    if "command" in asked:
        return run_command(asked["command"], str(client.base_url))
    (method,) = asked.keys() & {"GET", "POST", "PUT", "DELETE"}
    path = asked[method]
    if "of" in asked:
        path = path.format(fingerprint=client.get(asked["of"]).json()["plans"][0]["fingerprint"])
    body = asked.get("body", " " * asked["long"] if "long" in asked else None)
    content = body if body is None or isinstance(body, str) else json.dumps(body)
    headers = ({} if body is None else {"content-type": "application/json"}) | asked.get("headers", {})
    reply = client.request(method, path, content=content, headers=headers)
    is_json = "json" in reply.headers.get("content-type", "")
    return {"status": reply.status_code, "reply": reply.json() if is_json else reply.text}


def run_command(command: str, url: str) -> dict[str, Any]:
    """Returns how a command ends and what it prints."""
    program, *arguments = shlex.split(command)
    environment = os.environ | {"MESHWRIGHT_URL": url, "COLUMNS": "160", "NO_COLOR": "1"}
    ended = subprocess.run(
        [BIN / program, *arguments], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    return {"exit": ended.returncode, "stdout": ended.stdout, "stderr": ended.stderr}


# ---- the job --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ask_job() -> Iterator[Asked]:
    """Yields a process with JAX that evaluates expressions; its `client` speaks to an agent of the same devices."""
    with run_agent(JOB_HOST) as (agent, words):
        own = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "MESHWRIGHT_URL": agent.url}
        command = [sys.executable, "-m", "tests.golden.job"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=os.environ | own) as job:
            questions, replies = job.stdin, job.stdout
            assert questions
            assert replies

            def evaluate(asked: Mapping[str, Any]) -> dict[str, Any]:
                print(json.dumps(asked["python"]), file=questions, flush=True)
                reply: dict[str, Any] = json.loads(replies.readline())
                return reply

            yield Asked(evaluate, words)
            questions.close()
