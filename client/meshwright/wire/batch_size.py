"""Batch sizes: the published table, the roofline with its derivation, and the verdict on a given batch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr

from meshwright.wire.base import SCHEMA_VERSION, Basis, Notice, Reply, Request
from meshwright.wire.model import TrainingSpec
from meshwright.wire.verification import Verification


class BatchTraining(TrainingSpec):
    """How a model is trained, where the batch is what is asked."""

    global_batch: Annotated[StrictInt, Field(ge=1, le=2**24)] | None = Field(  # type: ignore[assignment]
        default=None, description="the greatest to look at; null: no bound"
    )


class BatchSizeRequest(Request):
    """`POST /batch-size`. Without `hardware`, the host's own."""

    hardware: StrictStr | None = Field(
        default=None, description='"h100", "tpu_v5e", a JAX device kind, …', max_length=128
    )
    batch: Annotated[StrictInt, Field(ge=1, le=2**53)] | None = Field(default=None, description="a batch size to judge")
    model: StrictStr | dict[StrictStr, Any] | None = Field(
        default=None, description="with verify: the model, as POST /mesh/plan takes it"
    )
    training: BatchTraining | None = Field(default=None, description="with verify: how it is trained")
    mesh: StrictStr | dict[StrictStr, StrictInt] | None = Field(default=None, description="with verify: the mesh")
    target: StrictStr | None = Field(default=None, description="with verify: the hardware; null: this host")
    plan: StrictStr | None = Field(
        default=None, description="with verify: fingerprint of a stored plan, instead of mesh", max_length=128
    )
    memory_strategy: Literal["conservative", "balanced", "aggressive"] = Field(
        default="balanced", description="with verify: how much memory the job's JAX may take on a GPU"
    )
    verify: Literal["none", "compile"] = Field(
        default="none", description="compile: the largest batch that XLA's compiler says fits; 202 and a run"
    )


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


class TriedBatch(Reply):
    """One compile of the search."""

    batch_per_device: int = Field(description="sequences that each data-parallel part works on")
    fits: bool
    peak_memory_bytes: int | None = None
    needed_bytes: int | None = None
    compile_s: float


class CompiledBatch(Reply):
    """The largest batch that XLA's compiler says fits."""

    batch_per_device: int | None = Field(
        description="sequences of each data-parallel part; 0: not even one fits; null: see `verification`"
    )
    global_batch: int | None = Field(description="sequences in one step")
    data_parallel_size: int
    compile_count: int = Field(description="compiles that it took")
    margin_bytes: int | None = Field(default=None, description="capacity less peak at this batch")
    limit: Literal["memory", "asked"] | None = Field(
        description="memory: one more does not fit; asked: the greatest batch that the search looks at fits"
    )
    tried: tuple[TriedBatch, ...] = ()
    verification: Verification = Field(description="of the largest batch that fits, or of the least tried")


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
    compiled: CompiledBatch | None = Field(default=None, description="where verify was asked")
    warnings: tuple[Notice, ...] = ()
