"""Which hardware a target means: a slice, a host of GPUs, or so many CPU devices.

Rule: a name is found exactly or refused, with the rule that it breaks and what comes near; nothing is guessed. Builds
no device: that is `meshwright.topology.assemble`.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import replace
from typing import Final

from meshwright.errors import PlanInfeasibleError
from meshwright.targets import TargetSpec, write_shape
from meshwright.topology.chips import Chip, find_chip, read_chips
from meshwright.topology.machines import Machine, find_default_count, find_domain_count, find_machine, list_counts
from meshwright.topology.slices import (
    HOST_SHAPE,
    Slice,
    build_slice,
    check_twist,
    find_slice,
    is_legal,
    list_names,
    refuse,
)
from meshwright.topology.soundness import MAX_DEVICE_COUNT

CPU: Final = "cpu"

_NEAR_COUNT: Final = 3

Hardware = Slice | Machine | int
"""What one granule is: a slice, a host of GPUs, or so many CPU devices."""


def read_target(target: str | TargetSpec) -> TargetSpec:
    """Returns the target with its chip's first alias and its shape filled in: what is printed, and planned on.

    A chip alone is one whole host of it: 2x2x1 chips, 8 GPUs (4 of GB200), 1 CPU device. `gb200:72` is the 18 hosts of
    a domain. A plain torus is written without a suffix.

    Raises:
        InvalidRequestError: the text is no target.
        PlanInfeasibleError: no such chip, slice or host, or more than 131,072 devices.
    """
    asked = TargetSpec.parse(target) if isinstance(target, str) else target
    hardware, granules = _find(asked)
    one, count = _write_one(asked, hardware), count_devices(hardware)
    most = MAX_DEVICE_COUNT // count
    if granules > most:
        raise refuse(
            f"target {asked} has {count * granules:,} devices; a target has at most {MAX_DEVICE_COUNT:,}",
            f"use {replace(one, granules=most) if most else replace(one, shape=(MAX_DEVICE_COUNT,))}",
        )
    return replace(one, granules=granules)


def _write_one(asked: TargetSpec, hardware: Hardware) -> TargetSpec:
    """Returns how one granule is written."""
    match hardware:
        case Slice():
            return TargetSpec(hardware.chip.aliases[0], hardware.shape, twisted=asked.twisted or None)
        case Machine():
            return TargetSpec(hardware.chip.aliases[0], (hardware.gpu_count,))
    return TargetSpec(CPU, (hardware,))


def find_hardware(spec: TargetSpec) -> Hardware:
    """Returns what one granule of a target is.

    Raises:
        PlanInfeasibleError: no such chip, slice or host.
    """
    return _find(spec)[0]


def _find(spec: TargetSpec) -> tuple[Hardware, int]:
    """Returns what one granule is, and how many there are."""
    chip = find_chip(spec.chip)
    if chip is not None and chip.platform == "tpu":
        return _find_slice(spec, chip), spec.granules
    named = find_slice(spec.chip) if chip is None else None
    if named is not None:
        return _take_named(spec, named), spec.granules
    if chip is None and spec.chip != CPU:
        raise _refuse_unknown(spec)
    if spec.twisted is not None or len(spec.shape) > 1:
        raise refuse(
            f"target {spec}: only TPU slices have shapes of several dimensions and twists; "
            f"of GPUs and CPUs a target says how many a host has",
            f"write {spec.chip}:{find_default_count(chip) if chip else 8}",
        )
    return (spec.shape[0] if spec.shape else 1, spec.granules) if chip is None else _find_machine(spec, chip)


def _find_slice(spec: TargetSpec, chip: Chip) -> Slice:
    shape = spec.shape or next(each for each in (HOST_SHAPE, HOST_SHAPE[:2]) if is_legal(chip, each))
    found = build_slice(chip, shape, asked=str(spec))
    if spec.twisted:
        check_twist(found, asked=str(spec))
    return found


def _take_named(spec: TargetSpec, named: Slice) -> Slice:
    if spec.shape:
        whole = f"{named.chip.aliases[0]}:{write_shape(named.shape)}"
        raise refuse(
            f"target {spec}: {spec.chip} is the name of a slice, which has its shape, {write_shape(named.shape)}; "
            f"a shape stands only behind a chip",
            f"use {spec.chip}, or {whole}",
        )
    if spec.twisted:
        check_twist(named, asked=str(spec))
    return named


def _find_machine(spec: TargetSpec, chip: Chip) -> tuple[Machine, int]:
    count, granules = spec.shape[0] if spec.shape else find_default_count(chip), spec.granules
    usual = find_default_count(chip)
    if count == find_domain_count(chip):
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
    return refuse(
        f"target {spec}: no host with {count} {chip.name} is known; known hosts have {known}{whole}",
        f"use {', '.join(near)}",
    )


def _refuse_unknown(spec: TargetSpec) -> PlanInfeasibleError:
    near = find_near(spec.chip)
    return refuse(
        f"target {spec}: no chip and no slice is called {spec.chip}; known chips are {', '.join(list_chips())}",
        f"did you mean {' or '.join(near)}?" if near else "`meshwright targets` lists them, with the slices' names",
    )


def list_chips() -> tuple[str, ...]:
    """Returns the chips as targets are written with them."""
    return (CPU, *(chip.aliases[0] for chip in read_chips()))


def find_near(name: str) -> list[str]:
    """Returns known names that look like this one; of a chip's slices those of the nearest size."""
    prefix, _, count = name.rpartition("-")
    chip = find_chip(prefix)
    if chip and chip.platform == "tpu" and count.isascii() and count.isdigit():
        names = [known for known in list_names() if known.rpartition("-")[0] in {prefix, chip.aliases[0]}]
        return sorted(names, key=lambda known: _compare(known, int(count)))[:_NEAR_COUNT]
    aliases = [alias for chip in read_chips() for alias in chip.aliases]
    chips = difflib.get_close_matches(name, [CPU, *aliases], n=_NEAR_COUNT, cutoff=0.5)
    return chips or difflib.get_close_matches(name, list_names(), n=_NEAR_COUNT, cutoff=0.6)


def _compare(name: str, count: int) -> float:
    return abs(math.log(int(name.rpartition("-")[2]) / max(1, count)))


def count_devices(hardware: Hardware) -> int:
    """Returns the JAX devices of one slice or host."""
    if isinstance(hardware, int):
        return hardware
    return hardware.device_count if isinstance(hardware, Slice) else hardware.gpu_count
