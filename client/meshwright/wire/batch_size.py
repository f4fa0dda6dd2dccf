"""Batch sizes: the published table, the roofline with its derivation, and the verdict on a given batch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictInt, StrictStr

from meshwright.wire.base import SCHEMA_VERSION, Basis, Notice, Reply, Request


class BatchSizeRequest(Request):
    """`POST /batch-size`. Without `hardware`, the host's own."""

    hardware: StrictStr | None = Field(
        default=None, description='"h100", "tpu_v5e", a JAX device kind, …', max_length=128
    )
    batch: Annotated[StrictInt, Field(ge=1, le=2**53)] | None = Field(default=None, description="a batch size to judge")


class BatchSizeTable(Reply):
    """The row of the published table: sizes per device."""

    min_batch_size: int
    optimal_batch_size: int
    critical_batch_size: int
    max_memory_batch_size: int | None = None
    notes: str = ""


class Roofline(Reply):
    """Where a matmul stops being bound by memory: peak FLOP/s ÷ memory bytes/s, in tokens per device."""

    critical_batch_tokens: float
    peak_flops_per_s: float
    memory_bytes_per_s: float
    dtype: str
    derivation: str = Field(description="the division, written out")
    source: str = Field(description="where both figures come from")


class BatchSizeValidation(Reply):
    """The verdict on a given batch, by the table."""

    batch: int
    valid: bool = Field(description="false: below the minimum")
    level: str = Field(description='"below_minimum", "below_critical" or "ok"')
    message: str


class BatchSize(Reply):
    """`POST /batch-size`."""

    schema_version: str = SCHEMA_VERSION
    hardware_type: str = Field(description="a value of meshwright.placement.HardwareType")
    chip: str | None = Field(default=None, description="the row of the chip table that the roofline was taken from")
    basis: Basis = Field(description="declared: named in the request; passive, cached or live: detected")
    table: BatchSizeTable
    roofline: Roofline | None = Field(
        default=None, description="null where no figure is known: never a guess at a neighbour"
    )
    validation: BatchSizeValidation | None = None
    warnings: tuple[Notice, ...] = ()
