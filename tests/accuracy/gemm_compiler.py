"""Asks XLA's TPU compiler what it thinks a matmul takes: `data/gemm_compiler.csv`, one shape on one chip a row.

Rule: facts only; a row is what the compiler said of a program of one matmul, for a device that is not here. Rows that
stand in the table are not asked again, so that an ended run goes on where it was. Nothing is fitted here.

A compile takes 0.1 to 10 s, so that all of them take half an hour on one core. The compiler's estimate is of the fusion
alone: an operand that it copies into VMEM before is not in it, so its bytes stand beside (`prefetched_bytes`).
"""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final

from meshwright.compiling.environment import build_compile_environment

_NAMES: Final = {"fp8": "float8_e4m3fn"}

TABLE: Final = Path(__file__).with_name("data") / "gemm_compiler.csv"
CHIPS: Final = ("v5e", "v5p", "v6e", "v4", "tpu7x")
SEED: Final = 6

WEIGHTS: Final[tuple[tuple[int, int], ...]] = (
    *((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (16384, 16384)),
    *((4096, 14336), (14336, 4096), (8192, 28672), (8192, 7168), (3584, 8192), (8192, 3584), (1024, 8192)),
    *((8192, 1280), (4096, 11008), (1376, 4096), (5120, 13824), (1728, 5120), (12288, 1536), (6144, 12288)),
    *((2048, 1408), (1408, 2048), (7168, 2048), (768, 7168), (2880, 2880), (1600, 6400), (768, 3072)),
    *((2560, 10240), (1920, 480), (672, 2304), (4096, 100), (200, 4096), (4096, 64), (128, 16384), (512, 512)),
    *((4096, 32000), (2304, 9216), (256, 2048), (3072, 192)),
)
"""Contraction and columns as models and their parts over a tensor axis have them: squares; Llama 3 8B and 70B whole and
over 4 and 8; Llama 2; GPT-3 over 8; experts of DeepSeek, OLMoE and GPT-OSS; GPT-2; 96-multiples; what divides badly."""

ROWS: Final = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
ROWS_EACH: Final = 3
NARROW_COUNT: Final = 8
"""How many of the shapes are asked for in 8 bits: enough to see whether the 16-bit curve holds, in twice the time."""


@dataclass(frozen=True)
class Compiled:
    """What the compiler said of one matmul [m, k] × [k, n].

    Attributes:
        chip: an alias of the chip table; the figure is of one JAX device.
        dtype: of both operands.
        seconds: estimated cycles ÷ clock.
        prefetched_bytes: of operands that were copied into VMEM before, outside the estimate.
        source: which compiler.
    """

    chip: str
    dtype: str
    m: int
    k: int
    n: int
    seconds: float
    prefetched_bytes: int
    source: str


def list_shapes(dtype: str = "bfloat16") -> list[tuple[int, int, int]]:
    """Returns the shapes [m, k, n] to ask for, in the order of asking: mixed, so that any beginning is a fair part.

    Of the shapes of a pair of weights, one stands turned, as the gradient of weights has it: tokens contracted.
    """
    generator = random.Random(SEED)
    shapes: list[tuple[int, int, int]] = []
    for k, n in WEIGHTS:
        chosen = generator.sample(ROWS, ROWS_EACH)
        shapes += [(k, m, n) if turned else (m, k, n) for turned, m in zip((True, False, False), chosen, strict=True)]
    generator.shuffle(shapes)
    once = list(dict.fromkeys(shapes))
    return once if dtype == "bfloat16" else once[:NARROW_COUNT]


def read_compiled(table: Path = TABLE) -> list[Compiled]:
    """Returns the rows of the table."""
    with table.open(encoding="utf-8", newline="") as lines:
        return [_parse_row(row) for row in csv.DictReader(lines)]


def _parse_row(row: dict[str, str]) -> Compiled:
    shape = {name: int(row[name]) for name in ("m", "k", "n", "prefetched_bytes")}
    return Compiled(row["chip"], row["dtype"], seconds=float(row["seconds"]), source=row["source"], **shape)


def ask_compiler(chips: Sequence[str] = CHIPS, dtype: str = "bfloat16", table: Path = TABLE) -> int:
    """Runs a child that asks for every shape that the table lacks; returns its exit status."""
    base = {name: value for name, value in os.environ.items() if name not in {"JAX_PLATFORMS", "XLA_FLAGS"}}
    command = [sys.executable, "-m", "tests.accuracy.gemm_compiler", str(table), dtype, *chips]
    return subprocess.run(command, env=build_compile_environment(base), check=False).returncode


def answer(table: Path, dtype: str, chips: Sequence[str]) -> None:
    """Asks in this process, which must have a compile child's environment, and adds to the table."""
    known = {(row.chip, row.dtype, row.m, row.k, row.n) for row in read_compiled(table)} if table.exists() else set()
    if not table.exists():
        table.write_text(",".join(field.name for field in fields(Compiled)) + "\n", encoding="utf-8")
    devices = {chip: _open_device(chip) for chip in chips}
    with table.open("a", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        for m, k, n in list_shapes(dtype):
            for chip in chips:
                if (chip, dtype, m, k, n) not in known:
                    writer.writerow(astuple(_compile(chip, dtype, (m, k, n), *devices[chip])))
                    lines.flush()


def _open_device(chip: str) -> tuple[Any, float]:
    """Returns a device of a slice of one chip, and its clock."""
    from meshwright.compiling.targets import open_target
    from meshwright.topology.chips import find_chip
    from meshwright.wire.compiling import CompileTarget

    known = find_chip(chip)
    assert known is not None, chip
    shape = (1, 1) if known.topology.startswith("2D") else (1, 1, 1)
    opened = open_target(CompileTarget(name=chip, platform="tpu", chip=chip, shape=shape))
    assert opened.clock_hz is not None
    return opened.devices[0][0], opened.clock_hz


def _compile(chip: str, dtype: str, shape: tuple[int, int, int], device: Any, clock_hz: float) -> Compiled:
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding

    from meshwright.compiling.compilers import read_versions
    from meshwright.compiling.hlo.estimate import build_estimate
    from meshwright.compiling.hlo.execution import walk_executed
    from meshwright.compiling.hlo.module import parse_module

    m, k, n = shape
    place, result = SingleDeviceSharding(device), jnp.int32 if dtype == "int8" else jnp.bfloat16
    left, right = (
        jax.ShapeDtypeStruct(sizes, jnp.dtype(_NAMES.get(dtype, dtype)), sharding=place) for sizes in ((m, k), (k, n))
    )

    def multiply(one: Any, other: Any) -> Any:
        return jax.lax.dot(one, other, preferred_element_type=result)

    text = jax.jit(multiply).lower(left, right).compile().as_text()
    executed = list(walk_executed(parse_module(text or ""), lambda notice: None))
    estimate = build_estimate(executed, clock_hz)
    assert estimate is not None, f"no estimate for {chip} {shape}"
    assert estimate.unpriced_count == 0, f"{estimate.unpriced_count} operations without an estimate: {chip} {shape}"
    source = f"XLA TPU compiler, libtpu {read_versions('tpu')['libtpu']}"
    return Compiled(chip, dtype, m, k, n, float(f"{estimate.total_s:.6g}"), sum(_list_prefetched(executed)), source)


def _list_prefetched(executed: Sequence[Any]) -> Iterator[int]:
    for place in executed:
        if place.instruction.opcode == "copy-start":
            yield int(place.instruction.arrays[0].size_bytes)


if __name__ == "__main__":
    answer(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
