"""Which devices should be here and are not: against what is declared, else against what was seen and confirmed.

Rule: devices are counted as /devices lists them, a card in MIG mode as its instances; where a chip is declared, its
cards are, divided or not. A device that was seen in this life of the agent, or is confirmed from before, is missing
when it is not listed; one whose place on the bus holds another device now (MIG, a new card) is not missing but changed,
and where that is the same card, what stands against it stands against the other. A card that does not tell its uuid in
one look is nobody else: neither missing nor changed.
A card that is here and that the driver lets nobody use is missing too, though no earlier look saw it. Knows no board.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshwright.topology.chips import ChipCount
from meshwright_agent.facts.model import HostFacts, RefusedCard
from meshwright_agent.health.devices import Card, list_cards
from meshwright_agent.health.diagnosis import Finding
from meshwright_agent.health.memory import CONFIRMED_LOOKS, HealthMemory, KnownDevice

_ACTION = "check the kernel log; reboot the host if it does not return; POST /health/acknowledge if it was taken out"


@dataclass(frozen=True)
class Presence:
    """What a look says of who is here.

    Attributes:
        missing: devices that should be here and are not.
        changed: keys of devices that are no more, and for which another stands.
        heirs: of those, and of such as do not tell their uuid now: key → the devices that their card is now.
        inventory: of all together; None: there is no accelerator, and none is expected.
    """

    missing: tuple[KnownDevice, ...] = ()
    changed: tuple[str, ...] = ()
    inventory: Finding | None = None
    heirs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Roll:
    """Calls the roll, look after look.

    Args:
        memory: has the devices that were seen.
        expected: what an operator has declared; None: nothing.
    """

    def __init__(self, memory: HealthMemory, expected: ChipCount | None) -> None:
        self._memory = memory
        self._expected = expected
        self._seen_here: set[str] = set()

    def call(self, facts: HostFacts) -> Presence:
        """Returns who is missing, and takes note of who is here."""
        cards = list_cards(facts)
        listed = {key for card in cards for key in card.devices}
        places = {card.pci_bus_id: card for card in cards if card.pci_bus_id}
        self._seen_here |= listed
        self._memory.note_devices(
            KnownDevice(key, card.kind, card.pci_bus_id, card=card.key) for card in cards for key in card.devices
        )
        absent = [device for device in self._memory.value.devices if device.key not in listed]
        heirs = {device.key: _list_heirs(device, cards) for device in absent}
        absent = [device for device in absent if not _is_unnamed(places.get(device.pci_bus_id or ""))]
        changed = [device.key for device in absent if device.pci_bus_id in places or self._is_complete(cards)]
        self.forget(changed)
        missing = tuple(
            device
            for device in absent
            if device.key not in changed and (device.key in self._seen_here or device.looks >= CONFIRMED_LOOKS)
        )
        return Presence(missing, tuple(changed), self._judge(cards, missing, facts.refused), heirs)

    def forget(self, keys: list[str]) -> None:
        """Expects devices no more."""
        self._memory.forget_devices(keys)
        self._seen_here -= set(keys)

    def _count(self, cards: tuple[Card, ...]) -> int:
        """Returns how many devices run on these cards; where a chip is declared, how many cards have it."""
        if self._expected is None or self._expected.chip is None:
            return sum(len(card.devices) for card in cards)
        return sum(self._expected.is_of(card.kind) for card in cards)

    def _is_complete(self, cards: tuple[Card, ...]) -> bool:
        """With as many as an operator declares nobody is missing, whoever was here before."""
        return self._expected is not None and self._count(cards) >= self._expected.count

    def _tell_unit(self, cards: tuple[Card, ...]) -> str:
        """Returns what is counted, where cards and devices are not the same."""
        if all(len(card.devices) == 1 for card in cards):
            return ""
        counts_cards = self._expected is not None and self._expected.chip is not None
        return ", a card in MIG mode counted once" if counts_cards else ", each MIG instance counted"

    def _judge(
        self, cards: tuple[Card, ...], missing: tuple[KnownDevice, ...], refused: tuple[RefusedCard, ...]
    ) -> Finding | None:
        known = {device.pci_bus_id for device in missing}
        unseen = [card for card in refused if card.pci_bus_id not in known]
        if None in (card.pci_bus_id for card in refused):  # it may be any of the missing
            unseen = unseen[len(missing) :]
        lost = (*(describe_device(device) for device in missing), *map(_describe_refused, unseen))
        here, names = self._count(cards), ", ".join(lost)
        gone = f"; missing: {names}" if names else ""
        counted = self._tell_unit(cards)
        if self._expected is not None:
            reason = f"{here} of {self._expected} are here{counted}"
            if here < self._expected.count:
                return Finding("unhealthy", f"{reason}{gone}", _ACTION, "permanent")
            return Finding("healthy", reason)
        if lost:
            reason = f"{here} of {here + len(lost)} devices are here{counted}{gone}"
            return Finding("unhealthy", reason, _ACTION, "permanent")
        if not cards:
            return None
        return Finding("healthy", f"{here} devices are here{counted}, and none is missing of those that were seen")


def _is_unnamed(there: Card | None) -> bool:
    """Tells whether the card in a device's place may be the device, since it does not tell its uuid now."""
    return there is not None and there.key == there.pci_bus_id


def _list_heirs(device: KnownDevice, cards: tuple[Card, ...]) -> tuple[str, ...]:
    """Returns the devices of the card that a device was (a part of): by name, or by place where one has no other."""
    for card in cards:
        is_there = card.pci_bus_id is not None and card.pci_bus_id == device.pci_bus_id
        if card.key == device.card or (is_there and (device.is_named_by_place or card.key == card.pci_bus_id)):
            return card.devices
    return ()


def _describe_refused(card: RefusedCard) -> str:
    name = "a GPU" if card.index is None else f"GPU {card.index}"
    return f"{name}{f' at {card.pci_bus_id}' if card.pci_bus_id else ''} ({card.reason})"


def describe_device(device: KnownDevice) -> str:
    """Returns which device is meant, as an operator finds it."""
    place = f" at {device.pci_bus_id}" if device.pci_bus_id and device.pci_bus_id != device.key else ""
    return " ".join(filter(None, (device.kind, device.key))) + place
