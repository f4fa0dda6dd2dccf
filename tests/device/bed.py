"""Where the checks run: on the cards of this host, or on virtual CPU devices, to prove the checks themselves.

Rule: what is read of a card comes from NVIDIA's own tools, not from the agent. Starts agents; knows no check.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from meshwright_agent.facts.nvml import find_nvml
from tests.agents import RunningAgent, start_agent, wait_for
from tests.device.smi import SmiCard, read_smi
from tests.process.living import FINAL, LONG, ask, read_run, read_worker, submit

CPU_DEVICES: Final = 4
IDLE_S: Final = 2.0
"""After which the worker goes, in these checks, where it goes by itself."""
TOLERANCE_BYTES: Final = 64 * 2**20
"""Far below the 300 to 400 MB of a bare CUDA context, which is the least that a worker could leave; far above what a
driver's own bookkeeping was seen to vary by."""

_LONG_ON_CARDS: Final[dict[str, Any]] = {
    "cases": ["host_to_device", "device_to_host"], "sizes_bytes": [1 << 30], "samples": 1000, "max_s": 600,
}  # fmt: skip


@dataclass(frozen=True)
class Bed:
    """What the checks run on. `tries`: how often what may vary is done."""

    platform: Literal["gpu", "cpu"]
    tries: int = 5
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_gpu(self) -> bool:
        return self.platform == "gpu"

    @property
    def long_bench(self) -> dict[str, Any]:
        """A bench that nobody waits for, which would have the devices to itself."""
        return _LONG_ON_CARDS if self.is_gpu else LONG

    @contextlib.contextmanager
    def start_agent(self, **settings: str) -> Iterator[RunningAgent]:
        """Yields an agent that looks at its host every second."""
        given: dict[str, Any] = {"MESHWRIGHT_PROBE_INTERVAL_S": "1", **self.settings}
        named = {f"MESHWRIGHT_{name.upper()}": value for name, value in settings.items()}
        with start_agent(cpu_devices=None if self.is_gpu else CPU_DEVICES, **{**given, **named}) as agent:
            yield agent

    def read_cards(self) -> tuple[SmiCard, ...]:
        """Returns what nvidia-smi says; nothing on CPUs."""
        return read_smi() if self.is_gpu else ()


def explain_no_card() -> str | None:
    """Returns why nothing can be checked on a card here; None where there is one."""
    nvml = find_nvml()
    if nvml is None:
        return "the package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return f"NVML finds no card: {error}"
    return None if count else "NVML finds no card: it lists none"


def count_used(cards: tuple[SmiCard, ...]) -> int:
    """Returns the bytes in use of all cards."""
    return sum(card.used_bytes or 0 for card in cards)


def list_pids(cards: tuple[SmiCard, ...]) -> set[int]:
    """Returns who has a context on a card."""
    return {pid for card in cards for pid in card.compute_pids}


def await_baseline(bed: Bed, before: tuple[SmiCard, ...], *, limit_s: float = 10.0) -> tuple[float, int]:
    """Returns after how long the memory of the cards was back, in seconds, and by how many bytes it then differed."""
    began_s = time.monotonic()
    while True:
        more = count_used(bed.read_cards()) - count_used(before)
        duration_s = time.monotonic() - began_s
        if more <= TOLERANCE_BYTES or duration_s > limit_s:
            return duration_s, more


def start_bench(agent: RunningAgent, body: dict[str, Any]) -> str:
    """Returns the id of a bench that has begun in its worker."""
    run_id = submit(agent, body)
    wait_for(
        lambda: (run := read_run(agent, run_id))["progress"] is not None or run["state"] in FINAL, agent, limit_s=90
    )
    run = read_run(agent, run_id)
    assert run["state"] == "running", f"the long bench ended: {run['state']}: {run['error']}"
    return run_id


def await_stopped(agent: RunningAgent, *, limit_s: float = 60.0) -> float:
    """Returns after how many seconds the worker, which has been there, was gone."""
    began_s = time.monotonic()
    wait_for(lambda: (w := read_worker(agent))["state"] == "stopped" and w["generation"] > 0, agent, limit_s=limit_s)
    return time.monotonic() - began_s


def await_looked(agent: RunningAgent) -> dict[str, Any]:
    """Returns /devices once JAX's view is known."""
    wait_for(lambda: any(device["jax_id"] is not None for device in ask(agent, "/devices")["devices"]), agent)
    devices: dict[str, Any] = ask(agent, "/devices")
    return devices


@contextlib.contextmanager
def hold_card() -> Iterator[tuple[int, str]]:
    """Yields process id and words of a foreign process that has a CUDA context and 256 MiB of the first card."""
    module = "tests.device.context"
    command = [sys.executable, "-m", module]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line == "held\n", f"no CUDA context: {line or 'the process ended'}"
            yield process.pid, module
        finally:
            process.kill()


class PeakOfCards(threading.Thread):
    """The most memory in use of all cards, looked at every few milliseconds by NVML. A context manager; 0 on CPUs."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(daemon=True)
        self._nvml: Any = find_nvml() if bed.is_gpu else None
        self._ended = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        nvml = self._nvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        while not self._ended.wait(0.005):
            used = sum(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used for handle in handles)
            self.bytes = max(self.bytes, int(used))
        nvml.nvmlShutdown()

    def __enter__(self) -> PeakOfCards:
        if self._nvml is not None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._nvml is not None:
            self.join(10)
