"""The catalogue: every chip, host and named slice that a target may mean, as a reply.

Rule: it says what the tables say; a target that it shows can be built. Knows no HTTP.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Final

from meshwright.errors import UnknownHardwareError
from meshwright.targets import TARGET_EXAMPLE, write_shape
from meshwright.topology.chips import Chip, find_chip, find_chip_by_kind, read_chips
from meshwright.topology.machines import Machine, find_domain_count, find_machine, list_counts
from meshwright.topology.resolve import CPU, find_near, list_chips
from meshwright.topology.slices import RULES, Slice, find_slice, read_slices
from meshwright.wire.targets import TargetChip, TargetHost, Targets, TargetSlice

GRAMMAR: Final = f"[granules*]chip[:shape][_twisted|_untwisted]: {TARGET_EXAMPLE}"

_CPU: Final = TargetChip(
    chip=CPU,
    name="CPU",
    aliases=(CPU,),
    platform="cpu",
    kind=CPU,
    devices_per_chip=1,
    hosts=(
        TargetHost(
            target="cpu:8",
            device_count=8,
            links={"HOST": 28},
            text="virtual devices of one host; any number",
            source="jax_num_cpu_devices",
        ),
    ),
    source="jax_num_cpu_devices",
)


def list_targets(chip: str | None = None) -> Targets:
    """Returns what is known of one chip, by any of its names, or of all of them.

    Raises:
        UnknownHardwareError: no table knows the name.
    """
    return _list_all() if chip is None else _list_one(_find_name(chip))


def _find_name(asked: str) -> str:
    if asked.strip().lower() == CPU:
        return CPU
    found = find_chip(asked) or find_chip_by_kind(asked)
    if found is None:
        near = _find_near(asked.strip().lower())
        detail = f"chip {asked[:80]!r} is in no table; known chips are {', '.join(list_chips())}"
        hint = f"did you mean {' or '.join(near)}?" if near else "leave the name out to see all"
        raise UnknownHardwareError(detail, hint=hint, errors=[{"field": "chip", "message": detail}])
    return found.aliases[0]


def _find_near(name: str) -> list[str]:
    """Returns chips that look like a name; of a slice's name, its chip."""
    named = find_slice(name)
    return [named.chip.aliases[0]] if named else [near for near in find_near(name) if find_chip(near) or near == CPU]


@functools.cache
def _list_all() -> Targets:
    chips = (_CPU, *map(_show_chip, read_chips()))
    return Targets(
        grammar=GRAMMAR,
        chips=chips,
        slices=tuple(map(_show_slice, read_slices())),
    )


@functools.lru_cache(maxsize=64)
def _list_one(name: str) -> Targets:
    whole = _list_all()
    chips = tuple(each for each in whole.chips if each.chip == name)
    return whole.model_copy(
        update={"chips": chips, "slices": tuple(each for each in whole.slices if each.chip == name)}
    )


def _show_chip(chip: Chip) -> TargetChip:
    machines = (find_machine(chip, count) for count in list_counts(chip))
    return TargetChip(
        chip=chip.aliases[0],
        name=chip.name,
        aliases=chip.aliases,
        platform=chip.platform,
        kind=chip.kinds[0],
        devices_per_chip=chip.jax_devices_per_chip,
        device_memory_bytes=chip.device_memory_bytes,
        shapes=RULES[chip.family].text if chip.platform == "tpu" else None,
        hosts=tuple(_show_machine(machine) for machine in machines if machine),
        source=RULES[chip.family].source if chip.platform == "tpu" else chip.source,
    )


def _show_machine(machine: Machine) -> TargetHost:
    return TargetHost(
        target=f"{machine.chip.aliases[0]}:{machine.gpu_count}",
        device_count=machine.gpu_count,
        links=dict(Counter(wire.kind for wire in machine.wires)),
        domain_device_count=find_domain_count(machine.chip),
        text=machine.text,
        source=machine.source,
    )


def _show_slice(slice_: Slice) -> TargetSlice:
    chip = slice_.chip.aliases[0]
    return TargetSlice(
        name=slice_.name,
        aliases=slice_.aliases,
        chip=chip,
        target=f"{chip}:{write_shape(slice_.shape)}",
        shape=slice_.shape,
        wrap=slice_.wrap,
        can_twist=slice_.can_twist,
        chip_count=slice_.chip_count,
        device_count=slice_.device_count,
        host_count=slice_.host_count,
        host_shape=slice_.host_shape,
    )
