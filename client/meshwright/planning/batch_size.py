"""How large a batch: the published table, rows derived for newer chips, the evaluation of a batch, the roofline.

Rule: the eight published rows stay as they are, and different results of the roofline are added beside them.
Independent of models: sizes are tokens that a device's matmuls have at a time, and memory is not checked.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from meshwright.planning.hardware import HardwareType, detect_hardware, parse_hardware
from meshwright.topology.chips import Chip, find_chip, read_cells, read_chips
from meshwright.wire.base import Basis, Notice
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, BatchSizeTable, Roofline

DIFFERENCE_RATIO: Final = 0.05
"""A critical batch that is further than this from the roofline is warned of (v5e and H100 are within 1 %)."""


@dataclass(frozen=True)
class BatchSizeRecommendation:
    """Tokens a device has at a time: the least that is sensible, the best, and the one that reaches the roofline."""

    min_batch_size: int
    optimal_batch_size: int
    critical_batch_size: int
    max_memory_batch_size: int | None = None
    notes: str = ""


@functools.cache
def read_published() -> Mapping[HardwareType, BatchSizeRecommendation]:
    """Returns the published table, `batch_sizes.csv`; every other row is derived from the chip table."""
    rows = ({**row} for row in read_cells("meshwright.planning", "batch_sizes.csv"))
    return {
        HardwareType(row.pop("hardware")): TypeAdapter(BatchSizeRecommendation).validate_python(row) for row in rows
    }


def recommend_batch_size(hardware_type: HardwareType) -> BatchSizeRecommendation:
    """Returns the table's row for this hardware: published, or derived from its roofline as described in its notes."""
    if published := read_published().get(hardware_type):
        return published
    return derive_recommendation(next(chip for chip in read_chips() if chip.family == hardware_type.value))


def derive_recommendation(chip: Chip) -> BatchSizeRecommendation:
    """Returns a row for a chip without a published one.

    Critical is the roofline's batch, rounded up. Optimal is the next multiple of 64, as in the published rows
    of v5e and H100; the minimum is the largest power of two in a quarter of that, as for v5e, v5p, v4, H100.

    Source: the roofline of `Chip.critical_batch_tokens`, and the published rows.
    """
    critical = math.ceil(chip.critical_batch_tokens)
    optimal = math.ceil(critical / 64) * 64
    roofline = f"{_write_division(chip)} = {chip.critical_batch_tokens:.1f} tokens a device"
    notes = f"Derived, not published: critical is {chip.name}'s roofline, {roofline}."
    return BatchSizeRecommendation(1 << int(math.log2(optimal // 4)), optimal, critical, notes=notes)


def validate_batch_size(hardware_type: HardwareType, batch: int, warn_suboptimal: bool = True) -> tuple[bool, str]:
    """Returns whether the batch size per device is valid, and a sentence that compares it with the table.

    Only a batch below the minimum is invalid. A batch below the critical size is valid, and reported if
    `warn_suboptimal`.

    Raises:
        TypeError: `batch` is not an integer.
    """
    found = _evaluate(hardware_type, batch)
    if found.code != "below_critical" or warn_suboptimal:
        return found.code != "below_minimum", found.message
    minimum = recommend_batch_size(hardware_type).min_batch_size
    name = hardware_type.value
    return True, f"batch size {batch} is valid: at least the minimum {minimum} tokens a device for {name}"


def answer_batch_size(request: BatchSizeRequest, *, platform: str | None, kind: str | None, basis: Basis) -> BatchSize:
    """Returns the whole answer: the table's row, the roofline with its derivation, and the evaluation of a batch.

    Args:
        request: names the hardware, or leaves it to what was detected.
        platform, kind: the host's own device as named by JAX or the driver; None where unknown.
        basis: how those two are known; a named hardware is always "declared".

    Raises:
        UnknownHardwareError: the request names hardware that is in no table.
    """
    if request.hardware is not None:
        hardware_type, chip = parse_hardware(request.hardware), find_chip(request.hardware)
    else:
        hardware_type = detect_hardware(platform or "", kind or "")
        found = find_chip(kind or "")
        chip = found if found and found.family == hardware_type.value else None
    row = recommend_batch_size(hardware_type)
    asked, batch = request.hardware or kind or "no device", request.per_device_batch_size
    return BatchSize(
        hardware_type=hardware_type.value,
        chip=chip.name if chip else None,
        basis=basis if request.hardware is None else "declared",
        table=BatchSizeTable(**{name: getattr(row, name) for name in BatchSizeTable.model_fields}),
        roofline=build_roofline(chip) if chip else None,
        validation=None if batch is None else _evaluate(hardware_type, batch),
        warnings=tuple(_find_warnings(hardware_type, chip, row, asked)),
    )


def build_roofline(chip: Chip) -> Roofline:
    """Returns where a 16-bit matmul stops being bound by memory on one JAX device of this chip, and why."""
    count, tokens = chip.jax_devices_per_chip, chip.critical_batch_tokens
    part = f"; each of a chip's {count} JAX devices has an equal part of both" if count > 1 else ""
    derivation = f"a matmul of B tokens with a {chip.dtype} weight [D, F] does 2·B·D·F FLOP and reads 2·D·F bytes of "
    derivation += f"weights, B FLOP a byte; compute bounds it from B = {_write_division(chip)} = {tokens:.1f}{part}; "
    derivation += f"source: {chip.source}; formula: jax-ml/scaling-book, roofline.md"
    return Roofline(critical_batch_tokens=tokens, derivation=derivation)


def _evaluate(hardware_type: HardwareType, batch: int) -> Notice:
    size, row = operator.index(batch), recommend_batch_size(hardware_type)
    if size < row.min_batch_size:
        level, place = "below_minimum", f"below minimum {row.min_batch_size}"
        rule = f"; use {row.min_batch_size} or more, best {row.optimal_batch_size}"
    elif size < row.critical_batch_size:
        level, place = "below_critical", f"below critical {row.critical_batch_size}"
        rule = f"; the device waits for memory: use {row.optimal_batch_size} if it fits"
    else:
        level, place, rule = "ok", f"at or above the critical {row.critical_batch_size}", ""
    message = f"batch size {size} is {place} tokens a device for {hardware_type.value}{rule}"
    return Notice(code=level, message=message)


def _find_warnings(
    hardware_type: HardwareType, chip: Chip | None, row: BatchSizeRecommendation, asked: str
) -> Iterator[Notice]:
    if hardware_type is HardwareType.UNKNOWN and asked.lower() != "unknown":
        message = f"{asked!r} is in no table: the row is the conservative default, without a roofline"
        hint = "name the hardware if you know what it is like, as in hardware=h100; or measure with a bench"
        yield Notice(code="hardware_unknown", message=message, hint=hint)
    if hardware_type in (HardwareType.CPU, HardwareType.UNKNOWN):
        return
    hint = "measure matmul and memory_bandwidth with a bench: their quotient is the roofline"
    if chip is None:
        message = f"the row is for {hardware_type.value} in general; the figures of {asked!r} are in no table"
        yield Notice(code="chip_unknown", message=message, hint=hint)
        return
    if not chip.verified.startswith("yes"):
        message = f"not all figures of {chip.name} were checked against their source: {chip.source}"
        yield Notice(code="figures_unverified", message=message, hint=hint)
    difference = row.critical_batch_size / chip.critical_batch_tokens - 1
    if abs(difference) > DIFFERENCE_RATIO:
        side = "above" if difference > 0 else "below"
        yield Notice(
            code="table_differs_from_roofline",
            message=f"the table's critical batch size {row.critical_batch_size} is {abs(difference):.0%} {side} the "
            f"roofline of {chip.name}, {chip.critical_batch_tokens:.1f} tokens a device",
            hint="for a matmul that reads its weights once, the roofline is the figure with a derivation",
        )


def _write_division(chip: Chip) -> str:
    flops, bandwidth = _write_number(chip.device_flops_per_s), _write_number(chip.device_memory_bytes_per_s)
    return f"{flops} FLOP/s ÷ {bandwidth} bytes/s"


def _write_number(value: float) -> str:
    exponent = 3 * (int(math.log10(value)) // 3)
    return f"{value / 10**exponent:.6g}e{exponent}"
