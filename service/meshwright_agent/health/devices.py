"""The parts of each accelerator, from one look: findings by component, with what earlier looks had.

Rule: a part is a component only where a source tells of it, or should. A part that is unhealthy or unknown makes its
device so, since plans ask for devices. MIG instances share the parts of their card. Knows no board.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from meshwright.topology.chips import find_chip
from meshwright_agent.facts.model import GpuFacts, GpuHealth, HostFacts, PciHealth, TpuFacts
from meshwright_agent.facts.nvml import Part
from meshwright_agent.health.diagnosis import (
    Finding,
    LinkView,
    find_worst,
    judge_answers,
    judge_link,
    judge_memory,
    judge_power,
    judge_thermal,
    judge_word,
)
from meshwright_agent.health.memory import HealthMemory


@dataclass(frozen=True)
class Card:
    """A card as its parts are looked at. `key` names its components; `devices` are the keys of what runs on it.

    `is_divided`: it is in MIG mode, where it has no NVLinks.
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
    """What one look means: findings by component, and of devices those that make them other than healthy.

    `cards` are the keys of those that are listed, whatever is told of their parts.
    """

    parts: dict[str, Finding] = field(default_factory=dict)
    devices: dict[str, Finding] = field(default_factory=dict)
    cards: frozenset[str] = frozenset()


def list_cards(facts: HostFacts) -> tuple[Card, ...]:
    """Returns the cards of a host; the MIG instances of one card are one."""
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


def _are_alike(a: Card, b: Card) -> bool:
    return (a.kind, a.is_divided) == (b.kind, b.is_divided)


def _count_nvlinks(card: Card) -> int:
    return (card.health.nvlinks_active if card.health else None) or 0


def _judge_answers(part: Part, card: Card, siblings: Collection[Card]) -> Iterable[Finding]:
    if card.health is not None:
        yield from judge_answers(part, card.health, [each.health for each in siblings if each.health is not None])


class DeviceHealth:
    """Judges look after look.

    Args:
        memory: has the baselines of counters, and what cards had before.
    """

    def __init__(self, memory: HealthMemory) -> None:
        self._memory = memory

    def judge(self, facts: HostFacts, before: HostFacts | None) -> Diagnosis:
        """Returns what a look means.

        Args:
            facts: what it found.
            before: what the look before it found; the same for a look that is judged again.
        """
        cards, earlier = list_cards(facts), {card.key: card for card in list_cards(before)} if before else {}
        diagnosis = Diagnosis(cards=frozenset(card.key for card in cards))
        for card in cards:
            self._memory.note_nvlinks(card.key, _count_nvlinks(card))
        for card in cards:
            self._note_baselines(card)
            siblings = [each for each in cards if each is not card and _are_alike(card, each)]
            parts = dict(self._judge_parts(card, earlier.get(card.key), siblings))
            diagnosis.parts |= parts
            ill = (part for part in parts.values() if part.state in ("unhealthy", "unknown"))
            worst = find_worst((*ill, *self._judge_card(card, siblings)))
            if worst is not None:
                diagnosis.devices |= {f"device:{key}": worst for key in card.devices}
        return diagnosis

    def _expect_nvlinks(self, card: Card, siblings: Collection[Card]) -> int:
        """Returns how many NVLinks a card should have; 0 where it may have none.

        A card that had some is held against its kind. One that was never seen with any has lost them where such cards
        are always joined; PCIe cards may be without a bridge, and a card alone has nothing to be joined with.
        """
        most = max((self._memory.value.nvlinks.get(each.key, 0) for each in (card, *siblings)), default=0)
        before = self._memory.value.nvlinks.get(card.key)
        if before is None and siblings and not card.is_divided:
            chip = find_chip(card.kind)
            if chip is None:
                return most if all(_count_nvlinks(each) for each in siblings) else 0
            return max(most, chip.link_count) if chip.link_count else 0
        return most if before else 0

    def _judge_parts(
        self, card: Card, earlier: Card | None, siblings: Collection[Card]
    ) -> Iterator[tuple[str, Finding]]:
        baselines = self._memory.baselines
        link = LinkView(
            health=card.health,
            pci=card.pci,
            before=earlier.health if earlier else None,
            expected_nvlinks=self._expect_nvlinks(card, siblings),
            baselines=baselines(f"link:{card.key}"),
            nonfatal_before=earlier.pci.nonfatal_count if earlier and earlier.pci else None,
        )
        found: dict[Part, Finding | None] = {"link": judge_link(link)}
        if card.health is not None:
            acknowledged = baselines(f"memory:{card.key}").get("uncorrectable", 0)
            found["thermal"] = judge_thermal(card.health)
            found["power"] = judge_power(card.health)
            found["memory"] = judge_memory(card.health, acknowledged=acknowledged)
        for part, finding in found.items():
            known = () if finding is None else (finding,)
            worst = find_worst((*known, *_judge_answers(part, card, siblings)))
            if worst is not None:
                yield f"{part}:{card.key}", worst

    def _judge_card(self, card: Card, siblings: Collection[Card]) -> Iterator[Finding]:
        if card.health is not None and (word := judge_word(card.health)) is not None:
            yield word
        yield from _judge_answers("device", card, siblings)
        if card.has_file:
            self._memory.note_file(card.key)
        elif card.has_file is False and card.key in self._memory.value.had_file:
            action = "check its driver (vfio-pci or accel) and the kernel log; reboot the host if it does not return"
            yield Finding("unhealthy", f"its device file {card.file} is gone", action, "permanent")

    def _note_baselines(self, card: Card) -> None:
        """AER counts from boot; only what comes from now on is news: an agent that is new here saw no error come.

        A counter below its baseline counts anew (the card was reset), and so does its baseline: else the next error
        would be taken for one that was dealt with.
        """
        link, memory = f"link:{card.key}", f"memory:{card.key}"
        fatal = card.pci.fatal_count if card.pci else None
        if fatal is not None and fatal < self._memory.baselines(link).get("fatal", fatal + 1):
            self._memory.set_baselines(link, {"fatal": fatal})
        uncorrectable = card.health.uncorrectable_count if card.health else None
        if uncorrectable is not None and uncorrectable < self._memory.baselines(memory).get("uncorrectable", 0):
            self._memory.set_baselines(memory, {"uncorrectable": uncorrectable})

    def acknowledge(self, component: str, facts: HostFacts) -> None:
        """Takes an operator's word that what the counters tell is dealt with: of one part, or of all of a device."""
        for card in list_cards(facts):
            names = {f"device:{key}" for key in card.devices}
            if (
                component in names | {f"memory:{card.key}"}
                and card.health
                and card.health.uncorrectable_count is not None
            ):
                self._memory.set_baselines(f"memory:{card.key}", {"uncorrectable": card.health.uncorrectable_count})
            if component in names:
                self._memory.forget_file(card.key)
            if component in names | {f"link:{card.key}"}:
                self._memory.accept_nvlinks(card.key)
                if card.pci and card.pci.fatal_count is not None:
                    self._memory.set_baselines(f"link:{card.key}", {"fatal": card.pci.fatal_count})
