"""The watch: repeatedly probes the host and lists JAX's devices by the device worker, and reports both as health.

Rule: every probe is bounded in time and does not wait for JAX, whose start may hang for minutes. A failed observation
leaves the old facts with their age. This module does not depend on HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from meshwright.errors import DeviceBusyError, ProblemError
from meshwright.topology.chips import parse_chip_count
from meshwright.wire.devices import DeviceProcess, HoldersUnknown, Release
from meshwright_agent.clock import Clock
from meshwright_agent.facts.model import parse_host_facts
from meshwright_agent.facts.nvidia import drop_ambiguous_processes
from meshwright_agent.health.events import History
from meshwright_agent.health.monitor import HealthMonitor
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.base import AgentHost
from meshwright_agent.host.snapshot import JaxReport, first_line
from meshwright_agent.leases import LeaseRegistry, Spawn
from meshwright_agent.metrics import RELEASE_DURATION
from meshwright_agent.runs import RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.specs import explain_not_started
from meshwright_agent.supervisor.supervisor import CallCancelled, Supervisor

log = logging.getLogger(__name__)

DESCRIBE_TIMEOUT_S: Final = 30.0
"""How long JAX may take to list its devices."""
RELEASE_LIMIT_S: Final = 2.0
"""Time limit of a release. It is answered in time even if the driver hangs."""
ANSWER_RESERVE_S: Final = 0.3
"""Part of the limit that is reserved for the answer, which a busy host may send late."""
PROBE_RESERVE_S: Final = 0.45
"""Part of the limit that is reserved for the probe of remaining holders. A worker that has not ended is then probed
too."""
ANOTHER_PROBE_S: Final = 0.5
"""Minimum remaining time for a second probe of the holders. A probe starts in about 0.3 s."""
RELEASED: Final = "the devices were released (POST /devices/release)"

_Holders = tuple[tuple[DeviceProcess, ...] | None, HoldersUnknown | None]
"""The holders of devices; or None and the reason why they are unknown."""


class HostWatch(AgentHost):
    """Observes the hardware of this host every `probe_interval_s` and on request.

    Args:
        probe: reads drivers, sysfs and /proc.
        device: owns JAX.
        runs: the queue of benches, which a release ends.
        history: has the memory of devices.
        spawn: starts work that the agent ends when it closes.
        stays: the worker uses CPUs, so that it is kept and restarted.
    """

    def __init__(
        self,
        *,
        probe: Supervisor,
        device: Supervisor,
        preflight: Supervisor,
        runs: RunQueue,
        leases: LeaseRegistry,
        health: HealthRegistry,
        history: History,
        settings: Settings,
        clock: Clock,
        spawn: Spawn,
        stays: bool,
    ) -> None:
        super().__init__(device, leases=leases, health=health, clock=clock, cpu_devices=settings.cpu_devices)
        self._probe = probe
        self._runs = runs
        self._monitor = HealthMonitor(health, history, parse_chip_count(settings.expect) if settings.expect else None)
        self._settings = settings
        self._spawn = spawn
        self._stays = stays
        self._opening = device, preflight  # the children that open devices
        self._question = {"root": str(settings.host_root)}
        self._probing = asyncio.Lock()
        self._has_probed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._was_reserved = False
        device.on_change = self.report_worker

    async def run(self) -> None:
        """Observes until cancelled. An error of one round is logged and does not end the watch."""
        try:
            while True:
                try:
                    await self.refresh()
                except Exception:
                    log.exception("a probe of the host failed")
                await asyncio.sleep(self._settings.probe_interval_s)
        finally:
            if self._asking is not None:
                self._asking.cancel()
                await asyncio.gather(self._asking, return_exceptions=True)

    async def refresh(self) -> asyncio.Task[None] | None:
        """Probes once; returns the pending call to JAX, which this method does not await.

        JAX is called if the worker runs or may be started. A worker that runs a bench is not called, because it would
        answer only afterwards: it counts as healthy while it sends progress, and the bench has a deadline.
        """
        if self._was_reserved and not self._is_reserved:
            self.update(released=False)  # a release lasts no longer than the lease under which it was made
        self._was_reserved = self._is_reserved
        if self._stays and not self._has_answered:
            self._ask_jax()
            await self.probe()
            return self._asking
        has_answered = await self.probe()
        is_released = self.snapshot.released and self._device.state == "stopped"
        if has_answered and (is_released or not self._stays):
            # CPU devices need no driver or worker, so that this is evidence when JAX is not called
            self._report_cpus("JAX listed it; the probe reads its CPU")
        if self._device.state == "busy":
            if self._asking is None:
                self.report_worker()
            return self._asking
        if self._is_left_over():
            await self._device.release(reason="a device is reserved, and the worker had nothing to do")
        is_seen = has_answered or self._device.state == "ready"  # else who holds the devices is not known
        if self._may_restart() if self._stays else is_seen and self._may_start_jax():
            self._ask_jax()
        else:
            self.report_worker()
        return self._asking

    def _report_cpus(self, reason: str) -> None:
        """Reports CPU devices, which JAX lists and no driver does."""
        snapshot, now = self.snapshot, self._clock.now()
        if snapshot.jax is not None and snapshot.jax.platform == "cpu" and not snapshot.mismatch:
            self._monitor.report_listed(snapshot.devices(now).devices, now, reason)

    def _ask_jax(self) -> None:
        """Starts a call to JAX unless one is pending, such as during a hanging start or a bench."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_in_turn())
        else:
            self.report_worker()

    async def _ask_in_turn(self) -> None:
        try:
            await self.list_jax_devices()
        except Exception:
            log.exception("JAX could not be asked for its devices")
        finally:
            self._asking = None

    @property
    def _is_reserved(self) -> bool:
        return bool(self._leases.active())

    @property
    def _has_answered(self) -> bool:
        """True once JAX has listed its devices since the agent started."""
        return self.snapshot.jax is not None

    def _may_restart(self) -> bool:
        """Returns whether the worker may be started: it stays up on CPUs and is restarted, except after a release.

        CPU devices are known only from JAX, so that it is called until it has listed them, also after a release.
        """
        return not self.snapshot.released or self._device.state in {"ready", "busy"}

    def _may_start_jax(self) -> bool:
        """Returns whether JAX may be started on accelerators, which requires that devices are not held or leased.

        JAX is started once to list its devices, and again after a crash. With `hold: always` it is kept, and restarted
        after leases. With `never` only a bench starts it. After a release it is not restarted, even if it has not
        listed devices yet.
        """
        is_wanted = not self._has_answered or self._device.has_crashed or self._settings.hold == "always"
        return is_wanted and not self._explain_stopped()

    def _explain_stopped(self) -> str:
        """Returns why JAX may not be started on accelerators; empty if it may."""
        if not self._may_restart():
            return "not started: the devices were released; a bench starts it"
        is_open = self._device.state == "ready"  # then no further device is opened
        if self._settings.hold == "never" and not is_open:
            return "not started: MESHWRIGHT_HOLD is never; a bench starts it"
        if self._is_reserved:
            return "not started: a device is leased"
        not_started = "" if is_open else explain_not_started(self.snapshot.facts)
        return not_started and f"not started: {not_started}"

    def _is_left_over(self) -> bool:
        """Returns whether the worker of a lease owner's bench is still up, which `hold: always` would keep."""
        if self._stays or not self._is_reserved or self._device.state != "ready":
            return False
        return self._device.idle_s >= self._settings.idle_release_s

    def recall(self) -> None:
        """Restores the devices and faults that the previous agent knew."""
        self._monitor.recall(self._clock.now())

    def acknowledge(self, component: str) -> None:
        """Clears the faults of a component after an operator's acknowledgement. Evaluates the last facts again."""
        snapshot, now = self.snapshot, self._clock.now()
        devices = snapshot.devices(now) if snapshot.facts is not None else None
        self._monitor.acknowledge(component, now, facts=snapshot.facts, facts_at=snapshot.facts_at, devices=devices)

    async def probe(self) -> bool:
        """Probes the host. If the driver does not answer in time, reports that and keeps the old facts."""
        async with self._probing:  # two at once would read the same part of the kernel log
            now = self._clock.now()
            if self._probe.state == "failed" and not self._probe.abandoned_pids:
                self._probe.reset()  # a driver may recover; the interval limits the number of hanging probes
            if (stuck := len(self._probe.abandoned_pids)) >= self._probe.spec.crash_budget:
                self._monitor.report_silence(f"{stuck} probes hang in the kernel, and no more are started", now)
                return False
            absent = self._absent_generation()
            question: dict[str, Any] = dict(self._question)
            if self._settings.kernel_log:
                question |= {"kernel_log": self._settings.kernel_log, **self._monitor.log_place}
            early: list[dict[str, Any]] = []
            limit_s = self._settings.probe_timeout_s
            try:
                answer = await self._probe.call("facts", question, deadline_s=limit_s, on_progress=early.append)
            except (ProblemError, CallCancelled) as error:
                self._monitor.report_silence(first_line(error), now, *map(parse_host_facts, early[-1:]))
                return False
            before, facts = self.snapshot.facts, parse_host_facts(answer.result)
            if absent is None or absent != self._absent_generation():  # the worker was up during the probe
                facts = drop_ambiguous_processes(facts)
            self.update(facts=facts, facts_at=now)
            self._monitor.report_facts(facts, before, self.snapshot.devices(now), now)
            self._has_probed.set()
            self._has_probed = asyncio.Event()
            return True

    async def wait_for_probe(self) -> None:
        """Waits for the next answer of the probe."""
        await self._has_probed.wait()

    async def list_jax_devices(self) -> None:
        """Reads JAX's devices from the device worker, which it starts if necessary. The snapshot records a failure."""
        try:
            answer = await self._device.call("describe", {}, deadline_s=DESCRIBE_TIMEOUT_S)
        except CallCancelled:
            self.report_worker()
            return
        except ProblemError as error:
            self.update(failure=error)
            self.report_worker()
            return
        self.update(failure=None, jax=JaxReport(answer.result, self._clock.now(), answer.generation))
        self.report_worker()
        self._report_cpus("JAX lists it")

    def report_progress(self, value: Mapping[str, Any]) -> None:
        """Reports the devices that a bench has measured. The bench restarts a released worker."""
        self.update(released=False)
        record, now = value.get("record"), self._clock.now()
        if record and not self.snapshot.mismatch:
            devices = self.snapshot.devices(now).devices
            seen = [device for device in devices if device.jax_id is not None] or devices  # JAX opens no other
            seen = sorted(seen, key=lambda device: device.jax_id or 0)
            measured = record["device_indices"]  # in JAX's order where the worker cannot tell GPUs apart, as with MIG
            chosen = [device for device in seen if device.local_index in measured]
            chosen = chosen or [seen[place] for place in measured if place < len(seen)]
            self._monitor.report_record(record, chosen, now)

    def _absent_generation(self) -> tuple[int, ...] | None:
        """Returns the generations of the last processes that open devices if none runs now, else None."""
        are_absent = all(each.state in {"stopped", "backoff", "failed"} for each in self._opening)
        return tuple(each.generation for each in self._opening) if are_absent else None

    def report_worker(self) -> None:
        """Reports the worker's state, except for a running worker that has not listed its devices yet."""
        failure = self.snapshot.failure
        if not self._has_answered and failure is None and self._device.state in {"ready", "busy"}:
            return
        self._monitor.report_worker(
            self._device,
            has_started=self._has_answered,
            not_started="" if self._stays else self._explain_stopped(),
            failure="" if failure is None else first_line(failure),
            mismatch=self.snapshot.mismatch,
            at=self._clock.now(),
        )

    # ---- release of the devices ------------------------------------------------------------------------------------

    async def release(self) -> Release:
        """Ends the worker and its runs, then probes the holders. See `_may_restart` for its restart."""
        self._record_release()
        started_s, was_running = self._clock.monotonic(), any(each.pid is not None for each in self._opening)
        (is_killed, ending), cancelled = await asyncio.gather(
            self._end_opening(RELEASED, within_s=RELEASE_LIMIT_S - ANSWER_RESERVE_S - PROBE_RESERVE_S),
            self._runs.cancel_all(RELEASED, lane="device"),
        )

        def left_s() -> float:
            return started_s + RELEASE_LIMIT_S - ANSWER_RESERVE_S - self._clock.monotonic()

        holders, unknown = await self._ask_in_time(left_s())
        while was_running and unknown == "no_permission" and left_s() >= ANOTHER_PROBE_S:
            again = await self._ask_in_time(left_s())  # a driver takes a moment to clear a context
            if again[1] == "driver_timeout":
                break
            holders, unknown = again
        present = {pid for each in self._opening for pid in each.holding_pids}  # a process may have ended meanwhile
        holding = {pid: module for pid, module in ending.items() if pid in present}
        holders = _name_own(holders, ending, holding)
        duration_s = self._clock.monotonic() - started_s
        RELEASE_DURATION.labels("abandoned" if holding else "killed" if is_killed else "released").observe(duration_s)
        self._record_release()
        return Release(
            released=not holding,
            worker_killed=is_killed,
            cancelled_runs=cancelled,
            holders=holders,
            holders_unknown=unknown if holders is None else None,
        )

    async def _end_opening(self, reason: str, within_s: float | None = None) -> tuple[bool, dict[int, str]]:
        """Ends the children that open devices; returns whether one was killed, and process → module of those left."""
        ended = await asyncio.gather(*(each.release(reason=reason, within_s=within_s) for each in self._opening))
        left = zip(self._opening, ended, strict=True)
        return any(each.killed for each in ended), {
            pid: child.spec.module for child, each in left for pid in each.abandoned_pids
        }

    def _record_release(self) -> None:
        self.update(released=True, failure=None)
        self.report_worker()

    async def _ask_in_time(self, bound_s: float) -> _Holders:
        """Returns the holders from the probe; None and the reason if they are unknown or the probe is late."""
        limit_s = max(0.1, bound_s)
        asking: asyncio.Task[_Holders] = self._spawn(self._ask_for_holders(limit_s))
        done, _ = await asyncio.wait({asking}, timeout=limit_s)
        if not done:
            asking.cancel()  # not awaited: ending a hanging probe takes longer than the remaining time
            return None, "driver_timeout"
        return asking.result()

    async def _ask_for_holders(self, limit_s: float) -> _Holders:
        try:
            answer = await self._probe.call("holders", self._question, deadline_s=limit_s)
        except (ProblemError, CallCancelled):
            return None, "driver_timeout"
        holders = answer.result["holders"]
        return (None, "no_permission") if holders is None else (tuple(map(DeviceProcess.model_validate, holders)), None)

    async def preempt(self, ids: Sequence[str], reason: str) -> tuple[str, ...]:
        """Ends these benches for a lease, and a worker on accelerators. Returns the ended benches.

        A worker on accelerators holds them also between two benches. On CPUs only a bench blocks the lease. Other
        benches do not open these devices, because JAX does not see them, and continue.

        Raises:
            DeviceBusyError: the worker does not end, even after SIGKILL.
        """
        under_way = [run.id for run in self._runs.list_live("device") if run.state == "running"]
        cancelling = self._runs.cancel_all(reason, lane="device", only=ids)
        if not set(under_way) & set(ids) and (under_way or self._stays):
            return await cancelling
        (_, left), gone = await asyncio.gather(self._end_opening(reason), cancelling)
        self.report_worker()
        if left and not self._stays:
            pids = ", ".join(map(str, left))
            detail = f"the agent's own worker, process {pids}, still holds the devices after SIGKILL"
            raise DeviceBusyError(detail, hint="the driver hangs: look at the kernel log, and drain this host")
        return gone


def _name_own(
    holders: tuple[DeviceProcess, ...] | None, ending: Collection[int], holding: Mapping[int, str]
) -> tuple[DeviceProcess, ...] | None:
    """Returns the holders and the agent's own processes that do not end, reported by the probe or not."""
    seen = tuple(holder for holder in holders or () if holder.pid not in ending or holder.pid in holding)
    missing = holding.keys() - {holder.pid for holder in seen}
    own = tuple(DeviceProcess(pid=pid, command=f"python -m {holding[pid]}", own=True) for pid in sorted(missing))
    return None if holders is None and not own else (*seen, *own)
