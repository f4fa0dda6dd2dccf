"""Targets: hardware that need not be here, from its name to a `Topology`, and the catalog of all names.

A name is found exactly or refused with the rule and the nearest names. Everything is declared, nothing observed.
Devices are in canonical order: slices (or hosts) one after the other; in a slice x fastest, then y, z, and the cores of
a chip fastest of all. Processes are numbered as libtpu numbers them. Links of TPUs and between hosts are not listed:
the granule's shape, wrap, twist and domain describe them.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations, product
from typing import Any, Final

from meshwright.errors import PlanInfeasibleError, UnknownHardwareError
from meshwright.targets import TARGET_EXAMPLE, TargetSpec, write_shape
from meshwright.topology.chips import Chip, find_chip, read_chips
from meshwright.topology.model import MAX_DEVICE_COUNT, Topology
from meshwright.topology.systems import (
    HOST_SHAPE,
    RULES,
    GpuHost,
    Slice,
    build_slice,
    check_twist,
    find_default_count,
    find_domain_count,
    find_machine,
    find_slice,
    find_socket,
    is_legal,
    list_counts,
    list_names,
    read_slices,
    refuse,
)
from meshwright.wire.devices import Device, Granule, Link, Memory, TargetChip, Targets, TargetSystem

CPU: Final = "cpu"

_NEAR: Final = 3

Hardware = Slice | GpuHost | int
"""The hardware of one granule: a slice, a host of GPUs, or a number of CPU devices."""


def read_target(target: str | TargetSpec) -> TargetSpec:
    """Returns the target with its chip's first alias and its shape filled in: this form is printed, and planned on.

    A chip alone is one whole host of it: 2x2x1 chips, 8 GPUs (4 of GB200), 1 CPU device. `gb200:64` is 16 hosts of a
    domain. A plain torus is written without a suffix.

    Raises:
        InvalidRequestError: the text is not a valid target.
        PlanInfeasibleError: the chip, slice or host does not exist, or there are more than 131,072 devices.
    """
    asked = TargetSpec.parse(target) if isinstance(target, str) else target
    hardware, granules = _find(asked)
    one, count = _write_one(asked, hardware), count_devices(hardware)
    most = MAX_DEVICE_COUNT // count
    if granules > most:
        rule = f"a target has at most {MAX_DEVICE_COUNT:,}"
        hint = f"use {replace(one, granules=most) if most else replace(one, shape=(MAX_DEVICE_COUNT,))}"
        raise refuse(f"target {asked} has {count * granules:,} devices; {rule}", hint)
    return replace(one, granules=granules)


def _write_one(asked: TargetSpec, hardware: Hardware) -> TargetSpec:
    """Returns how one granule is written."""
    match hardware:
        case Slice():
            return TargetSpec(hardware.chip.aliases[0], hardware.shape, twisted=asked.twisted or None)
        case GpuHost():
            return TargetSpec(hardware.chip.aliases[0], (hardware.gpu_count,))
    return TargetSpec(CPU, (hardware,))


def find_hardware(spec: TargetSpec) -> Hardware:
    """Returns the hardware of one granule of a target.

    Raises:
        PlanInfeasibleError: the chip, slice or host does not exist.
    """
    return _find(spec)[0]


def _find(spec: TargetSpec) -> tuple[Hardware, int]:
    """Returns the hardware of one granule, and the number of granules."""
    chip = find_chip(spec.chip)
    if slice_ := _find_slice(spec, chip):
        if spec.twisted:
            check_twist(slice_, asked=str(spec))
        return slice_, spec.granules
    if chip is None and spec.chip != CPU:
        raise _refuse_unknown(spec)
    if spec.twisted is not None or len(spec.shape) > 1:
        rule = "of GPUs and CPUs a target says how many a host has"
        hint = f"write {spec.chip}:{find_default_count(chip) if chip else 8}"
        raise refuse(f"target {spec}: only TPU slices have shapes of several dimensions and twists; {rule}", hint)
    return (spec.shape[0] if spec.shape else 1, spec.granules) if chip is None else _find_machine(spec, chip)


def _find_slice(spec: TargetSpec, chip: Chip | None) -> Slice | None:
    """Returns the slice that a TPU chip and a shape describe, or that has a name; None for other hardware."""
    if chip is not None and chip.platform == "tpu":
        shape = spec.shape or next(each for each in (HOST_SHAPE, HOST_SHAPE[:2]) if is_legal(chip, each))
        return build_slice(chip, shape, asked=str(spec))
    named = find_slice(spec.chip) if chip is None else None
    if named is not None and spec.shape:
        written = write_shape(named.shape)
        detail = f"target {spec}: {spec.chip} is the name of a slice, which has its shape, {written}"
        hint = f"use {spec.chip}, or {named.chip.aliases[0]}:{written}"
        raise refuse(f"{detail}; a shape stands only behind a chip", hint)
    return named


def _find_machine(spec: TargetSpec, chip: Chip) -> tuple[GpuHost, int]:
    count, granules = spec.shape[0] if spec.shape else find_default_count(chip), spec.granules
    usual = find_default_count(chip)
    if usual < count <= (find_domain_count(chip) or 0) and count % usual == 0:
        granules, count = granules * count // usual, usual
    machine = find_machine(chip, count)
    if machine is None:
        raise _refuse_count(spec, chip, count)
    return machine, granules


def _refuse_count(spec: TargetSpec, chip: Chip, count: int) -> PlanInfeasibleError:
    counts, name = list_counts(chip), chip.aliases[0]
    usual, domain = find_default_count(chip), find_domain_count(chip)
    near = [f"{name}:{each}" for each in sorted(counts, key=lambda each: abs(each - count))[:2]]
    if count % usual == 0 and spec.granules * count <= MAX_DEVICE_COUNT:
        near.insert(0, str(TargetSpec(name, (usual,), spec.granules * count // usual)))
    whole = f"; a whole NVLink domain is {name}:{domain}" if domain else ""
    known = ", ".join(map(str, counts))
    detail = f"target {spec}: no host with {count} {chip.name} is known; known hosts have {known}{whole}"
    return refuse(detail, f"use {', '.join(near)}")


def _refuse_unknown(spec: TargetSpec) -> PlanInfeasibleError:
    head, _, tail = spec.chip.partition("x")  # h100x8, 64xh100
    near = [f"{head}:{tail}"] if tail.isdigit() and find_chip(head) else find_near(spec.chip)
    if head.isdigit() and find_chip(tail):
        near = [str(read_target(name)) for name in (tail, f"{head}*{tail}")]
    return refuse(
        f"target {spec}: no chip and no slice is called {spec.chip}; known chips are {', '.join(list_chips())}",
        f"did you mean {' or '.join(near)}?" if near else "`meshwright hardware` lists them, with the slices' names",
    )


def list_chips() -> tuple[str, ...]:
    """Returns the chips as targets are written with them."""
    return (CPU, *(chip.aliases[0] for chip in read_chips()))


def find_near(name: str) -> list[str]:
    """Returns known names similar to this one; for a slice name, the slices of the nearest size."""
    prefix, _, count = name.rpartition("-")
    chip = find_chip(prefix)
    if chip and chip.platform == "tpu" and count.isascii() and count.isdigit():
        names = [known for known in list_names() if known.rpartition("-")[0] in {prefix, chip.aliases[0]}]
        return sorted(names, key=lambda one: abs(math.log(int(one.rpartition("-")[2]) / (int(count) or 1))))[:_NEAR]
    aliases = [alias for chip in read_chips() for alias in chip.aliases]
    longer = [alias for alias in aliases if alias.startswith(name)][:_NEAR]
    chips = longer or difflib.get_close_matches(name, [CPU, *aliases], n=_NEAR, cutoff=0.5)
    return chips or difflib.get_close_matches(name, list_names(), n=_NEAR, cutoff=0.6)


def count_devices(hardware: Hardware) -> int:
    """Returns the JAX devices of one slice or host."""
    if isinstance(hardware, int):
        return hardware
    return hardware.device_count if isinstance(hardware, Slice) else hardware.gpu_count


HOST: Final = "HOST"
MOST_LINKED_CPUS: Final = 64
"""As an agent lists them: links grow with the square of the devices, and all are alike."""

_CACHE_SIZE: Final = 2
"""Two: the largest target of GPUs, with its links, takes a gigabyte."""

Declared = dict[str, Any]
"""The evidence that every fact of a target carries."""


def build_target(target: str | TargetSpec) -> Topology:
    """Returns the topology that a target names.

    Raises:
        InvalidRequestError: the text is not a valid target.
        PlanInfeasibleError: the chip, slice or host does not exist, or there are more than 131,072 devices.
    """
    return _build(read_target(target))


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _build(spec: TargetSpec) -> Topology:
    declared: Declared = {"basis": "declared", "observed_at": datetime.now(UTC), "age_s": 0.0}
    hardware, ordinals = find_hardware(spec), range(spec.granules)
    if isinstance(hardware, Slice):
        seats, is_one = tuple(_list_seats(hardware)), spec.granules == 1
        tpus = (device for at in ordinals for device in _build_tpus(hardware, seats, at, declared, is_one=is_one))
        slices = (_build_slice(hardware, ordinal, is_twisted=spec.twisted is True) for ordinal in ordinals)
        return Topology(tuple(tpus), (), tuple(slices))
    devices = (device for ordinal in ordinals for device in _build_devices(hardware, ordinal, declared))
    links = (link for ordinal in ordinals for link in _build_links(hardware, ordinal))
    hosts = (_build_host(hardware, ordinal, spec.granules) for ordinal in ordinals)
    return Topology(tuple(devices), tuple(links), tuple(hosts))


Seat = tuple[tuple[int, ...], int, int]
"""(coordinates, core, host of the slice)."""


def _list_seats(slice_: Slice) -> Iterator[Seat]:
    """Yields the devices of a slice in canonical order. Hosts are boxes of chips, counted x fastest."""
    hosts = [size // part for size, part in zip(slice_.extent, slice_.host_shape, strict=True)]
    for z, y, x in product(*map(range, reversed(slice_.extent))):
        box = [place // part for place, part in zip((x, y, z), slice_.host_shape, strict=True)]
        host = box[0] + hosts[0] * (box[1] + hosts[1] * box[2])
        for core in range(slice_.chip.jax_devices_per_chip):
            yield (x, y, z), core, host


def _build_tpus(
    slice_: Slice, seats: Iterable[Seat], ordinal: int, declared: Declared, *, is_one: bool
) -> Iterator[Device]:
    """Yields the devices of one slice; like libtpu, gives slices an index only where there are several."""
    memory = Memory(basis="declared", capacity_bytes=slice_.chip.device_memory_bytes)
    first, seen = ordinal * slice_.host_count, [0] * slice_.host_count
    for position, (coords, core, host) in enumerate(seats):
        yield Device(
            host=f"host-{first + host}",
            local_index=seen[host],
            granule=ordinal,
            position=position,
            platform="tpu",
            kind=slice_.chip.kinds[0],
            coords=coords,
            core_on_chip=core,
            slice_index=None if is_one else ordinal,
            process_index=first + host,
            memory=memory,
            **declared,
        )
        seen[host] += 1


def _build_slice(slice_: Slice, ordinal: int, *, is_twisted: bool) -> Granule:
    return Granule(
        ordinal=ordinal,
        kind="slice",
        name=f"slice-{ordinal}",
        device_count=slice_.device_count,
        shape=slice_.extent,
        wrap=slice_.wrap,
        twisted=is_twisted,
    )


def _build_devices(host: GpuHost | int, ordinal: int, declared: Declared) -> Iterator[Device]:
    chip = host.chip if isinstance(host, GpuHost) else None
    count = count_devices(host)
    memory = Memory(basis="declared", capacity_bytes=chip.device_memory_bytes) if chip else None
    for place in range(count):
        yield Device(
            host=f"host-{ordinal}",
            local_index=place,
            granule=ordinal,
            position=place,
            platform="gpu" if chip else "cpu",
            kind=chip.kinds[0] if chip else CPU,
            numa_node=find_socket(place, count) if chip else None,
            virtual=chip is None and count > 1,
            memory=memory,
            **declared,
        )


def _build_links(host: GpuHost | int, ordinal: int) -> Iterator[Link]:
    first = ordinal * count_devices(host)
    if isinstance(host, GpuHost):
        for link in host.links:
            yield link.model_copy(update={"a": first + link.a, "b": first + link.b})
    elif host <= MOST_LINKED_CPUS:
        for a, b in combinations(range(first, first + host), 2):
            yield Link(a=a, b=b, kind=HOST, basis="declared")


def _build_host(host: GpuHost | int, ordinal: int, count: int) -> Granule:
    """Returns one of several hosts as a granule; hosts are spread evenly over the least number of NVLink domains."""
    most = host.form.domain_hosts if isinstance(host, GpuHost) else 1
    domains = -(-count // most)
    return Granule(
        ordinal=ordinal,
        kind="host",
        name=f"host-{ordinal}",
        device_count=count_devices(host),
        domain=f"domain-{ordinal * domains // count}" if most > 1 else None,
    )


GRAMMAR: Final = f"[granules*]chip[:shape][_twisted|_untwisted]: {TARGET_EXAMPLE}"

_CPU: Final = TargetChip(
    chip=CPU, name="CPU", aliases=(CPU,), platform="cpu", kind=CPU, devices_per_chip=1, source="jax_num_cpu_devices"
)
_CPU_HOST: Final = TargetSystem(
    target="cpu:8",
    chip=CPU,
    device_count=8,
    links={"HOST": 28},
    text="virtual devices of one host; any number",
    source=_CPU.source,
)


def list_targets(chip: str | None = None) -> Targets:
    """Returns the facts of one chip, by any of its names, or of all chips.

    Raises:
        UnknownHardwareError: no table knows the name.
    """
    whole = _list_all()
    if chip is None:
        return whole
    name = _find_name(chip)
    chips = tuple(each for each in whole.chips if each.chip == name)
    systems = tuple(each for each in whole.systems if each.chip == name)
    return Targets(chips=chips, systems=systems)


def _find_name(asked: str) -> str:
    if asked.strip().lower() == CPU:
        return CPU
    found = find_chip(asked)
    if found is None:
        word = asked.strip().lower()
        named, similar = find_slice(word), find_near(word)
        near = [named.chip.aliases[0]] if named else [each for each in similar if find_chip(each) or each == CPU]
        detail = f"chip {asked[:80]!r} is in no table; known chips are {', '.join(list_chips())}"
        hint = f"did you mean {' or '.join(near)}?" if near else "leave the name out to see all"
        raise UnknownHardwareError.of("chip", detail, hint)
    return found.aliases[0]


@functools.cache
def _list_all() -> Targets:
    known = read_chips()
    machines = (find_machine(chip, count) for chip in known for count in list_counts(chip))
    return Targets(
        chips=(_CPU, *map(_show_chip, known)),
        systems=(
            _CPU_HOST,
            *(_show_machine(machine) for machine in machines if machine),
            *map(_show_slice, read_slices()),
        ),
    )


def _show_chip(chip: Chip) -> TargetChip:
    return TargetChip(
        chip=chip.aliases[0],
        name=chip.name,
        aliases=chip.aliases,
        platform=chip.platform,
        kind=chip.kinds[0],
        devices_per_chip=chip.jax_devices_per_chip,
        device_memory_bytes=chip.device_memory_bytes,
        shapes=RULES[chip.family].text if chip.platform == "tpu" else None,
        source=RULES[chip.family].source if chip.platform == "tpu" else chip.source,
    )


def _show_machine(machine: GpuHost) -> TargetSystem:
    return TargetSystem(
        target=f"{machine.chip.aliases[0]}:{machine.gpu_count}",
        chip=machine.chip.aliases[0],
        device_count=machine.gpu_count,
        links=dict(Counter(link.kind for link in machine.links)),
        domain_device_count=find_domain_count(machine.chip),
        text=machine.form.text,
        source=machine.form.source,
    )


def _show_slice(slice_: Slice) -> TargetSystem:
    chip = slice_.chip.aliases[0]
    rings = "".join(name for name, wraps in zip("xyz", slice_.wrap, strict=False) if wraps)
    return TargetSystem(
        target=f"{chip}:{write_shape(slice_.shape)}",
        names=(slice_.name, *slice_.aliases),
        chip=chip,
        device_count=slice_.device_count,
        host_count=slice_.host_count,
        text=(f"rings {rings}" if rings else "no rings") + (", may be twisted" if slice_.can_twist else ""),
        source=RULES[slice_.chip.family].source,
    )
