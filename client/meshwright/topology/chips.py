"""The chip table: what vendors publish of each accelerator, found by name or by what JAX and drivers call it.

Rule: a chip is found by an exact name or not at all; a neighbour's figures are never given. The table is
`chips.csv` beside this file, each row with its source. Knows nothing of the devices that are really here.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any, Final, Literal

_UNITS: Final = {"GB": 10**9, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Chip:
    """One row of the table. Figures are peaks of a whole chip, as published; None where nobody says.

    A chip may be more than one JAX device (`jax_devices_per_chip`): `device_flops_per_s` and its like are a
    device's part. Link figures are one way.

    Attributes:
        name: "TPU v5e", "H100 SXM".
        family: the hardware type that it belongs to: a value of `planning.batch_size.HardwareType`.
        aliases: names that people and targets use, in lower case.
        kinds: what `jax.Device.device_kind` and, for GPUs, the driver call it (GPU names: README of
            NVIDIA/open-gpu-kernel-modules at df1c9a3; TPU names: jax/_src/tpu_info.py of jax 0.12.0.1).
        dtype: the 16-bit type that the matrix units take; `flops_per_s` is dense in it.
        memory_bytes: capacity as the vendor names it; a driver reports a little more or less.
        link_bytes_per_s, link_count: one ICI, NVLink or xGMI link of a chip, and how many it has.
        scaleup_bytes_per_s: all those links together.
        nic_bytes_per_s: of a whole host.
        scaleout_bytes_per_s: a chip's share of the network between hosts or slices.
        measured_flops_per_s: the best GEMM that somebody measured, in `dtype`.
        source, verified, notes: where the figures come from, whether looked up there, and conflicts.
    """

    name: str
    family: str
    platform: Literal["gpu", "tpu"]
    aliases: tuple[str, ...]
    kinds: tuple[str, ...]
    jax_devices_per_chip: int
    dtype: Literal["bfloat16", "float16"]
    flops_per_s: float
    fp8_flops_per_s: float | None
    int8_ops_per_s: float | None
    fp32_flops_per_s: float | None
    memory_bytes: int
    memory_bytes_per_s: float
    link_bytes_per_s: float | None
    link_count: int | None
    scaleup_bytes_per_s: float | None
    topology: str
    wrap: str
    scaleup_domain: str
    pcie_bytes_per_s: float | None
    nic_bytes_per_s: float | None
    scaleout_bytes_per_s: float | None
    measured_flops_per_s: float | None
    source: str
    verified: str
    notes: str

    @property
    def roofline_verified(self) -> bool:
        """Whether both figures of `critical_batch_tokens` were found at their source."""
        return self.verified.startswith("yes")

    @property
    def device_flops_per_s(self) -> float:
        """Peak dense FLOP/s of one JAX device, in `dtype`."""
        return self.flops_per_s / self.jax_devices_per_chip

    @property
    def device_memory_bytes(self) -> int:
        """Nominal memory of one JAX device."""
        return self.memory_bytes // self.jax_devices_per_chip

    @property
    def device_memory_bytes_per_s(self) -> float:
        """Peak memory bandwidth of one JAX device."""
        return self.memory_bytes_per_s / self.jax_devices_per_chip

    @property
    def critical_batch_tokens(self) -> float:
        """Tokens a device from which a 16-bit matmul is bound by compute, not by reading its weights.

        Source: jax-ml/scaling-book, roofline.md: 2·B·D·F FLOP against 2·D·F bytes of weights gives
        B = peak FLOP/s ÷ memory bytes/s.
        """
        return self.flops_per_s / self.memory_bytes_per_s


@functools.cache
def read_chips() -> tuple[Chip, ...]:
    """Returns the whole table, in its order: TPUs, then NVIDIA's and AMD's GPUs."""
    text = (files("meshwright.topology") / "chips.csv").read_text(encoding="utf-8")
    return parse_chips(text.splitlines())


def parse_chips(lines: Iterable[str]) -> tuple[Chip, ...]:
    """Returns the chips of a CSV text with one column a field of `Chip` (`memory` for `memory_bytes`).

    Raises:
        ValueError: a cell is no such value, or a column is missing.
    """
    return tuple(_parse_row(row) for row in csv.DictReader(lines))


def find_chip(name: str) -> Chip | None:
    """Returns the chip of this name or alias ("H100 SXM", "v5e", "a100-40gb"), in any case, or None."""
    return _by_name().get(_fold(name))


def find_chip_by_kind(kind: str) -> Chip | None:
    """Returns the chip that JAX's device kind or the driver's product name means; None for any other.

    Parts of a GPU ("… MIG 1g.10gb") and relatives of a chip ("NVIDIA H100 NVL", "NVIDIA H800 PCIe") are no
    chip of the table, so they get None.
    """
    return _by_kind().get(_fold_kind(kind))


@functools.cache
def _by_name() -> Mapping[str, Chip]:
    return {_fold(name): chip for chip in read_chips() for name in (chip.name, *chip.aliases)}


@functools.cache
def _by_kind() -> Mapping[str, Chip]:
    return {_fold_kind(kind): chip for chip in read_chips() for kind in chip.kinds}


def _fold(name: str) -> str:
    return "-".join(name.lower().replace("_", "-").replace("-", " ").split())


def _fold_kind(kind: str) -> str:
    return " ".join(kind.lower().split())


def _parse_row(row: Mapping[str, str | None]) -> Chip:
    values: dict[str, Any] = {}
    for field in fields(Chip):
        column = "memory" if field.name == "memory_bytes" else field.name
        cell = row.get(column)
        if cell is None:
            raise ValueError(f"chip {row.get('name')!r} has no cell {column!r}; each field of Chip needs one")
        values[field.name] = _parse_cell(field.name, cell)
    return Chip(**values)


def _parse_cell(name: str, cell: str) -> object:
    if name in _PARSERS:
        return _PARSERS[name](cell)
    return _parse_number(cell) if name.endswith("_per_s") else cell


def _parse_number(cell: str) -> float | None:
    return float(cell) if cell else None


def _parse_names(cell: str) -> tuple[str, ...]:
    return tuple(cell.split("|"))


def _parse_bytes(cell: str) -> int:
    number, unit = cell.split()
    if unit not in _UNITS:
        raise ValueError(f"memory is {cell!r}; the unit is one of {', '.join(_UNITS)}, as in '80 GB'")
    return int(number) * _UNITS[unit]


_PARSERS: Final[Mapping[str, Callable[[str], object]]] = {
    "aliases": _parse_names,
    "kinds": _parse_names,
    "jax_devices_per_chip": int,
    "flops_per_s": float,
    "memory_bytes": _parse_bytes,
    "memory_bytes_per_s": float,
    "link_count": lambda cell: int(cell) if cell else None,
}
