"""Verdicts: what a look at the host means for the health of driver, worker and devices, and what is said of it.

Rule: a device is known by its strongest name (uuid, PCI address, else its index), so that a lost one renames no other;
a wrong result is remembered until a right one; a worker that was let go on purpose is no failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from meshwright.wire.devices import Device, Devices
from meshwright.wire.health import State
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.health import HealthBoard
from meshwright_agent.worker.supervisor import Supervisor

DRIVER: Final = "driver"
WORKER: Final = "worker"
DOCTOR: Final = "run `meshwright-agent doctor` on the host"


def name_component(device: Device) -> str:
    """Returns the component that a device's health stands under."""
    return f"device:{device.uuid or device.pci_bus_id or device.local_index}"


class Verdicts:
    """Writes what was seen onto the board."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._gone: set[str] = set()
        self._faults: dict[str, str] = {}
        board.expect((WORKER, DRIVER))

    # driver and devices, by the probe

    def report_silence(self, reason: str, at: datetime) -> None:
        """The probe did not answer."""
        self._board.report(
            DRIVER, "unknown", f"the probe did not answer: {reason}", at=at, action="see the agent's log"
        )

    def report_facts(self, facts: HostFacts, before: HostFacts | None, devices: Devices, at: datetime) -> None:
        """The probe answered: the driver's own complaints, each accelerator that is listed, each that no longer is."""
        problems = "; ".join(facts.problems)
        state: State = "degraded" if problems else "healthy"
        self._board.report(DRIVER, state, problems or "driver, sysfs and /proc answer", at=at)
        seen = _list_keys(facts)
        for device in devices.devices:
            if (device.uuid or device.pci_bus_id) in seen:
                self._report_device(device, f"[{device.local_index}] {device.kind} is listed", at)
        self._report_gone((_list_keys(before) if before else set()) | self._gone, seen, at)

    def _report_gone(self, known: set[str], seen: set[str], at: datetime) -> None:
        """At each look, so that this does not grow old; one that is listed again was reported as such just now."""
        self._gone = known - seen
        for key in sorted(self._gone):
            self._board.report(
                f"device:{key}",
                "unhealthy",
                "was here before; the driver no longer lists it",
                at=at,
                action="check the kernel log; reboot the host if it does not return",
            )

    # devices, by JAX and by benches

    def report_listed(self, devices: Iterable[Device], at: datetime) -> None:
        """JAX lists these devices, and nobody else can see them (CPU)."""
        for device in devices:
            self._report_device(device, "JAX lists it", at)

    def report_record(self, record: Mapping[str, Any], devices: Iterable[Device], at: datetime) -> None:
        """A bench measured these devices; what it computed was right, or not."""
        for device in devices:
            component = name_component(device)
            if record["correct"]:
                self._faults.pop(component, None)
            else:
                self._faults[component] = (
                    f"{record['case']} on devices {list(record['device_indices'])} gave a wrong result: "
                    f"{record['nwrong']} elements"
                )
            self._report_device(device, f"{record['case']} ran on it", at)

    def _report_device(self, device: Device, reason: str, at: datetime) -> None:
        component = name_component(device)
        if fault := self._faults.get(component):
            action = "run the bench again on this device alone; take it out of service if it is wrong again"
            self._board.report(component, "degraded", fault, at=at, action=action)
        else:
            self._board.report(component, "healthy", reason, at=at)

    # the worker

    def report_worker(
        self, worker: Supervisor, *, has_started: bool, failure: str, mismatch: str, at: datetime
    ) -> None:
        """The device worker's state.

        Args:
            worker: its supervisor.
            has_started: JAX has answered in this agent's life.
            failure: why the last question to it failed; empty if it did not, or if it was let go since.
            mismatch: in which way JAX is not on this host's devices; empty if it is.
            at: when.
        """
        state, reason, action = _judge_worker(worker, has_started, failure, mismatch)
        if state is not None:
            self._board.report(WORKER, state, reason, at=at, action=action)

    def report_working(self, generation: int, at: datetime) -> None:
        """The worker told how far its bench is."""
        self._board.report(WORKER, "healthy", f"generation {generation} works on a bench", at=at)


def _judge_worker(worker: Supervisor, has_started: bool, failure: str, mismatch: str) -> tuple[State | None, str, str]:
    is_alive = worker.state in {"ready", "busy"}
    cause = worker.last_error or failure
    if worker.state == "failed" or (failure and not has_started and not is_alive):
        return "unhealthy", f"does not start: {cause}", DOCTOR
    if failure and is_alive:
        return "degraded", failure, "see the agent's log"
    if failure or worker.state == "backoff":
        return "degraded", f"died: {cause}", "it is started again by itself; see the agent's log"
    if mismatch:
        return "degraded", mismatch, DOCTOR
    if is_alive:
        return "healthy", f"generation {worker.generation} answers", ""
    if worker.state == "stopped" and has_started:
        return "healthy", f"let go on purpose after generation {worker.generation}; it starts on demand", ""
    return None, "", ""


def _list_keys(facts: HostFacts) -> set[str]:
    return {gpu.key for gpu in facts.gpus} | {tpu.key for tpu in facts.tpus}
