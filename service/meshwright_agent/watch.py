"""The watch: looks at the host through the probe and the device worker, keeps what it saw, and reports it as health.

Rule: every look is bounded in time, and what could not be seen stays as old as it is. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from meshwright.errors import NotReadyError, ProblemError, WorkerFailedError
from meshwright.wire.devices import Devices, Worker
from meshwright.wire.health import State
from meshwright_agent.children import read_roots
from meshwright_agent.clock import Clock
from meshwright_agent.facts.model import HostFacts, parse_host_facts
from meshwright_agent.health import HealthBoard
from meshwright_agent.settings import Settings
from meshwright_agent.view import JaxSight, build_devices
from meshwright_agent.worker.supervisor import CallCancelled, Supervisor

log = logging.getLogger(__name__)

DRIVER: Final = "driver"
WORKER: Final = "worker"
LOG_LINES: Final = 60
"""Of a worker that cannot start: a crash dump is some 40 lines long, and its cause stands before it."""


@dataclass(frozen=True)
class Sight:
    """What the watch knows; replaced as a whole, so that a reader never sees half of a look."""

    facts: HostFacts | None = None
    facts_at: datetime | None = None
    jax: dict[str, Any] | None = None
    jax_at: datetime | None = None
    jax_generation: int = 0


class HostWatch:
    """Looks every `probe_interval_s`, and whenever it is asked to."""

    def __init__(
        self,
        *,
        probe: Supervisor,
        device: Supervisor,
        board: HealthBoard,
        settings: Settings,
        clock: Clock,
        stays: bool,
    ) -> None:
        self._probe = probe
        self._device = device
        self._board = board
        self._settings = settings
        self._clock = clock
        self._stays = stays
        self.sight = Sight()
        self.released = False
        self._gone: set[str] = set()
        board.expect((WORKER, DRIVER))

    @property
    def knows_topology(self) -> bool:
        """True once JAX or a driver has told which devices are here."""
        facts = self.sight.facts
        return self.sight.jax is not None or bool(facts and (facts.gpus or facts.tpus))

    async def run(self) -> None:
        """Looks for ever; an error of one look is logged and does not end the watch."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("a look at the host failed")
            await asyncio.sleep(self._settings.probe_interval_s)

    async def look(self) -> None:
        """Looks once: facts by the probe, then JAX's view if the worker is there or may be started for it.

        A worker that is busy is not asked: it would answer after its bench, and the next look with it. Its progress
        is its sign of life (`note_progress`), and its call has a deadline.
        """
        if self._stays and self.sight.jax is None:
            await asyncio.gather(self.look_at_facts(), self.look_at_jax())
            return
        await self.look_at_facts()
        if self._device.state == "busy":
            return
        if self._may_wake() if self._stays else self._may_touch():
            await self.look_at_jax()
        else:
            self.note_worker()

    def _may_wake(self) -> bool:
        """On a host without accelerators the worker stays, and is started again if it died; not if it was released."""
        return not self.released or self._device.state in {"ready", "busy"}

    def _may_touch(self) -> bool:
        """On accelerators JAX is started once to learn its view, and only if nobody else is seen to hold a device.

        Holders that could not be looked at (None) may be anybody: then nothing is touched unasked.
        """
        facts = self.sight.facts
        if self.sight.jax is not None or facts is None or facts.holders is None:
            return False
        return all(holder.own for holder in facts.holders)

    async def look_at_facts(self) -> None:
        """Asks the probe; a driver that does not answer in time is reported, and its facts grow old."""
        now = self._clock.now()
        limit_s = self._settings.probe_timeout_s
        if self._probe.state == "failed" and not self._probe.abandoned_pids:
            self._probe.reset()  # a driver may recover; the pause is ours, and nothing that hangs in it piles up
        try:
            answer = await self._probe.call("facts", read_roots(self._settings), deadline_s=limit_s)
        except (ProblemError, CallCancelled) as error:
            self._board.report(
                DRIVER,
                "unknown",
                f"the probe did not answer: {_first_line(error)}",
                at=now,
                action="see the agent's log",
            )
            return
        before = self.sight.facts
        facts = parse_host_facts(answer.result)
        self.sight = Sight(facts, now, self.sight.jax, self.sight.jax_at, self.sight.jax_generation)
        self._report_facts(facts, before, now)

    def _report_facts(self, facts: HostFacts, before: HostFacts | None, now: datetime) -> None:
        problems = "; ".join(facts.problems)
        state: State = "degraded" if problems else "healthy"
        self._board.report(DRIVER, state, problems or "driver, sysfs and /proc answer", at=now)
        seen = _keys(facts)
        for device in self.devices(now).devices:
            key = device.uuid or device.pci_bus_id
            if key in seen:
                self._board.report(f"device:{device.local_index}", "healthy", f"{device.kind} is listed", at=now)
        self._report_gone((_keys(before) if before else set()) | self._gone, seen, now)

    def _report_gone(self, known: set[str], seen: set[str], now: datetime) -> None:
        """Reports devices that were here once and are not: at each look, so that this does not grow old."""
        for key in sorted(self._gone & seen):
            self._board.forget(f"device:{key}")  # it is listed again, and has its own component
        self._gone = known - seen
        for key in sorted(self._gone):
            self._board.report(
                f"device:{key}",
                "unhealthy",
                "was here before; the driver no longer lists it",
                at=now,
                action="check the kernel log; reboot the host if it does not return",
            )

    async def look_at_jax(self) -> None:
        """Asks the device worker for JAX's devices, starting it if need be; what failed stands on the board."""
        try:
            answer = await self._device.call("describe", {}, deadline_s=self._settings.describe_timeout_s)
        except CallCancelled:
            self.note_worker()
            return
        except ProblemError as error:
            self.note_worker(error)
            return
        now = self._clock.now()
        sight = self.sight
        self.sight = Sight(sight.facts, sight.facts_at, answer.result, now, answer.generation)
        self.note_worker()
        if answer.result["platform"] == "cpu" and self._is_jax_on_the_devices(now):
            self._report_each(range(len(answer.result["devices"])), "healthy", "JAX lists it", now)

    def _is_jax_on_the_devices(self, now: datetime) -> bool:
        """False where JAX runs on the CPU beside accelerators that it does not see: its devices are other ones."""
        return self.sight.jax is not None and self.sight.jax["platform"] == self.devices(now).platform

    def note_progress(self, value: Mapping[str, Any]) -> None:
        """Takes what a bench tells as a sign of life: of the worker, and of the devices that it has measured."""
        now = self._clock.now()
        self._board.report(WORKER, "healthy", f"generation {self._device.generation} works on a bench", at=now)
        record = value.get("record")
        if record and record["correct"] and self._is_jax_on_the_devices(now):
            self._report_each(record["device_indices"], "healthy", f"{record['case']} ran on it", now)

    def _report_each(self, indices: Iterable[int], state: State, reason: str, now: datetime) -> None:
        for index in indices:
            self._board.report(f"device:{index}", state, reason, at=now)

    def note_worker(self, error: ProblemError | None = None) -> None:
        """Reports the worker's state; a stopped worker is not looked at, so that its last report grows old."""
        now = self._clock.now()
        match self._device.state:
            case "ready" | "busy" if error is None:
                self._board.report(WORKER, "healthy", f"generation {self._device.generation} answers", at=now)
            case "failed":
                reason = f"does not start: {self._device.last_error}"
                self._board.report(
                    WORKER, "unhealthy", reason, at=now, action="run `meshwright-agent doctor` on the host"
                )
            case "backoff":
                self._board.report(
                    WORKER,
                    "degraded",
                    f"died: {self._device.last_error}",
                    at=now,
                    action="it restarts by itself",
                )
            case _ if error is not None:
                self._board.report(WORKER, "degraded", _first_line(error), at=now)

    def devices(self, now: datetime) -> Devices:
        """Returns the host's topology as known at `now`."""
        return build_devices(
            self.sight.facts,
            self.sight.facts_at,
            self._jax_sight(),
            self.worker(),
            now=now,
            cpu_devices=self._settings.cpu_devices,
        )

    def _jax_sight(self) -> JaxSight | None:
        sight = self.sight
        if sight.jax is None or sight.jax_at is None:
            return None
        alive = self._device.state in {"ready", "busy"} and self._device.generation == sight.jax_generation
        return JaxSight(sight.jax, sight.jax_at, sight.jax_generation, "live" if alive else "cached")

    def worker(self) -> Worker:
        """Returns the device worker as replies show it."""
        return self._device.view()

    def require_topology(self) -> None:
        """Passes if plans can be answered.

        Raises:
            WorkerFailedError: the worker cannot start; with the last lines of its log.
            NotReadyError: nobody has looked yet.
        """
        if self.knows_topology:
            return
        if self._device.state in {"failed", "backoff"}:
            detail = (
                f"no device is known: the device worker is in state {self._device.state}: {self._device.last_error}"
            )
            hint = "run `meshwright-agent doctor` on the host; GET /health tells the state"
            raise WorkerFailedError(detail, hint=hint, log=self._device.log_tail[-LOG_LINES:])
        raise NotReadyError(
            "the agent is still looking at its devices",
            hint="wait until GET /readyz answers 200",
            retry_after_s=1.0,
        )


def _keys(facts: HostFacts) -> set[str]:
    return {gpu.key for gpu in facts.gpus} | {tpu.key for tpu in facts.tpus}


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
