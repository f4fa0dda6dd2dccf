"""Preflights: this host's part in the check of many hosts, as a run whose process the agent watches.

Rule: a run that failed is this host's fault. A run that was cancelled waited for other hosts. A client that
compares the runs of all hosts finds the host at fault. The process ends with its call, and before the time limit,
however the others end. This module does not depend on routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from statistics import median
from typing import Any, Final

from pydantic import ValidationError

from meshwright.errors import InvalidRequestError, NotFoundError, RunFailedError, UnavailableError
from meshwright.wire.bench import BenchRequest
from meshwright.wire.devices import MeasuredNetwork
from meshwright.wire.preflight import OWN_PHASES, PREFLIGHT_PHASES, PreflightRequest, PreflightResult
from meshwright.wire.runs import Run
from meshwright_agent.bench.limits import check_idle
from meshwright_agent.bodies import shorten_large
from meshwright_agent.clock import Clock
from meshwright_agent.host.base import AgentHost
from meshwright_agent.leases import LeaseRegistry, Owner
from meshwright_agent.runs import Done, Emit, RunQueue
from meshwright_agent.supervisor.supervisor import Answer, CallCancelled, Supervisor

STUCK_S: Final = 15.0
"""A process that has not sent its phase for this time is stuck; it sends it every second."""
_ENDED_BY_JAX: Final = "the JAX distributed service detected fatal errors"
"""Source: xla/pjrt/distributed/client.h. It ends every process of a job when one is missing."""
_LOOK: Final = "see GET /health and the kernel's log"
WATCH_S: Final = 0.5
_MEASURING: Final = frozenset({"devices", "again"})
MIN_BLAME_PHASE_S: Final = 10.0
"""A phase of `_MEASURING` that takes longer is the host's fault. The caller judges others, by the time of peers:
JAX's import, or the driver, may be slow on every host."""
PHASE_RATIO: Final = 0.4
"""Of the time limit: how long one phase may take."""


log = logging.getLogger(__name__)


class _Watch:
    """Where the process is, and for how long."""

    def __init__(self, emit: Emit) -> None:
        self.phase = ""
        self._emit = emit
        self.receive({"phase": PREFLIGHT_PHASES[0]})

    @property
    def phase_s(self) -> float:
        """Seconds since the phase began."""
        return time.monotonic() - self._entered_s

    def receive(self, value: dict[str, Any]) -> None:
        """Reports a new phase as the progress of the run."""
        if value["phase"] == self.phase:
            return
        self.phase, self._entered_s = value["phase"], time.monotonic()
        done = PREFLIGHT_PHASES.index(self.phase)
        self._emit({"done": done, "total": len(PREFLIGHT_PHASES), "message": self.phase})


@dataclass
class Preflights:
    """The preflights of one host.

    Attributes:
        child: runs one process per preflight.
        device: the worker, which leaves the devices first.
        clock: dates what they measure.
    """

    child: Supervisor
    device: Supervisor
    host: AgentHost
    runs: RunQueue
    registry: LeaseRegistry
    clock: Clock

    async def recall(self) -> None:
        """Reads what the last preflights measured.

        Raises:
            StoreUnavailableError: the store does not answer.
        """
        for run in reversed(await self.runs.list_succeeded("preflight", limit=8)):
            self._note_network(run.id, run.result or {}, run.finished_at or run.created_at)

    def _note_network(self, run_id: str, result: dict[str, Any], at: datetime) -> None:
        """Notes a device's share of the rate between hosts."""
        try:
            found = PreflightResult.model_validate(result)
        except ValidationError as error:
            log.warning("the result of %s is not read for plans: %s", run_id, error)
            return
        rates = [rate / len(found.devices) for rate in found.network_bytes_per_s if rate is not None]
        if rates and not found.wrong:
            network = MeasuredNetwork(
                bytes_per_s=median(rates), run_id=run_id, basis="measured", observed_at=at, age_s=0.0
            )
            self.host.update(network=network)

    async def submit(self, request: PreflightRequest, *, by: Owner) -> Run:
        """Queues this host's part after checking that its devices are idle and leased for it.

        Raises:
            NotFoundError: the lease is not here; ForbiddenError: it belongs to another owner.
            DeviceLeasedError: another lease covers a device; DeviceBusyError: another process uses one.
            InvalidRequestError: the lease does not cover all devices.
            UnavailableError: the devices or their holders could not be read.
        """
        self.host.require_hardware("a preflight")
        self.host.snapshot.require_topology()
        self._check_lease(request, by)
        await self._check_idle(request)
        count = len(request.hosts) * len(self.host.devices().devices)
        if request.order is not None and len(request.order) != count:
            detail = f"order has {len(request.order)} devices, and the hosts have {count}"
            raise InvalidRequestError.of("order", detail, "plan on all devices of these hosts")
        body = shorten_large(request.model_dump(mode="json"))
        return await self.runs.submit("preflight", body, partial(self.execute, request))

    async def _check_idle(self, request: PreflightRequest) -> None:
        await self.host.require_probe()
        check_idle(BenchRequest(lease=request.lease), self.host.devices())

    def _check_lease(self, request: PreflightRequest, by: Owner) -> None:
        own = self.registry.find(request.lease)
        if own is None:
            detail = f"the preflight names lease {request.lease!r}, which is not here or has ended"
            raise NotFoundError(detail, hint=f"PUT /leases/{request.lease} reserves all devices of this host")
        by.check(own.lease)
        devices = self.host.devices().devices
        if others := self.registry.list_covering(devices, but=request.lease):
            raise self.registry.refuse(others, devices, "the preflight", ())
        if missing := [device.local_index for device in devices if device.lease is None]:
            detail = f"lease {request.lease} does not cover device {missing[0]}; a preflight opens all of a host"
            raise InvalidRequestError.of("lease", detail, f'PUT /leases/{request.lease} with {{"devices": "all"}}')

    async def execute(self, request: PreflightRequest, run: Run, emit: Emit) -> Done:
        """Runs this host's process to its end. The queue calls this method.

        Raises:
            CallCancelled: other hosts did not come, or ended, or the time was over.
            RunFailedError: this host cannot take part, its process ended or is stuck, or its devices are too slow.
        """
        await self._check_idle(request)
        self._check_held(request)
        devices = self.host.devices()
        if devices.platform != "cpu":  # CPU devices have no owner
            await self.device.release(reason="a preflight opens the devices")
        watch, until_s = _Watch(emit), time.monotonic() + request.timeout_s
        here = {
            "request": request.model_dump(mode="json"),
            "platform": devices.platform,
            "device_count": len(devices.devices),
            "until_s": until_s,
        }
        work = self.child.call("preflight", here, deadline_s=2 * request.timeout_s, on_progress=watch.receive)
        call = asyncio.create_task(work)
        try:
            answer = await self._wait(call, watch, request, until_s)
        except UnavailableError as error:  # the process ended
            if any(_ENDED_BY_JAX in line for line in error.log):
                detail = f"JAX ended the process in phase {watch.phase}: a host did not come, or its process ended"
                raise CallCancelled(detail) from error
            detail = f"the process of the preflight ended in phase {watch.phase}: {error.detail.rpartition('; ')[2]}"
            raise RunFailedError(detail, hint=_LOOK, log=error.log) from error
        except RunFailedError as error:
            if error.code == "run_cancelled":
                raise CallCancelled(error.detail) from error
            raise
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await self.child.release(reason="the preflight has ended")  # a job may start when the run has ended
        emit({"done": len(PREFLIGHT_PHASES), "total": len(PREFLIGHT_PHASES), "message": watch.phase})
        self._note_network(run.id, answer.result, self.clock.now())
        return answer.result

    def _check_held(self, request: PreflightRequest) -> None:
        """Raises CallCancelled unless the lease still holds: its owner may have gone."""
        if self.registry.find(request.lease) is None:
            raise CallCancelled(f"lease {request.lease} has ended")

    async def _wait(
        self, call: asyncio.Task[Answer], watch: _Watch, request: PreflightRequest, until_s: float
    ) -> Answer:
        while not (await asyncio.wait({call}, timeout=WATCH_S))[0]:
            self._check_held(request)
            if self.child.silent_s > STUCK_S:
                detail = f"the preflight's process is stuck: no sign of it for {STUCK_S:g} s, in phase {watch.phase}"
                raise RunFailedError(detail, hint=_LOOK, log=self.child.log_tail[-20:])
            if watch.phase_s <= PHASE_RATIO * request.timeout_s and time.monotonic() <= until_s:
                continue
            if watch.phase in _MEASURING and watch.phase_s >= MIN_BLAME_PHASE_S:
                detail = f"this host did not come through phase {watch.phase} within {watch.phase_s:.0f} s"
                raise RunFailedError(detail, hint="see GET /health; or give a longer timeout_s")
            cause = "this host is slow, or all are" if watch.phase in OWN_PHASES else "another host holds it up"
            detail = f"phase {watch.phase} did not end within {watch.phase_s:.0f} s: {cause}"
            raise CallCancelled(detail)
        return call.result()
