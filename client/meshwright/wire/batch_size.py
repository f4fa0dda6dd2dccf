"""Batch sizes: the published table, the roofline, the evaluation of a given batch, and the batch of a model's step."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictInt, StrictStr

from meshwright.wire.base import Basis, Notice, Reply, RequestPart
from meshwright.wire.mesh import Plan, PlanSchedule
from meshwright.wire.model import MemoryShare, TrainingSpec
from meshwright.wire.verification import Verification


class BatchSizeRequest(RequestPart):
    """`POST /batch-size`. Without `hardware`, the host's own."""

    hardware: StrictStr | None = Field(
        default=None, description='"h100", "tpu_v5e", a JAX device kind, …', max_length=128
    )
    per_device_batch_size: Annotated[StrictInt, Field(ge=1, le=2**53)] | None = Field(
        default=None, description="tokens of a device in a pass, to check against the table"
    )
    model: StrictStr | dict[StrictStr, Any] | None = Field(
        default=None,
        description="what is trained, as POST /mesh/plan takes it: `estimated` then says the batch of a step",
    )
    training: TrainingSpec | None = Field(
        default=None, description="how the model is trained; null: as the defaults have it, where nothing is compiled"
    )
    mesh: StrictStr | dict[StrictStr, StrictInt] | None = Field(
        default=None, description="what the model is trained on; null: the best is searched, where nothing is compiled"
    )
    target: StrictStr | None = Field(default=None, description="the hardware of the mesh; null: this host")
    plan: StrictStr | None = Field(
        default=None, description="fingerprint of a stored plan, instead of mesh and target", max_length=128
    )
    memory_strategy: MemoryShare = None
    compile: StrictBool = Field(
        default=False,
        description="false: a model's batch is estimated, at once; true: the largest that XLA's compiler says fits, "
        "202 and a run",
    )


class BatchSizeTable(Reply):
    """The row of the published table: sizes per device."""

    min_batch_size: int
    optimal_batch_size: int
    critical_batch_size: int
    notes: str = ""


class Roofline(Reply):
    """Where a matmul stops being bound by memory: peak FLOP/s ÷ memory bytes/s, in tokens per device."""

    critical_batch_tokens: float
    derivation: str = Field(description="the division, written out, and where both figures come from")


class TriedBatch(Reply):
    """One compile of the search."""

    per_replica_batch_size: int = Field(description="sequences that each data-parallel part works on")
    fits: bool
    needed_bytes: int | None = Field(default=None, description="of a device; where it fits, its peak")


class CompiledBatch(Reply):
    """The largest batch that XLA's compiler says fits."""

    per_replica_batch_size: int | None = Field(
        description="sequences of each data-parallel part; 0: not even one fits; null: see `verification`"
    )
    global_batch_size: int | None = Field(description="sequences in one step")
    limit: Literal["memory", "asked"] | None = Field(
        description="memory: one more does not fit; asked: the greatest batch that the search looks at fits; null: the "
        "compiler refuses more for another reason"
    )
    tried: tuple[TriedBatch, ...] = ()
    verification: Verification = Field(description="of the largest batch that fits, or of the least tried")


class PricedBatch(Reply):
    """What a step of one batch costs."""

    schedule: PlanSchedule
    tokens_per_s: float
    step_s: float
    memory_bytes: int = Field(description="of a device")
    limit: str = Field(description='what takes most of the step: "compute", "remat", "bubble" or an axis')


class EstimatedBatch(Reply):
    """How many sequences a step of a model should have on a mesh, by the cost model; nothing was compiled."""

    plan: Plan = Field(
        description="the mesh with the recommended batch, without the list of its devices; its `largest_batch` is of "
        "the passes and any remat that training allows; where nothing fits its `memory` is that of the least batch, "
        "and it has no schedule and no step time"
    )
    recommended: int | None = Field(
        description="sequences in one step: the least with 95 % of the most tokens/s; null: nothing fits"
    )
    batches: tuple[PricedBatch, ...] = Field(
        description="unit × 1, 2, 4, … 64, up to `global_batch_size`, where unit is data-parallel parts × the passes "
        "that training says; where it says the micro-batches, up to the largest; empty where nothing fits"
    )
    message: str = Field(description="the same in a sentence")


class BatchSize(Reply):
    """`POST /batch-size`."""

    hardware_type: str = Field(description="a value of meshwright.placement.HardwareType")
    chip: str | None = Field(default=None, description="the row of the chip table that the roofline was taken from")
    basis: Basis = Field(description="declared: named in the request; passive, cached or live: detected")
    table: BatchSizeTable
    roofline: Roofline | None = Field(
        default=None, description="null where no figure is known: never a guess at a neighbor"
    )
    validation: Notice | None = Field(default=None, description="below_minimum, below_critical or ok, by the table")
    estimated: EstimatedBatch | None = Field(
        default=None, description="of a model, by the cost model; null where no model is given, or `compile` was asked"
    )
    compiled: CompiledBatch | None = Field(default=None, description="where `compile` was asked")
    warnings: tuple[Notice, ...] = ()
