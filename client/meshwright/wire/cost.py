"""The estimated cost of a step, and the choices of a search. Times in seconds, sizes in bytes of one device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictFloat, StrictInt

from meshwright.wire.base import Reply
from meshwright.wire.model import Remat, WeightDtype

Price = Annotated[StrictFloat | StrictInt, Field(gt=0, le=1e6)]

SearchAxis = Literal["dp", "fsdp", "tp", "cp", "ep", "pp"]
"""What a search calls the axes that it makes."""


class PlanSchedule(Reply):
    """How the batch goes through a plan's mesh, and what is computed again."""

    micro_batch_size: int = Field(description="sequences that each data-parallel part works on at a time")
    gradient_accumulation_steps: int = Field(
        description="micro-batches one after the other in a step; a pipeline's too"
    )
    remat: Remat
    global_batch_size: int = Field(description="sequences in one optimizer step")
    seq_len: int
    first_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: there is none")
    second_moment_dtype: WeightDtype | None = Field(default=None, description="of AdamW; null: there is none")


class PlanMemory(Reply):
    """Memory of the fullest device, by what it holds."""

    per_device_bytes: int
    capacity_bytes: int | None = Field(description="that a job may use; null: not known")
    fits: bool | None
    parts: dict[str, int] = Field(description="add up to per_device_bytes")


class PlanStepTime(Reply):
    """Seconds of one step; the parts add up to `total_s`."""

    total_s: float
    low_s: float | None = Field(
        default=None,
        description="four of five steps are expected between this and `high_s`; `basis` says how it is known",
    )
    high_s: float | None = None
    compute_s: float
    remat_s: float = Field(description="computed again in the backward pass")
    communication_s: dict[str, float] = Field(description="by axis, what nothing hides")
    bubble_s: float = Field(description="devices wait for the pipeline to fill and to empty")
    basis: str = Field(description="where the constants come from, and what makes the interval so wide")


class MeasuredFigure(Reply):
    """A figure of this host that was measured, and stands in the place of the tables' own."""

    name: str = Field(description='what it is: "flops_per_s", "memory_bytes_per_s", "bus_bandwidth_bytes_per_s"')
    case: str = Field(description="the bench's case that measured it")
    value: float
    default: float | None = Field(description="what would have been taken; null: nothing is known")
    run_id: str
    observed_at: str
    age_s: float


class AuditAlternative(Reply):
    """The best that the same devices could do with the same batch."""

    mesh_shape: dict[str, int]
    schedule: PlanSchedule
    total_s: float
    saved_fraction: float = Field(description="of the audited step's time; 0: it is the best")
    message: str


class PlanAudit(Reply):
    """An existing configuration beside the best of its devices."""

    best: AuditAlternative | None = Field(default=None, description="null: no mesh of these devices fits")
