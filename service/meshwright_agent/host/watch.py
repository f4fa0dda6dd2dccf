"""The watch: looks at the host through the probe and the device worker, keeps what it saw, and reports it as health.

Rule: every look at the facts is bounded in time and waits for no JAX, whose start may hang for minutes; what could not
be seen stays as old as it is. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from meshwright.errors import NotReadyError, ProblemError, WorkerFailedError
from meshwright.topology.chips import parse_chip_count
from meshwright.wire.devices import Devices
from meshwright_agent.clock import Clock
from meshwright_agent.facts.model import HostFacts, parse_host_facts
from meshwright_agent.facts.nvidia import doubt_unnamed
from meshwright_agent.health.events import History
from meshwright_agent.health.monitor import HealthMonitor
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.specs import explain_untouched
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor
from meshwright_agent.view import JaxSight, build_devices

log = logging.getLogger(__name__)

LOG_LINES: Final = 60
"""Of a worker that cannot start: a crash dump is some 40 lines long, and its cause stands before it."""
DESCRIBE_TIMEOUT_S: Final = 30.0
"""How long JAX may take to list its devices."""


@dataclass(frozen=True)
class Sight:
    """What the watch knows; replaced as a whole, so that a reader never sees half of a look.

    Attributes:
        jax: what the device worker's `describe` answered.
        jax_generation: of the worker that answered.
    """

    facts: HostFacts | None = None
    facts_at: datetime | None = None
    jax: dict[str, Any] | None = None
    jax_at: datetime | None = None
    jax_generation: int = 0


class HostWatch:
    """Looks every `probe_interval_s`, and whenever it is asked to."""

    is_still: Final = False
    readiness: Final = "ready"

    def __init__(
        self,
        *,
        probe: Supervisor,
        device: Supervisor,
        board: HealthRegistry,
        settings: Settings,
        clock: Clock,
        stays: bool,
        is_reserved: Callable[[], bool] = lambda: False,
        history: History,
    ) -> None:
        self._probe = probe
        self._device = device
        self._monitor = HealthMonitor(board, history, parse_chip_count(settings.expect) if settings.expect else None)
        self._settings = settings
        self._clock = clock
        self._stays = stays
        self._is_reserved = is_reserved
        self._looked = asyncio.Event()
        self.sight = Sight()
        self.released = False
        self._failure: ProblemError | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def key(self) -> object:
        """What tells one state of knowledge from the next: equal keys, equal facts (their ages aside)."""
        return self.sight

    @property
    def knows_topology(self) -> bool:
        """True once JAX or a driver has told which devices are here."""
        facts = self.sight.facts
        return self.sight.jax is not None or bool(facts and (facts.gpus or facts.tpus))

    async def run(self) -> None:
        """Looks until it is cancelled; an error of one look is logged and does not end the watch."""
        try:
            while True:
                try:
                    await self.look()
                except Exception:
                    log.exception("a look at the host failed")
                await asyncio.sleep(self._settings.probe_interval_s)
        finally:
            await self._end_asking()

    async def look(self) -> asyncio.Task[None] | None:
        """Looks once at the facts, by the probe; returns the asking of JAX that is under way, which nobody waits for.

        JAX is asked if the worker is there or may be started for it. A worker at a bench is not asked: it would answer
        after it. The bench has a deadline, until which the worker counts as healthy.
        """
        if self._stays and not self._has_answered:
            self._ask_jax()
            await self.look_at_facts()
            return self._asking
        before = self.sight.facts
        await self.look_at_facts()
        if self._stays and self.released and self._device.state == "stopped" and self.sight.facts is not before:
            self._renew_cpus()
        if self._device.state == "busy":
            if self._asking is None:
                self.note_worker()
            return self._asking
        if self._is_left_over():
            await self._device.release(reason="a device is reserved, and the worker had nothing to do")
        if self._may_wake() if self._stays else self._may_touch():
            self._ask_jax()
        else:
            self.note_worker()
        return self._asking

    def _renew_cpus(self) -> None:
        """Reports CPU devices that JAX listed before, when the probe has just read the CPU.

        They need no driver and no worker, so that this is evidence after the worker was released, when JAX is not
        asked. While a worker is up, only its answer counts.
        """
        if self.sight.jax is not None and self.sight.jax["platform"] == "cpu" and not self.tell_mismatch():
            now = self._clock.now()
            self._monitor.report_listed(self.devices(now).devices, now, "JAX listed it; the probe reads its CPU")

    def _ask_jax(self) -> None:
        """Has JAX asked, once at a time: while its start hangs, or a bench is before it, the next looks add nothing."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_in_turn())
        else:
            self.note_worker()

    async def _ask_in_turn(self) -> None:
        try:
            await self.look_at_jax()
        except Exception:
            log.exception("a look at JAX failed")
        finally:
            self._asking = None

    async def _end_asking(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _may_wake(self) -> bool:
        """On a host without accelerators the worker stays, and is started again if it died; not if it was released."""
        return not self.released or self._device.state in {"ready", "busy"}

    def _may_touch(self) -> bool:
        """On accelerators JAX is started once to learn its view, and only if nobody else holds or has leased a device.

        It is started again after a crash. With `hold: always` it is kept, and started again after leases; with `never`
        a bench alone starts it. Not after a release, as on hosts without; also not where it had told no view before.
        """
        if self._is_reserved() or not self._may_wake():
            return False
        is_open = self._device.state == "ready"  # then nothing more is opened
        if not is_open and (self._settings.hold == "never" or explain_untouched(self.sight.facts)):
            return False
        return not self._has_answered or self._device.has_crashed or self._settings.hold == "always"

    @property
    def _has_answered(self) -> bool:
        """True once JAX has told its view in this life of the agent."""
        return self.sight.jax is not None

    def _tell_untouched(self) -> str:
        """Returns why JAX is not started on accelerators of which it has told nothing; empty where it may be."""
        if self._stays or self._has_answered or self._may_touch():
            return ""
        if self.released:
            return "not started: the devices were released; a bench starts it"
        if self._settings.hold == "never":
            return "not started: MESHWRIGHT_HOLD is never; a bench starts it"
        if self._is_reserved():
            return "not started: a device is leased"
        return f"not started: {explain_untouched(self.sight.facts)}"

    def _is_left_over(self) -> bool:
        """Tells whether a bench of who has a lease left its worker there, which `hold: always` would keep."""
        if self._stays or not self._is_reserved() or self._device.state != "ready":
            return False
        return (self._clock.now() - self._device.since).total_seconds() >= self._settings.idle_release_s

    def _build_question(self) -> dict[str, Any]:
        log_place = {"kernel_log": self._settings.kernel_log, **self._monitor.log_place}
        return {"root": str(self._settings.host_root), **(log_place if self._settings.kernel_log else {})}

    def recall(self) -> None:
        """Takes up what an earlier life of the agent knew of devices and their faults."""
        self._monitor.recall(self._clock.now())

    def acknowledge(self, component: str) -> None:
        """Takes an operator's word that a component's faults are dealt with; the last look is judged again."""
        now = self._clock.now()
        known = self.sight.facts is not None
        self._monitor.acknowledge(
            component,
            self.sight.facts_at or now,
            facts=self.sight.facts,
            devices=self.devices(now) if known else None,
        )

    async def look_at_facts(self) -> None:
        """Asks the probe; a driver that does not answer in time is reported, and its facts grow old."""
        now = self._clock.now()
        limit_s = self._settings.probe_timeout_s
        if self._probe.state == "failed" and not self._probe.abandoned_pids:
            self._probe.reset()  # a driver may recover; the pause is ours, and nothing that hangs in it piles up
        absent = self._absent_generation()
        try:
            answer = await self._probe.call("facts", self._build_question(), deadline_s=limit_s)
        except (ProblemError, CallCancelled) as error:
            self._monitor.report_silence(_first_line(error), now)
            return
        before = self.sight.facts
        facts = parse_host_facts(answer.result)
        if absent is None or absent != self._absent_generation():  # the worker was there, or was in between
            facts = doubt_unnamed(facts)
        self.sight = replace(self.sight, facts=facts, facts_at=now)
        self._monitor.report_facts(facts, before, self.devices(now), now)
        self._looked.set()
        self._looked = asyncio.Event()

    async def wait_for_look(self) -> None:
        """Waits until the probe has answered the next time."""
        await self._looked.wait()

    async def look_at_jax(self) -> None:
        """Asks the device worker for JAX's devices, starting it if need be; what failed stands on the board."""
        try:
            answer = await self._device.call("describe", {}, deadline_s=DESCRIBE_TIMEOUT_S)
        except CallCancelled:
            self.note_worker()
            return
        except ProblemError as error:
            self._failure = error
            self.note_worker()
            return
        now = self._clock.now()
        self._failure = None
        self.sight = replace(self.sight, jax=answer.result, jax_at=now, jax_generation=answer.generation)
        self.note_worker()
        if answer.result["platform"] == "cpu" and not self.tell_mismatch():
            self._monitor.report_listed(self.devices(now).devices, now)

    def note_release(self) -> None:
        """Takes note that the worker was let go on purpose: it is not started again unasked."""
        self.released, self._failure = True, None
        self.note_worker()

    def note_progress(self, value: Mapping[str, Any]) -> None:
        """Reports the devices that a bench has measured; the bench has started the worker, if that was released."""
        now = self._clock.now()
        self.released = False
        record = value.get("record")
        if record and not self.tell_mismatch():
            devices = self.devices(now).devices
            chosen = [device for device in devices if device.local_index in record["device_indices"]]
            self._monitor.report_record(record, chosen, now)

    def _absent_generation(self) -> int | None:
        """Returns which worker was there last, where none is there now; else None."""
        return self._device.generation if self._device.state in {"stopped", "backoff", "failed"} else None

    def note_worker(self) -> None:
        """Reports the worker's state; not of one that is up and has yet to say on which devices."""
        if not self._has_answered and self._failure is None and self._device.state in {"ready", "busy"}:
            return
        self._monitor.report_worker(
            self._device,
            has_started=self._has_answered,
            untouched=self._tell_untouched(),
            failure="" if self._failure is None else _first_line(self._failure),
            mismatch=self.tell_mismatch(),
            at=self._clock.now(),
        )

    def tell_mismatch(self) -> str:
        """Returns how JAX is not on this host's devices: it runs on the CPU of a host with accelerators; else ""."""
        if self.sight.jax is None:
            return ""
        devices = self.devices(self._clock.now())
        if self.sight.jax["platform"] == devices.platform:
            return ""
        return (
            f"this host has {len(devices.devices)} {devices.platform} devices, "
            f"but its JAX runs on {self.sight.jax['platform']}"
        )

    def devices(self, now: datetime) -> Devices:
        """Returns the host's topology as known at `now`."""
        return build_devices(
            self.sight.facts,
            self.sight.facts_at,
            self._jax_sight(),
            self._device.view(),
            now=now,
            cpu_devices=self._settings.cpu_devices,
        )

    def _jax_sight(self) -> JaxSight | None:
        sight = self.sight
        if sight.jax is None or sight.jax_at is None:
            return None
        alive = self._device.state in {"ready", "busy"} and self._device.generation == sight.jax_generation
        return JaxSight(sight.jax, sight.jax_at, sight.jax_generation, "live" if alive else "cached")

    @property
    def waits_for(self) -> str:
        """What must answer before the devices are known, in a few words."""
        if self.sight.facts is None:
            return "the driver has not answered the probe yet"
        return f"JAX has not listed the devices yet, worker {self._device.state}"

    @property
    def failure(self) -> str:
        """Why JAX did not answer when it was last asked; empty if it did, or was not asked."""
        return "" if self._failure is None else (self._device.last_error or _first_line(self._failure))

    def require_facts(self) -> None:
        """Passes if `/devices` can be answered; raises as `require_topology` does."""
        if self.sight.facts is None:
            self.require_topology()

    def require_hardware(self, asked: str) -> None:
        """Passes: this host is what it says."""

    def require_topology(self) -> None:
        """Passes if plans can be answered.

        Raises:
            WorkerFailedError: the worker cannot start; with the last lines of its log.
            NotReadyError: nobody has looked yet.
        """
        if self.knows_topology:
            return
        if self._failure is not None or self._device.state in {"failed", "backoff"}:
            cause = self._device.last_error or (self._failure and _first_line(self._failure))
            hint = "run `meshwright-agent doctor` on the host; GET /health tells the state"
            log_ = self._device.log_tail or (self._failure.log if self._failure else ())
            raise WorkerFailedError(
                f"no device is known: JAX does not start: {cause}", hint=hint, log=log_[-LOG_LINES:]
            )
        raise NotReadyError(
            "the agent is still looking at its devices",
            hint="wait until GET /readyz answers 200",
            retry_after_s=1.0,
        )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
