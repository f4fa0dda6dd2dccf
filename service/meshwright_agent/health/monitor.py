"""The health monitor: turns each probe of the host into findings, and findings into states of the registry.

A device is identified by its strongest name (uuid, PCI address, else its index), so that a lost device does not rename
others. The driver's report on a device lasts until the next one, regardless of reports from JAX or a bench. A wrong
result is remembered until a correct one. A worker that was released on purpose has not failed. MIG instances share the
parts of their card.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import prod
from typing import Any, Final

from meshwright.topology.chips import ChipCount, find_chip
from meshwright.wire.devices import Device, Devices
from meshwright_agent.clock import Clock
from meshwright_agent.facts.model import GpuFacts, GpuHealth, HostFacts, PciHealth, RefusedCard, TpuFacts
from meshwright_agent.health.events import Finding, HealthMemory, History, KnownDevice
from meshwright_agent.health.nics import NIC, NicEvaluator
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.health.rules import PARTS, CardView, evaluate_card, evaluate_driver, find_worst
from meshwright_agent.health.xid import DRIVER, KERNEL_LOG, report_kernel_log
from meshwright_agent.settings import Settings
from meshwright_agent.store import Store, StoreUnavailableError
from meshwright_agent.supervisor.supervisor import Supervisor


@dataclass(frozen=True)
class Card:
    """A card for evaluation. `key` names its components; `devices` are the keys of the devices on it.

    `is_divided`: the card is in MIG mode, in which it does not have NVLinks.
    """

    key: str
    kind: str
    pci_bus_id: str | None
    devices: tuple[str, ...]
    health: GpuHealth | None = None
    pci: PciHealth | None = None
    has_file: bool | None = None
    file: str | None = None
    is_divided: bool = False


@dataclass
class Diagnosis:
    """The evaluation of one probe: findings by component; for devices only those that are not healthy.

    `cards` are the keys of all listed cards, with or without findings.
    """

    parts: dict[str, Finding] = field(default_factory=dict)
    devices: dict[str, Finding] = field(default_factory=dict)
    cards: frozenset[str] = frozenset()


def list_cards(facts: HostFacts) -> tuple[Card, ...]:
    """Returns the cards of a host. The MIG instances of one card count as one card."""
    gpus: dict[str, list[GpuFacts]] = {}
    for gpu in facts.gpus:
        gpus.setdefault(gpu.mig.parent_uuid if gpu.mig else gpu.key, []).append(gpu)
    cards = [_build_card(key, members) for key, members in gpus.items()]
    return (*cards, *(_build_tpu(tpu) for tpu in facts.tpus))


def _build_card(key: str, members: list[GpuFacts]) -> Card:
    first = members[0]
    kind = (first.kind or "").partition(" MIG ")[0]
    devices = tuple(gpu.key for gpu in members)
    return Card(key, kind, first.pci_bus_id, devices, first.health, first.pci, is_divided=first.mig is not None)


def _build_tpu(tpu: TpuFacts) -> Card:
    return Card(tpu.key, tpu.kind or "TPU", tpu.pci_bus_id, (tpu.key,), None, tpu.pci, tpu.has_file, tpu.device_file)


def _count_nvlinks(card: Card) -> int:
    return (card.health.nvlinks_active if card.health else None) or 0


class CardEvaluator:
    """Evaluates the cards of each probe.

    Args:
        memory: has the baselines of counters and the earlier records of cards.
    """

    def __init__(self, memory: HealthMemory) -> None:
        self._memory = memory

    def evaluate(self, facts: HostFacts, before: HostFacts | None) -> Diagnosis:
        """Returns the evaluation of a probe.

        Args:
            before: the facts of the previous probe; those of the same probe for a repeated evaluation.
        """
        cards, earlier = list_cards(facts), {card.key: card for card in list_cards(before)} if before else {}
        diagnosis = Diagnosis(cards=frozenset(card.key for card in cards))
        for card in cards:
            if (active := _count_nvlinks(card)) > self._memory.nvlinks.get(card.key, 0):
                self._memory.nvlinks[card.key] = active
        for card in cards:
            self._record_baselines(card)
            alike = [each for each in cards if (each.kind, each.is_divided) == (card.kind, card.is_divided)]
            siblings = [each for each in alike if each is not card]
            view = self._build_view(card, earlier.get(card.key), siblings)
            evaluated = {part: evaluate_card(part, view) for part in PARTS}
            parts = {f"{part}:{card.key}": finding for part, finding in evaluated.items() if finding is not None}
            diagnosis.parts |= parts
            ill = [part for part in parts.values() if part.state in ("unhealthy", "unknown")]
            own = evaluate_card("device", view)
            worst = find_worst((*ill, own) if own else ill)
            if worst is not None:
                diagnosis.devices |= {f"device:{key}": worst for key in card.devices}
        return diagnosis

    def _expect_nvlinks(self, card: Card, siblings: Collection[Card]) -> int:
        """Returns how many NVLinks a card should have; 0 if it may have none.

        A card that had NVLinks is compared with other cards of its kind. A card never seen with NVLinks has lost them
        only if its kind always has them. PCIe cards may lack a bridge, and a single card does not have a peer.
        A card in MIG mode has none.
        """
        most = max((self._memory.nvlinks.get(each.key, 0) for each in (card, *siblings)), default=0)
        before = None if card.is_divided else self._memory.nvlinks.get(card.key)
        if before is None and siblings and not card.is_divided:
            chip = find_chip(card.kind)
            if chip is None:
                return most if all(_count_nvlinks(each) for each in siblings) else 0
            return max(most, chip.link_count) if chip.link_count else 0
        return most if before else 0

    def _build_view(self, card: Card, earlier: Card | None, siblings: Collection[Card]) -> CardView:
        if card.has_file:
            self._memory.had_file.add(card.key)
        is_lost = card.has_file is False and card.key in self._memory.had_file
        baselines = self._memory.baselines
        return CardView(
            health=card.health,
            pci=card.pci or PciHealth(),
            before=earlier.health if earlier else None,
            nonfatal_before=earlier.pci.nonfatal_count if earlier and earlier.pci else None,
            siblings=tuple(each.health for each in siblings if each.health is not None),
            expected_nvlinks=self._expect_nvlinks(card, siblings),
            baselines={**baselines.get(f"link:{card.key}", {}), **baselines.get(f"memory:{card.key}", {})},
            lost_file=card.file if is_lost else None,
        )

    def _record_baselines(self, card: Card) -> None:
        """Records the first value of the bus's fatal errors as their baseline, because AER counts from boot.

        Those before the first probe are not reported; uncorrectable errors of the memory are. A counter below its
        baseline was reset with the card, so that the baseline is reset too. Otherwise the next error would count as
        acknowledged.
        """
        link, memory = f"link:{card.key}", f"memory:{card.key}"
        fatal = card.pci.fatal_count if card.pci else None
        if fatal is not None and fatal < self._memory.baselines.get(link, {}).get("fatal", fatal + 1):
            self._memory.set_baseline(link, "fatal", fatal)
        uncorrectable = card.health.uncorrectable_count if card.health else None
        if uncorrectable is not None and uncorrectable < self._memory.baselines.get(memory, {}).get("uncorrectable", 0):
            self._memory.set_baseline(memory, "uncorrectable", uncorrectable)

    def acknowledge(self, component: str, facts: HostFacts) -> None:
        """Acknowledges the current counters of one part, or of all parts of a device."""
        for card in list_cards(facts):
            names = {f"device:{key}" for key in card.devices}
            if (
                component in names | {f"memory:{card.key}"}
                and card.health
                and card.health.uncorrectable_count is not None
            ):
                self._memory.set_baseline(f"memory:{card.key}", "uncorrectable", card.health.uncorrectable_count)
            if component in names:
                self._memory.had_file.discard(card.key)
            if component in names | {f"link:{card.key}"}:
                self._memory.nvlinks[card.key] = 0
                if card.pci and card.pci.fatal_count is not None:
                    self._memory.set_baseline(f"link:{card.key}", "fatal", card.pci.fatal_count)


_ACTION = "check the kernel log; reboot the host if it does not return; {} if it was taken out"
_UNREAD: Final = Finding("unknown", "the agent cannot read this card", "see `driver`")


def _is_unread(device: KnownDevice, facts: HostFacts) -> bool:
    """Returns whether an unlisted device may be one of the cards that the agent cannot read."""
    return bool(facts.unread) and (None in facts.unread or device.pci_bus_id in (None, *facts.unread))


@dataclass(frozen=True)
class InventoryReport:
    """The inventory of one probe.

    Attributes:
        changed: key of an absent device → the devices that now have its place on the bus.
        inventory: finding for all devices; None without accelerators, if none is expected.
    """

    missing: tuple[KnownDevice, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inventory: Finding | None = None


class InventoryCheck:
    """Compares the devices with the expected ones: those declared, else those seen before.

    Devices are counted as in /devices, a card in MIG mode as its instances. If a chip is declared, cards are counted. A
    device that was seen once is missing when it is not listed. If another device has its place on the bus (MIG, a newly
    reported uuid), the device is changed, not missing. Its faults move to the new device. A card without a uuid in one
    probe is neither missing nor changed. Faults of an address move to the device that has it. A card that the driver
    does not open for any process is also missing, even if no earlier probe saw it. A card that the agent cannot read is
    unknown, not missing.

    Args:
        expected: the devices that an operator has declared; None without a declaration.
    """

    def __init__(self, memory: HealthMemory, expected: ChipCount | None) -> None:
        self._memory = memory
        self._expected = expected

    def check(self, facts: HostFacts) -> InventoryReport:
        """Returns the missing devices, and records the present ones."""
        cards = list_cards(facts)
        listed = {key for card in cards for key in card.devices}
        places = {card.pci_bus_id: card.devices for card in cards if card.pci_bus_id}
        places |= {each: (each,) for each in facts.find_cards("no_instances") if each}  # the address keeps the faults
        unnamed = {card.pci_bus_id for card in cards if card.key == card.pci_bus_id}  # may be the earlier device
        nameless = {gpu.key for gpu in facts.gpus if not (gpu.uuid or gpu.pci_bus_id)}  # may be any earlier device
        for card in cards:
            for key in set(card.devices) - nameless:
                before = self._memory.devices.get(key)
                address = card.pci_bus_id or (before.pci_bus_id if before else None)  # a question may fail once
                self._memory.devices[key] = KnownDevice(key, card.kind, address)
        known = () if nameless else self._memory.devices.values()
        absent = [each for each in known if each.key not in listed and each.pci_bus_id not in unnamed]
        gone = [each for each in absent if each.pci_bus_id in places or self._is_complete(cards)]
        changed = {each.key: places.get(each.pci_bus_id or "", ()) for each in gone}
        ghosts = {place for place in places if f"device:{place}" in self._memory.faults and place not in places[place]}
        changed |= {place: places[place] for place in ghosts}
        self._memory.forget_devices(changed)
        missing = tuple(device for device in absent if device.key not in changed)
        return InventoryReport(missing, changed, self._evaluate(cards, missing, facts))

    def _count(self, cards: tuple[Card, ...]) -> int:
        """Returns the number of devices on these cards; if a chip is declared, the number of cards with that chip."""
        if self._expected is None or self._expected.chip is None:
            return sum(len(card.devices) for card in cards)
        return sum(self._expected.is_of(card.kind, None) for card in cards)

    def _is_complete(self, cards: tuple[Card, ...]) -> bool:
        """Returns whether the declared number of devices is present. Then no device seen before is missing."""
        return self._expected is not None and self._count(cards) >= self._expected.count

    def _describe_unit(self, cards: tuple[Card, ...]) -> str:
        """Returns the counted unit, if cards and devices differ."""
        if all(len(card.devices) == 1 for card in cards):
            return ""
        counts_cards = self._expected is not None and self._expected.chip is not None
        return ", a card in MIG mode counted once" if counts_cards else ", each MIG instance counted"

    def _evaluate(self, cards: tuple[Card, ...], missing: tuple[KnownDevice, ...], facts: HostFacts) -> Finding | None:
        refused, declared = facts.refused, _count_slice_chips(facts)
        known = {device.pci_bus_id for device in missing}
        unseen = [card for card in refused if card.pci_bus_id not in known]
        if None in (card.pci_bus_id for card in refused):  # it may be any missing device
            unseen = unseen[len(missing) :]
        lost = (*(describe_device(device) for device in missing), *map(_describe_refused, unseen))
        here, names = self._count(cards), ", ".join(lost)
        is_lost = bool(unseen) or not (facts.unread and all(_is_unread(device, facts) for device in missing))
        gone = f"; {'missing' if is_lost else 'not readable'}: {names}" if names else ""
        counted, remedy = self._describe_unit(cards), "correct MESHWRIGHT_EXPECT"
        total = self._expected.count if self._expected else max(here + len(lost), declared)
        if self._expected is None:
            remedy, gone = "POST /health/acknowledge", gone or " (by the environment of the TPU slice)"
        reason = f"{here} of {self._expected.words if self._expected else f'{total} devices'} are here{counted}"
        if here < total:
            lacking = Finding("unhealthy", f"{reason}{gone}", _ACTION.format(remedy), "permanent")
            return lacking if is_lost else replace(_UNREAD, reason=lacking.reason)
        if self._expected is not None:
            return Finding("healthy", reason)
        if not cards:
            return None
        these = "1 device is" if here == 1 else f"{here} devices are"
        return Finding("healthy", f"{these} here{counted}, and none is missing of those that were seen")


def _count_slice_chips(facts: HostFacts) -> int:
    """Returns how many chips of its TPU slice this host should have, by the environment; 0: unknown.

    A slice of at most four chips is on one host, because Google's hosts in larger slices have at least four.
    """
    part = facts.slice
    if not facts.tpus:
        return 0
    if part.chips_per_host is not None:
        return prod(part.chips_per_host)
    chips = prod(part.topology or (0,))
    return chips if part.host_count == 1 or chips <= 4 else 0


def _describe_refused(card: RefusedCard) -> str:
    name = "a GPU" if card.index is None else f"GPU {card.index}"
    return f"{name}{f' at {card.pci_bus_id}' if card.pci_bus_id else ''} ({card.reason})"


def describe_device(device: KnownDevice) -> str:
    """Returns a device's description, with which an operator can find it."""
    place = f" at {device.pci_bus_id}" if device.pci_bus_id and device.pci_bus_id != device.key else ""
    return " ".join(filter(None, (device.kind, device.key))) + place


WORKER: Final = "worker"
INVENTORY: Final = "inventory"
STORE: Final = "store"
KINDS: Final = (WORKER, DRIVER, STORE, INVENTORY, KERNEL_LOG, NIC, "device", *PARTS)
"""All kinds of components. Devices and parts have the number of their device: `device:N`, `thermal:N`;
network ports their name: `nic:mlx5_0:1`."""
_MEASUREMENT: Final = ("case", "axis", "axis_size", "dtype", "size_bytes", "device_indices")
"""Fields of a bench's record that say what it measured. A right result ends only a wrong one of the same."""
_WITHOUT_SOURCE: Final = Finding("initializing", "no source here reports its health")
_SWITCHED_OFF: Final = "see `nvidia-smi -q`; if it was switched off on purpose, `meshwright health ack` and its name"
_SILENT_PART: Final = Finding("unknown", "its data source stopped reporting", _SWITCHED_OFF)
_HUNG: Final = "look for NVRM in the kernel log and at /proc/PID/stack (pgrep -f children.probe); usually reboot it"
DOCTOR: Final = "run `meshwright-agent doctor` on the host"
FABRIC_START: Final = timedelta(minutes=5)
"""Time in which an NVLink fabric may start, our choice: nvidia-fabricmanager takes a minute or two after a boot."""
MAX_SILENCE_S: Final = 60.0
"""A worker reports each case of a bench. The longest silence of a healthy worker is the compile of a large case."""


class HealthMonitor:
    """Writes the findings of probes, benches and the worker to the registry.

    Args:
        history: receives reported faults, and has the memory across restarts.
        expected: the devices that an operator declares; None: the devices seen before.
    """

    def __init__(self, registry: HealthRegistry, history: History, expected: ChipCount | None) -> None:
        self._registry = registry
        self._history = history
        self._memory = history.memory
        self._cards = CardEvaluator(self._memory)
        self._inventory = InventoryCheck(self._memory, expected)
        self._nics = NicEvaluator(self._memory)
        self._standing: dict[str, Finding] = {}
        self._parts: set[str] = set()
        self._silent: set[str] = set()
        self._of_last_boot: set[str] = set()
        self._missing: tuple[KnownDevice, ...] = ()
        self._has_answered = False
        self._starting_at: datetime | None = None
        self._listed: set[str] = set()
        registry.expect((WORKER, DRIVER))

    def recall(self, at: datetime) -> None:
        """Adds devices, parts and faults of the previous agent to the registry, before the first probe."""
        devices = [f"device:{device.key}" for device in self._memory.devices.values()]
        states = self._memory.states
        parts = [component for component in states if component.partition(":")[0] in PARTS]
        places = {f"{NIC}:{name}": place for place, name in self._memory.nics.items()}
        self._nics.places = {each: places.get(each, "") for each in states if each.partition(":")[0] == NIC}
        self._listed.update(devices)
        self._parts.update(parts)
        self._registry.expect((*devices, *parts, *sorted(self._nics.places), *({INVENTORY} & states.keys())))
        self._registry.recall_faults(at)

    @property
    def log_place(self) -> dict[str, Any]:
        """The position in the kernel log, in the format of the probe."""
        return {"kernel_log_after": self._memory.log_sequence, "boot_id": self._memory.boot_id}

    # driver and devices, by the probe

    def report_silence(self, reason: str, at: datetime, early: HostFacts | None = None) -> None:
        """Reports that the probe did not answer: facts that only the driver reports are unknown.

        Args:
            reason: why it did not answer.
            early: the kernel log, which the probe reads before it calls the driver.
        """
        self._has_answered = False
        if early is not None:
            self._record_boot(early, at)
            report_kernel_log(self._registry, self._history, early, at)
        unanswered = Finding("unknown", f"the probe did not answer: {reason}", _HUNG)
        self._registry.report(DRIVER, unanswered, at=at)
        silent = Finding("unknown", f"driver does not answer: {reason}", "see `driver`")
        self._standing |= dict.fromkeys(self._listed, silent)
        missing = [f"device:{device.key}" for device in self._missing]
        inventory = {INVENTORY} & set(self._registry.names())
        for component in (*sorted(self._listed), *missing, *sorted(self._parts | self._nics.places.keys()), *inventory):
            self._registry.report(component, silent, at=at)

    def report_facts(self, facts: HostFacts, before: HostFacts | None, devices: Devices, at: datetime) -> None:
        """Reports the facts of a probe: the driver's problems, each accelerator with its parts, each missing device."""
        self._has_answered = True
        self._record_boot(facts, at)
        is_starting = any(problem.kind == "fabric_starting" for problem in facts.problems)
        self._starting_at = (self._starting_at or at) if is_starting else None
        is_late = self._starting_at is not None and at - self._starting_at >= FABRIC_START
        self._registry.report(DRIVER, evaluate_driver(facts, is_late=is_late), at=at)
        report_kernel_log(self._registry, self._history, facts, at)
        self._evaluate(facts, before, devices, at)

    def _record_boot(self, facts: HostFacts, at: datetime) -> None:
        """Records the host's boot. A new boot ends faults, and may have a driver that reports other parts."""
        if self._memory.record_boot(facts.machine.boot_id):
            self._of_last_boot = set(self._parts)
            for component in self._registry.list_faulty():
                self._registry.clear_faults(component, at)

    def _evaluate(self, facts: HostFacts, before: HostFacts | None, devices: Devices, at: datetime) -> None:
        diagnosis = self._cards.evaluate(facts, before)
        keys = {gpu.key for gpu in facts.gpus} | {tpu.key for tpu in facts.tpus}
        self._standing = diagnosis.devices
        shown = [device for device in devices.devices if device.platform != "cpu"]
        self._standing |= {d.component: _WITHOUT_SOURCE for d in shown if (d.uuid or d.pci_bus_id) not in keys}
        known = self._listed | {f"device:{device.key}" for device in self._missing}
        self._listed = {device.component for device in shown}
        for device in shown:
            self._report_device(device, f"[{device.local_index}] {device.kind} is listed", at)
        untold = self._parts - set(diagnosis.parts)
        cards = diagnosis.cards
        self._silent = {each for each in untold - self._of_last_boot if facts.unread or each.partition(":")[2] in cards}
        nics_before, nics = set(self._nics.places), self._nics.evaluate(facts, at)
        for component in (untold - self._silent) | (nics_before - nics.keys()):
            self._registry.forget(component)
        diagnosis.parts |= dict.fromkeys(self._silent, _UNREAD if facts.unread else _SILENT_PART)
        self._parts, self._of_last_boot = set(diagnosis.parts), set()
        for component, finding in (diagnosis.parts | nics).items():
            self._registry.report(component, finding, at=at)
        self._report_missing(facts, at)
        self._forget_unshown(known, at)

    def _forget_unshown(self, known: Iterable[str], at: datetime) -> None:
        """Forgets present devices that `/devices` does not list, such as GPUs with `--cpu-devices`.

        A device with an active fault stays, because XIDs are reported for cards, regardless of JAX's platform. An
        address that was never checked and only had faults is forgotten when they are cleared.
        """
        names = (name for name in self._registry.names() if name.startswith("device:"))
        known = {*known, *(name for name in names if self._registry.component(name, at).observed_at is None)}
        missing = {f"device:{device.key}" for device in self._missing}
        for component in known - self._listed - missing - set(self._registry.list_faulty()):
            self._registry.forget(component)

    def _report_missing(self, facts: HostFacts, at: datetime) -> None:
        """Reports missing devices at each probe, so that the observation stays fresh.

        Devices that are listed again were already reported.
        """
        report = self._inventory.check(facts)
        self._missing = report.missing
        for key, successors in report.changed.items():
            for code, fault in self._registry.faults(f"device:{key}").items():
                for successor in (f"device:{successor}" for successor in successors):
                    if code not in self._registry.faults(successor):  # else one XID of a card in MIG mode counts twice
                        self._registry.add_fault(replace(fault, component=successor), at)
            self._registry.forget(f"device:{key}")
        action = "check the kernel log; reboot the host if it does not return"
        for device in report.missing:
            reason = f"was here before; the driver no longer lists it: {describe_device(device)}"
            gone = Finding("unhealthy", reason, action, "permanent")
            self._registry.report(f"device:{device.key}", _UNREAD if _is_unread(device, facts) else gone, at=at)
        if report.inventory is not None:
            self._registry.report(INVENTORY, report.inventory, at=at)
        elif INVENTORY in self._registry.names():
            self._registry.forget(INVENTORY)

    # acknowledgement

    def acknowledge(
        self,
        component: str,
        at: datetime,
        *,
        facts: HostFacts | None,
        facts_at: datetime | None,
        devices: Devices | None,
    ) -> None:
        """Clears the faults and counters of a component that last until an operator's acknowledgement.

        Args:
            component: its name. A missing device is no longer expected. `inventory` means all missing devices. A part
                without reports is removed.
            facts: the facts of the last probe, of `facts_at`. They are evaluated again unless the probe failed since.
                None: no probe yet.
        """
        self._memory.wrong_results.pop(component, None)
        at = facts_at if self._has_answered and facts_at else at
        self._registry.clear_faults(component, at)
        if component in self._silent:
            self._parts.discard(component)
            self._registry.forget(component)
        gone = [d.key for d in self._missing if component in (f"device:{d.key}", INVENTORY)]
        self._memory.forget_devices(gone)
        self._missing = tuple(device for device in self._missing if device.key not in gone)
        for key in gone:
            self._registry.forget(f"device:{key}")
        if facts is not None and devices is not None:
            self._cards.acknowledge(component, facts)
            self._nics.acknowledge(component)
            if self._has_answered and (gone or component in self._listed | self._parts | self._nics.places.keys()):
                self._evaluate(facts, facts, devices, at)

    # devices, by JAX and by benches

    def report_listed(self, devices: Iterable[Device], at: datetime, reason: str) -> None:
        """Reports devices that only JAX can list (CPU)."""
        for device in devices:
            self._report_device(device, reason, at)

    def report_record(self, record: Mapping[str, Any], devices: Iterable[Device], at: datetime) -> None:
        """Reports whether a bench computed correctly on these devices."""
        for device in devices:
            component = device.component
            wrong = self._memory.wrong_results.get(component, {})
            measurement = " ".join(str(record[name]) for name in _MEASUREMENT)
            if record["wrong_elements"]:
                reason = f"{record['case']} on devices {list(record['device_indices'])} gave a wrong result: "
                reason += f"{record['wrong_elements']} elements"
                self._memory.wrong_results[component] = wrong | {measurement: reason}
            elif record["correct"]:
                wrong.pop(measurement, None)
            self._report_device(device, f"{record['case']} ran on it", at)

    def _report_device(self, device: Device, reason: str, at: datetime) -> None:
        component = device.component
        findings = [self._standing[component]] if component in self._standing else []
        action = "run the bench again, and on this device alone; take it out of service if it is wrong again"
        wrong = self._memory.wrong_results.get(component, {}).values()
        findings += [Finding("degraded", reason, action) for reason in wrong]
        self._registry.report(component, find_worst(findings) or Finding("healthy", reason), at=at)

    # the worker

    def report_worker(
        self, worker: Supervisor, *, has_started: bool, failure: str, mismatch: str, not_started: str = "", at: datetime
    ) -> None:
        """Reports the device worker's state.

        Args:
            has_started: JAX has answered since this agent started.
            failure: why the last call to the worker failed; empty after a success or a release.
            mismatch: how JAX's devices differ from this host's; empty if they match.
            not_started: why the watch does not start the worker before its first answer; empty if it does. The worker
                is then `initializing`, which does not affect the overall state.
        """
        if finding := _evaluate_worker(worker, has_started, failure, mismatch, not_started):
            self._registry.report(WORKER, finding, at=at)


def _evaluate_worker(
    worker: Supervisor, has_started: bool, failure: str, mismatch: str, not_started: str
) -> Finding | None:
    """Returns the worker's state; None: nothing new is known, and the last report stands until it is too old.

    After its crash budget is used up, the worker is not started again.
    """
    is_alive = worker.state in {"ready", "busy"}
    why = f"does not start: {worker.last_error or failure}"
    if worker.state == "failed":
        return Finding("unhealthy", why, f"{DOCTOR}, then restart the agent", "permanent")
    if failure and not has_started and not is_alive:
        return Finding("unhealthy", why, DOCTOR)
    if failure and is_alive:
        return Finding("degraded", failure, "see the agent's log")
    if failure or (worker.has_crashed and not is_alive):
        action = (
            "the agent starts it again; after a release, or with MESHWRIGHT_HOLD=never, the next bench does. "
            "The agent's log has its last lines"
        )
        why = f"died: {worker.last_error or failure}" if worker.has_crashed else f"its last call failed: {failure}"
        return Finding("degraded", why, action, "transient")
    if mismatch:
        return Finding("degraded", mismatch, DOCTOR)
    if worker.silent_s > MAX_SILENCE_S:
        reason = f"generation {worker.generation} works and has been silent for {worker.silent_s:.0f} s"
        return Finding("degraded", reason, "see its run in GET /runs; DELETE /runs/{id} ends it", "transient")
    if is_alive:
        does = "is at work" if worker.state == "busy" else "answers"
        return Finding("healthy", f"generation {worker.generation} {does}")
    if worker.state == "stopped" and has_started:
        reason = f"released on purpose after generation {worker.generation}; it starts on demand"
        return Finding("healthy", reason)
    return Finding("initializing", not_started) if worker.state == "stopped" and not_started else None


TICK_S: Final = 1.0
"""Interval of the store's checks after a failure."""
MIN_FREE_BYTES: Final = 1 << 28
"""Free space of the state directory's disk below which the store is degraded."""


class StoreHealth:
    """Checks the store every `probe_interval_s`, and soon after a failure."""

    def __init__(self, store: Store, *, registry: HealthRegistry, settings: Settings, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._failures = 0
        registry.expect((STORE,))

    async def run(self) -> None:
        """Checks the store until cancelled."""
        while True:
            await self.check()
            left_s = self._settings.probe_interval_s
            while left_s > 0 and self._store.failure_count == self._failures:
                await asyncio.sleep(min(TICK_S, left_s))
                left_s -= TICK_S

    async def check(self) -> None:
        """Checks the store once."""
        folder, failed = self._store.path.parent, self._store.failure
        self._failures = self._store.failure_count
        try:
            free_bytes = await self._store.check()
        except StoreUnavailableError as error:
            self._failures = self._store.failure_count
            self._registry.report(STORE, Finding("unhealthy", error.detail, error.hint), at=self._clock.now())
            return
        free = f"{free_bytes / 2**20:.0f} MiB are free in {folder}"
        after = f"; a call failed after the check before: {failed}" if failed else ""
        found = [Finding("healthy", f"reads and writes; {free}{after}")]
        if free_bytes < MIN_FREE_BYTES:
            reason = f"{free}; less than the {MIN_FREE_BYTES / 2**20:.0f} MiB that should be"
            found.append(Finding("degraded", reason, f"make room on the disk of {folder}"))
        if self._store.set_aside:
            action = "create lost leases again, then restart the agent to clear this"
            found.append(Finding("degraded", self._store.set_aside, action))
        self._registry.report(STORE, find_worst(found) or found[0], at=self._clock.now())
