"""One look at this host without an agent: the probe and the device worker, each asked once and ended.

Rule: what an agent would not touch unasked (devices that another process holds, or that the caller knows to be
reserved) is not touched here either. Knows no plan, no lease and no finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.errors import ProblemError
from meshwright.wire.devices import Worker
from meshwright_agent.clock import SystemClock
from meshwright_agent.facts.model import GpuFacts, HostFacts, TpuFacts, parse_host_facts
from meshwright_agent.settings import Settings
from meshwright_agent.supervisor.specs import (
    build_device_spec,
    build_probe_spec,
    may_touch,
    read_roots,
    tell_prohibited,
)
from meshwright_agent.supervisor.supervisor import Supervisor


async def ask_probe(settings: Settings, environ: Mapping[str, str]) -> HostFacts:
    """Returns what driver, sysfs and /proc say.

    Raises:
        ProblemError: the probe did not answer.
    """
    probe = Supervisor(build_probe_spec(settings, environ), clock=SystemClock())
    try:
        answer = await probe.call("facts", read_roots(settings), deadline_s=settings.probe_timeout_s)
        return parse_host_facts(answer.result)
    finally:
        await probe.close()


async def ask_worker(settings: Settings, environ: Mapping[str, str]) -> tuple[dict[str, Any], Worker]:
    """Returns what JAX shows, and the worker that it showed it in.

    Raises:
        ProblemError: JAX does not start; the log says why.
    """
    worker = Supervisor(build_device_spec(settings, environ, stays=True), clock=SystemClock())
    try:
        answer = await worker.call("describe", {}, deadline_s=settings.start_timeout_s)
        return answer.result, worker.view()
    except ProblemError as error:
        error.log = error.log or worker.log_tail
        raise
    finally:
        await worker.close()


def explain_held(facts: HostFacts | None) -> str:
    """Returns who or what keeps JAX off this host's devices (`may_touch`), in words; "" where nothing does."""
    if may_touch(facts):
        return ""
    devices: Sequence[GpuFacts | TpuFacts] = (facts.gpus or facts.tpus) if facts else ()
    for index, device in enumerate(devices):
        for process in device.processes or ():
            if not process.own:
                return f"process {process.pid} ({process.command or process.name or '?'}) holds device {index}"
    for holder in facts.holders or () if facts else ():
        if not holder.own:
            held = ", ".join(holder.devices) or "a device"
            return f"process {holder.pid} ({holder.command or holder.name or '?'}) holds {held}"
    return (tell_prohibited(facts) if facts else "") or "who holds the devices could not be looked at"
