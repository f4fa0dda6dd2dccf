"""Verdicts: what a look at the host means for the health of driver, worker and devices, and what is said of it.

Rule: a device is known by its strongest name (uuid, PCI address, else its index), so that a lost one renames no other;
a wrong result is remembered until a right one; a worker that was let go on purpose is no failure. What the driver says
of a device stands until the driver says something else, whatever JAX or a bench make of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from meshwright.topology.chips import ChipCount
from meshwright.wire.devices import Device, Devices
from meshwright_agent.facts.model import HostFacts
from meshwright_agent.health.board import HealthBoard
from meshwright_agent.health.devices import DeviceHealth
from meshwright_agent.health.diagnosis import PARTS, Finding, find_worst
from meshwright_agent.health.driver import judge_driver
from meshwright_agent.health.history import History
from meshwright_agent.health.memory import KnownDevice
from meshwright_agent.health.presence import Roll, describe_device
from meshwright_agent.health.xid_reports import KERNEL_LOG, NVSWITCH, report_kernel_log
from meshwright_agent.supervisor.supervisor import Supervisor

DRIVER: Final = "driver"
WORKER: Final = "worker"
INVENTORY: Final = "inventory"
_SILENT_PART: Final = Finding("unknown", "its source told of it before, and tells nothing now", "see `driver`")
DOCTOR: Final = "run `meshwright-agent doctor` on the host"


def name_component(device: Device) -> str:
    """Returns the component that a device's health stands under."""
    return f"device:{device.uuid or device.pci_bus_id or device.local_index}"


class Verdicts:
    """Writes what was seen onto the board.

    Args:
        board: gets it.
        history: gets faults that are reported, and keeps what must be remembered.
        expected: the devices that an operator declares; None: those that were seen.
    """

    def __init__(self, board: HealthBoard, history: History, expected: ChipCount | None) -> None:
        self._board = board
        self._history = history
        self._memory = history.memory
        self._devices = DeviceHealth(self._memory)
        self._roll = Roll(self._memory, expected)
        self._standing: dict[str, Finding] = {}
        self._parts: set[str] = set()
        self._silent: set[str] = set()
        self._of_last_boot: set[str] = set()
        self._missing: tuple[KnownDevice, ...] = ()
        self._has_answered = False
        self._listed: set[str] = set()
        board.expect((WORKER, DRIVER))

    def recall(self, at: datetime) -> None:
        """Puts devices, parts and faults of an earlier life of the agent onto the board: nobody has looked yet."""
        devices = [f"device:{device.key}" for device in self._memory.value.devices]
        told = self._memory.list_told()
        parts = [component for component in told if component.partition(":")[0] in PARTS]
        self._listed.update(devices)
        self._parts.update(parts)
        self._board.expect((*devices, *parts, *({INVENTORY} & set(told))))
        for fault in self._memory.value.faults:
            self._board.add_fault(fault, at)

    @property
    def log_place(self) -> dict[str, Any]:
        """How far the kernel log was looked at, as the probe takes it."""
        value = self._memory.value
        return {"kernel_log_after": value.log_sequence, "boot_id": value.boot_id}

    # driver and devices, by the probe

    def report_silence(self, reason: str, at: datetime) -> None:
        """The probe did not answer: what only the driver knows is not known now."""
        self._has_answered = False
        self._board.report(
            DRIVER, "unknown", f"the probe did not answer: {reason}", at=at, action="see the agent's log"
        )
        silent = Finding("unknown", f"driver does not answer: {reason}", "see `driver`")
        for component in self._listed:
            self._standing[component] = silent
        missing = [f"device:{device.key}" for device in self._missing]
        inventory = {INVENTORY} & set(self._board.names())
        for component in (*sorted(self._listed), *missing, *sorted(self._parts), *inventory):
            self._report(component, silent, at)

    def report_facts(self, facts: HostFacts, before: HostFacts | None, devices: Devices, at: datetime) -> None:
        """The probe answered: the driver's own complaints, each accelerator with its parts, each that is missing.

        Args:
            facts: what it found.
            before: what the look before it found.
            devices: the same as `/devices` shows it.
            at: when it looked.
        """
        self._has_answered = True
        self._note_boot(facts, at)
        self._report(DRIVER, judge_driver(facts.problems), at)
        report_kernel_log(self._board, self._history, facts, at)
        self._judge(facts, before, devices, at)

    def _note_boot(self, facts: HostFacts, at: datetime) -> None:
        """Takes the host's boot: another one ends faults, and may bring a driver that tells of other parts."""
        if self._memory.note_boot(facts.machine.boot_id):
            self._of_last_boot = set(self._parts)
            for component in self._board.list_faulty():
                self._board.clear_faults(component, at)

    def _judge(self, facts: HostFacts, before: HostFacts | None, devices: Devices, at: datetime) -> None:
        diagnosis = self._devices.judge(facts, before)
        keys = {gpu.key for gpu in facts.gpus} | {tpu.key for tpu in facts.tpus}
        self._standing = diagnosis.devices
        shown = [device for device in devices.devices if (device.uuid or device.pci_bus_id) in keys]
        known = self._listed | {f"device:{device.key}" for device in self._missing}
        self._listed = {name_component(device) for device in shown}
        for device in shown:
            self._report_device(device, f"[{device.local_index}] {device.kind} is listed", at)
        untold = self._parts - set(diagnosis.parts)
        self._silent = {part for part in untold - self._of_last_boot if part.partition(":")[2] in diagnosis.cards}
        for component in untold - self._silent:
            self._board.forget(component)
        diagnosis.parts |= dict.fromkeys(self._silent, _SILENT_PART)
        self._parts, self._of_last_boot = set(diagnosis.parts), set()
        for component, finding in diagnosis.parts.items():
            self._report(component, finding, at)
        self._report_missing(facts, at)
        self._forget_unshown(known)

    def _forget_unshown(self, known: Iterable[str]) -> None:
        """Takes devices off the board that are here and are none of `/devices`, as GPUs with `--cpu-devices`.

        One that a fault stands against stays: XIDs are told of cards, whatever JAX runs on.
        """
        missing = {f"device:{device.key}" for device in self._missing}
        for component in set(known) - self._listed - missing - set(self._board.list_faulty()):
            self._board.forget(component)

    def _report_missing(self, facts: HostFacts, at: datetime) -> None:
        """At each look, so that this does not grow old; one that is listed again was reported as such just now."""
        presence = self._roll.call(facts)
        self._missing = presence.missing
        for key, heirs in presence.heirs.items():
            self._bequeath(f"device:{key}", [f"device:{heir}" for heir in heirs], at)
        for key in presence.changed:
            self._forget(f"device:{key}")
        action = "check the kernel log; reboot the host if it does not return"
        for device in presence.missing:
            reason = f"was here before; the driver no longer lists it: {describe_device(device)}"
            self._report(f"device:{device.key}", Finding("unhealthy", reason, action, "permanent"), at)
        if presence.inventory is not None:
            self._report(INVENTORY, presence.inventory, at)
        elif INVENTORY in self._board.names():
            self._board.forget(INVENTORY)

    def _report(self, component: str, finding: Finding, at: datetime) -> None:
        self._board.report(
            component,
            finding.state,
            finding.reason,
            at=at,
            action=finding.action,
            permanence=finding.permanence,
        )

    def _bequeath(self, component: str, heirs: list[str], at: datetime) -> None:
        """Lets the faults of a device stand against those that its card is now, unless they have them already."""
        standing = {(fault.component, fault.code) for fault in self._memory.value.faults}
        for fault in [fault for fault in self._memory.value.faults if fault.component == component]:
            for heir in heirs:
                if (heir, fault.code) not in standing:
                    self._board.add_fault(self._memory.add_fault(replace(fault, component=heir)), at)

    def _forget(self, component: str) -> None:
        self._memory.clear_faults(component)
        self._memory.clear_wrong(component)
        self._board.forget(component)

    # an operator's word

    def acknowledge(self, component: str, at: datetime, *, facts: HostFacts | None, devices: Devices | None) -> None:
        """Clears what stands against a component until an operator says that it is dealt with.

        Args:
            component: its name; of a missing device, it is expected no more; of `inventory`, none of the missing is; a
                part that nothing is told of any more is gone.
            at: when the word was given.
            facts: what the last answer of the probe found. It is judged again, unless the probe has been silent since.
                None: nobody has looked.
            devices: the same as `/devices` shows it.
        """
        self._memory.clear_faults(component)
        self._memory.clear_wrong(component)
        self._board.clear_faults(component, at)
        if component in self._silent:
            self._parts.discard(component)
            self._board.forget(component)
        gone = [d.key for d in self._missing if component in (f"device:{d.key}", INVENTORY)]
        self._roll.forget(gone)
        for key in gone:
            self._forget(f"device:{key}")
        if facts is not None and devices is not None:
            self._devices.acknowledge(component, facts)
            if self._has_answered and (gone or component in self._listed | self._parts):
                self._judge(facts, facts, devices, at)

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
                self._memory.clear_wrong(component)
            else:
                reason = (
                    f"{record['case']} on devices {list(record['device_indices'])} gave a wrong result: "
                    f"{record['nwrong']} elements"
                )
                self._memory.note_wrong(component, reason)
            self._report_device(device, f"{record['case']} ran on it", at)

    def _report_device(self, device: Device, reason: str, at: datetime) -> None:
        component = name_component(device)
        findings = [self._standing[component]] if component in self._standing else []
        if wrong := self._memory.value.wrong_results.get(component):
            action = "run the bench again on this device alone; take it out of service if it is wrong again"
            findings.append(Finding("degraded", wrong, action))
        self._report(component, find_worst(findings) or Finding("healthy", reason), at)

    # the worker

    def report_worker(
        self, worker: Supervisor, *, has_started: bool, failure: str, mismatch: str, untouched: str = "", at: datetime
    ) -> None:
        """The device worker's state.

        Args:
            worker: its supervisor.
            has_started: JAX has answered in this agent's life.
            failure: why the last question to it failed; empty if it did not, or if it was let go since.
            mismatch: in which way JAX is not on this host's devices; empty if it is.
            untouched: why the watch does not start it, though it has not answered; empty if it does. Nobody has looked
                at it then: it is `initializing`, and counts for nothing.
            at: when.
        """
        finding = _judge_worker(worker, has_started, failure, mismatch)
        if finding is None and untouched and worker.state == "stopped":
            finding = Finding("initializing", untouched)
        if finding is not None:
            self._report(WORKER, finding, at)


MAX_SILENCE_S: Final = 60.0
"""A worker tells of each case of a bench; the longest silence of one that is well is the compile of a large case."""


def _judge_worker(worker: Supervisor, has_started: bool, failure: str, mismatch: str) -> Finding | None:
    """Returns how the worker is; None: nobody knows yet.

    Once its crash budget is spent nothing starts it again; between two tries nobody knows what the next will bring.
    """
    is_alive = worker.state in {"ready", "busy"}
    cause = worker.last_error or failure
    if worker.state == "failed":
        return Finding("unhealthy", f"does not start: {cause}", f"{DOCTOR}, then restart the agent", "permanent")
    if failure and not has_started and not is_alive:
        return Finding("unhealthy", f"does not start: {cause}", DOCTOR)
    if failure and is_alive:
        return Finding("degraded", failure, "see the agent's log")
    if failure or (worker.has_crashed and not is_alive):
        action = (
            "the agent starts it again; after a release, or with MESHWRIGHT_HOLD=never, the next bench does. "
            "The agent's log has its last lines"
        )
        return Finding("degraded", f"died: {cause}", action, "transient")
    if mismatch:
        return Finding("degraded", mismatch, DOCTOR)
    if worker.silent_s > MAX_SILENCE_S:
        reason = f"generation {worker.generation} works and has been silent for {worker.silent_s:.0f} s"
        return Finding("degraded", reason, "see its run in GET /runs; DELETE /runs/{id} ends it", "transient")
    if is_alive:
        does = "is at work" if worker.state == "busy" else "answers"
        return Finding("healthy", f"generation {worker.generation} {does}")
    if worker.state == "stopped" and has_started:
        reason = f"let go on purpose after generation {worker.generation}; it starts on demand"
        return Finding("healthy", reason)
    return None


COMPONENTS: Final = (WORKER, DRIVER, INVENTORY, KERNEL_LOG, NVSWITCH, *PARTS)
"""Those that a look can make, beside `device:N`; parts are named as their device: `thermal:N`."""
