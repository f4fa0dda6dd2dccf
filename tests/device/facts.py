"""The agent's facts of cards beside nvidia-smi's, field by field; and what its health says of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from meshwright_agent.facts.model import build_json
from meshwright_agent.facts.nvml import find_nvml
from meshwright_agent.facts.probe import LogPlace, read_host_facts
from meshwright_agent.facts.sysfs import Roots
from tests.agents import wait_for
from tests.device.bed import TOLERANCE_BYTES, Bed, await_looked, await_stopped
from tests.device.record import Finding, format_value
from tests.device.smi import SmiCard
from tests.process.living import ask, do_bench

WARMER_CELSIUS: Final = 8
"""What a card may warm up or cool down between two looks."""
PARTS: Final = ("device:", "thermal:", "memory:", "link:")
"""Components that there are of each card, beside those of a host with cards."""
HOST_PARTS: Final = ("driver", "worker", "store", "inventory", "kernel_log")


def check_facts(bed: Bed) -> Iterator[Finding]:
    """/devices and the probe's facts against nvidia-smi, while the worker is away."""
    with bed.start_agent(idle_release_s="1") as agent:
        if bed.is_gpu:
            await_looked(agent)
            await_stopped(agent)
            time.sleep(2.0)  # the next look, without the worker
        devices = ask(agent, "/devices")
        cards = bed.read_cards()
    yield Finding("devices", len(devices["devices"]), bool(devices["devices"]), note=devices["platform"])
    if not cards:
        return
    listed = {(device["mig"] or {}).get("parent_uuid") or device["uuid"] for device in devices["devices"]}
    yield Finding("cards", len(listed), listed == {card.uuid for card in cards}, rule="nvidia-smi's, all and no other")
    roots, log = Roots(environ=dict(os.environ)), LogPlace(Path("/dev/kmsg"))
    facts = build_json(read_host_facts(roots, nvml=find_nvml(), log=log))
    yield from compare_cards(devices, facts, cards)
    yield from tell_log(facts)


def compare_cards(
    devices: Mapping[str, Any], facts: Mapping[str, Any], cards: tuple[SmiCard, ...]
) -> Iterator[Finding]:
    """Yields each field of each card, as the agent and as nvidia-smi tell it."""
    listed = {device["uuid"]: device for device in devices["devices"]}
    read = {gpu["uuid"]: gpu for gpu in facts["gpus"]}
    for card in cards:
        if card.mig:
            instances = [each for each in devices["devices"] if (each["mig"] or {}).get("parent_uuid") == card.uuid]
            yield Finding(f"{card.uuid} MIG instances", len(instances), bool(instances), rule="at least one")
            continue
        yield Finding("uuid", card.uuid, card.uuid in listed and card.uuid in read, rule="listed")
        if card.uuid in listed and card.uuid in read:
            yield from _compare_card(listed[card.uuid], devices["software"], read[card.uuid], card)


def _compare_card(device: Any, software: Any, gpu: Any, card: SmiCard) -> Iterator[Finding]:
    memory, health = device["memory"] or {}, gpu["health"] or {}
    same: dict[str, tuple[object, object]] = {
        "name": (device["kind"], card.kind), "PCI address": (device["pci_bus_id"], card.pci_bus_id),
        "driver": (software["driver"], card.driver), "CUDA of the driver": (software["cuda_driver"], card.cuda),
        "compute capability": (device["compute_capability"], card.compute_capability),
        "compute mode": (device["compute_mode"], card.compute_mode), "MIG": (device["mig"] is not None, bool(card.mig)),
        "uncorrectable ECC errors": (health.get("uncorrectable_count"), card.uncorrectable_count),
        "slowdowns": (sorted(health.get("slowdowns") or ()), sorted(card.slowdowns or ())),
        "PCIe lanes": (health.get("pcie_width"), card.pcie_width),
    }  # fmt: skip
    for name, (ours, theirs) in same.items():
        yield Finding(name, _write(ours), ours == theirs, rule="nvidia-smi's word", note=_write(theirs))
    for name, mine, other, within, unit in (
        ("memory", memory.get("capacity_bytes"), card.memory_bytes, 1 << 20, "B"),
        ("memory in use", memory.get("used_bytes"), card.used_bytes, TOLERANCE_BYTES, "B"),
        ("temperature", health.get("temperature_celsius"), card.temperature_celsius, WARMER_CELSIUS, "°C"),
    ):
        near = mine is not None and other is not None and abs(mine - other) <= within
        slack, theirs = (format_value(Finding(name, value, unit=unit)) for value in (within, other))
        yield Finding(name, mine, near, unit, f"nvidia-smi's ± {slack}", theirs)


def _write(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def tell_log(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields whether XIDs can be seen, and what the probe complained of."""
    log = facts["kernel_log"]
    error = "no NVIDIA card is on the PCI bus that sysfs shows" if log is None else log["error"]
    yield Finding("kernel log can be read", error is None, error is None, rule="XIDs are seen by it", note=error or "")
    yield Finding("problems of the probe", "; ".join(facts["problems"]) or "none", not facts["problems"], rule="none")


def check_health(bed: Bed) -> Iterator[Finding]:
    """Every component has been looked at after a bench: none is `unknown`, and each card has all its parts."""
    with bed.start_agent() as agent:
        do_bench(agent)
        wanted = (*HOST_PARTS, *PARTS) if bed.is_gpu else ("driver", "worker", "store", "device:")

        def is_complete() -> bool:
            parts = ask(agent, "/health")["components"]
            looked = {part["name"] for part in parts if part["state"] not in {"initializing", "unknown"}}
            return all(any(name.startswith(want) for name in looked) for want in wanted)

        try:
            wait_for(is_complete, agent, limit_s=30)
        except AssertionError:
            agent.process.poll()  # what is missing stands in the findings
        parts = ask(agent, "/health")["components"]
    names = [part["name"] for part in parts]
    missing = [want for want in wanted if not any(name.startswith(want) for name in names)]
    yield Finding("components that are missing", ", ".join(missing) or "none", not missing, rule="none")
    for part in parts:
        known = part["state"] not in {"unknown", "initializing"}
        yield Finding(part["name"], part["state"], known, rule="looked at, and known", note=part["reason"])
