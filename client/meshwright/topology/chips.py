"""Chips: published figures of each accelerator, and the search of a chip by name, PCI id, or its name in JAX and
drivers.

The table is `chips.csv` beside this file, each row with its source. A chip is found by an exact name or not at all.
`ChipCount` is a number of devices with an optional chip, as operators write it: "8" or "h100:8".
"""

from __future__ import annotations

import csv
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BeforeValidator, TypeAdapter

Row = TypeVar("Row")


def read_cells(package: str, name: str) -> list[dict[str, str]]:
    """Returns the rows of a packaged CSV table, each column → cell; empty cells are left out."""
    text = (files(package) / name).read_text(encoding="utf-8")
    return [{column: cell for column, cell in row.items() if cell} for row in csv.DictReader(text.splitlines())]


def read_table(package: str, name: str, row: type[Row]) -> tuple[Row, ...]:
    """Returns the rows of a packaged CSV table.

    Args:
        row: a dataclass with a field for each column; an empty cell is the field's default.

    Raises:
        pydantic.ValidationError: a cell is not valid, or a column without a default is missing.
    """
    return TypeAdapter(tuple[row, ...]).validate_python(read_cells(package, name))  # type: ignore[valid-type]


def parse_names(cell: object) -> object:
    """Returns the words of a table's cell; a value that is no text unchanged."""
    return tuple(cell.split("|")) if isinstance(cell, str) else cell


def _parse_bytes(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    number, unit = cell.split()
    return int(number) * {"MiB": 2**20, "GiB": 2**30}[unit]


Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
"""Words of a table's cell, as in "v5e|v5litepod"."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One row of the chip table. Figures are published peaks of a whole chip; None where not published.

    A chip may be more than one JAX device (`jax_devices_per_chip`): the `device_…` properties give one device's share.
    Link figures are one way.

    Attributes:
        name: "TPU v5e", "H100 SXM".
        family: the hardware type that it belongs to: a value of `planning.hardware.HardwareType`.
        aliases: names used by people and in targets, in lower case.
        kinds: its names in `jax.Device.device_kind` and, for GPUs, in the driver (GPU names: README of
            NVIDIA/open-gpu-kernel-modules at df1c9a3; TPU names: jax/_src/tpu_info.py of jax 0.12.0.1).
        dtype: the 16-bit type of the matrix units; `flops_per_s` is dense in it.
        memory_bytes: capacity: of a GPU as its driver reports it, of a TPU as published.
        link_bytes_per_s, link_count: one ICI, NVLink or xGMI link of a chip, and how many it has.
        scaleup_bytes_per_s: all those links together.
        host_bytes: memory of a host, for each chip of it.
        nic_bytes_per_s: of a whole host.
        scaleout_bytes_per_s: a chip's share of the network between hosts or slices.
        measured_flops_per_s: the best measured GEMM, in `dtype`.
        usable_bytes: of one JAX device of a TPU, that a program may use. Source: the error of XLA's TPU compiler for a
            program that cannot fit, libtpu 0.0.42.1.
        clock_hz: of a TPU: cycles a second of the compiler's `estimated_cycles`: peak FLOP/s of a device ÷ what its
            matrix units do in a cycle (2 × 128 × 128 each: 1 a core of v2, 2 of v3, 8 a chip of v4 and v5p, 4 of v5e;
            2 × 256 × 256: 4 a chip of v6e, 4 a device of 7x). Source: this table's FLOP/s; Jouppi et al., "TPU v4"
            (ISCA 2023), table 4, has 940 and 1050 MHz of v3 and v4.
        source, verified: where the figures come from, and whether they were checked there; conflicts are in the table.
    """

    name: str
    family: str
    platform: Literal["gpu", "tpu"]
    aliases: Names
    kinds: Names
    jax_devices_per_chip: int
    dtype: Literal["bfloat16", "float16"]
    flops_per_s: float
    memory_bytes: Annotated[int, BeforeValidator(_parse_bytes)]
    memory_bytes_per_s: float
    link_bytes_per_s: float | None = None
    link_count: int | None = None
    scaleup_bytes_per_s: float | None = None
    topology: str = ""
    pcie_bytes_per_s: float | None = None
    host_bytes: float | None = None
    nic_bytes_per_s: float | None = None
    scaleout_bytes_per_s: float | None = None
    measured_flops_per_s: float | None = None
    usable_bytes: int | None = None
    clock_hz: float | None = None
    source: str
    verified: str

    @property
    def device_flops_per_s(self) -> float:
        """Peak dense FLOP/s of one JAX device, in `dtype`."""
        return self.flops_per_s / self.jax_devices_per_chip

    @property
    def device_memory_bytes(self) -> int:
        """Memory of one JAX device."""
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
    return read_table("meshwright.topology", "chips.csv", Chip)


def find_chip(name: str) -> Chip | None:
    """Returns the chip of this name, alias, JAX device kind or driver's product name, in any case; None for any other.

    Parts of a GPU ("… MIG 1g.10gb") and relatives of a chip ("NVIDIA H100 NVL", "NVIDIA H800 PCIe") are not in the
    table, so the result is None.
    """
    return _by_name().get(_fold(name))


@functools.cache
def _by_name() -> Mapping[str, Chip]:
    return {_fold(name): chip for chip in read_chips() for name in (chip.name, *chip.aliases, *chip.kinds)}


def _fold(name: str) -> str:
    return "-".join(name.lower().replace("_", "-").replace("-", " ").split())


_CPU: Final = "cpu"
_COUNT: Final = re.compile(r"(?:([A-Za-z0-9._-]{1,64}):)?([0-9]{1,6})")


@dataclass(frozen=True)
class ChipCount:
    """A number of devices, of one chip where it is named, with its original text."""

    count: int
    chip: str | None = None

    def __str__(self) -> str:
        return f"{self.chip}:{self.count}" if self.chip else str(self.count)

    @property
    def words(self) -> str:
        """Such as "8 h100 devices"."""
        return f"{self.count} {self.chip} devices" if self.chip else f"{self.count} devices"

    def is_of(self, kind: str, mig: object) -> bool:
        """Returns whether a device counts: "NVIDIA H100 80GB HBM3" is an h100, "cpu" a cpu; any if no chip is named.

        Args:
            mig: which part of a card it is, so that it is no chip; None: a whole one.
        """
        if self.chip is None or mig is not None:
            return self.chip is None
        if self.chip.lower() == _CPU:
            return kind.lower() == _CPU
        found, words = find_chip(kind), kind.lower().replace("-", " ").split()
        return self.chip.lower() in words or (found is not None and found == find_chip(self.chip))


def parse_chip_count(text: str) -> ChipCount:
    """Returns the value of "h100:8" or "8".

    Raises:
        ValueError: the text is not a count above 0, or names a chip that is in no table.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or not int(match[2]):
        raise ValueError(f"{text[:80]!r} is not a number of devices; write h100:8, or 8 for devices of any kind")
    name = match[1]
    if name is None or name.lower() == _CPU or find_chip(name) is not None:
        return ChipCount(int(match[2]), name)
    known = [_CPU, *(alias for chip in read_chips() for alias in chip.aliases)]
    near = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.4) or ["h100", "v5p"]
    raise ValueError(
        f"no table knows a chip {name!r}; near: {', '.join(near)}; `meshwright hardware` lists them; write {near[0]}:8"
    )


NVIDIA: Final = "0x10de"
GOOGLE: Final = "0x1ae0"
"""Vendors, as sysfs prints them; Google's also of network and storage cards. Source: PCI ID repository."""

DISPLAY_CLASS: Final = "0x03"
"""Display controllers, 3D controllers among them. Source: PCI Code and ID Assignment Specification."""

TPU_KINDS: Final[Mapping[str, str | None]] = {
    "0x0027": None,
    "0x0056": None,
    "0x005e": "TPU v4",
    "0x0062": "TPU v5",
    "0x0063": "TPU v5 lite",
    "0x006f": "TPU v6 lite",
    "0x0076": "TPU7x",
    "0x0083": "TPU8i",
    "0x007c": "TPU8t",
}
"""Device id → `jax.Device.device_kind`; 0x0027 is v2 and v3 alike, 0x0056 has no public name.

Source: jax/_src/hardware_utils.py and jax/_src/tpu_info.py of jax 0.12.
"""
