"""Mesh plans: the requests and answers of `/mesh/plan` and `/mesh/search`. Parts that are not requested are null."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator

from meshwright.spec import AxisType
from meshwright.wire.base import LINE_PATTERN, DeviceRef, DeviceSelection, Notice, Reply, RequestPart
from meshwright.wire.devices import Devices, Granule
from meshwright.wire.leases import LeaseId
from meshwright.wire.model import Count, MemoryShare, ModelFacts, Remat, TrainingSpec, WeightDtype
from meshwright.wire.verification import Verification

LISTED_MAX: Final = 131_072
"""The maximum entries of a list in a request. A longer list is rejected before its entries are read."""

TARGETS_MAX: Final = 16
"""Targets that one search may compare."""

EQUAL_WITHIN: Final = 0.04
"""Meshes of one model on one machine whose steps differ by less are equal: their errors are correlated, but not fully.

Assumed: no sweep of meshes by JAX was published that would test it; those of other frameworks scatter by 3 to 5 %."""

UNKNOWN_TARGET: Final = "unknown_target"
"""Reason of a compared target: the chip, slice or host does not exist."""

ExportName = Literal["jax", "maxtext"]

EXPORT_LEFT_OUT: Final = "export_left_out"
"""Code of a found plan's warning: an export cannot be written."""

ModelLike = StrictStr | dict[StrictStr, Any]
MODEL: Final = "a preset's name, the content of a Hugging Face config.json, or dimensions by the same names"

MeshShape = dict[str, int]
"""Axis name → size, outermost first."""


class _MeshRequest(RequestPart):
    """The common fields of `POST /mesh/plan` and `POST /mesh/search`: the devices, and the contents of the answer."""

    devices: tuple[StrictInt | StrictStr, ...] | DeviceSelection | None = Field(
        default=None,
        description="local indices, host/index, uuids or PCI bus ids; or a selection; null: all that are well and free",
    )
    lease: LeaseId | None = Field(
        default=None,
        description="the lease that the job has: its devices are planned on, and not what others have reserved",
    )
    topology: Devices | tuple[Devices, ...] | None = Field(
        default=None, description="plan on these hosts: replies of their agents' GET /devices; null: this host"
    )
    include_devices: StrictBool = Field(default=True, description="false leaves the list of devices out of the reply")
    memory_strategy: MemoryShare = None
    exports: tuple[ExportName, ...] = Field(
        default=(),
        description="jax: mesh and PartitionSpecs as Python; maxtext: its flags, and a search finds what MaxText can "
        "run; needs a model",
    )
    compile: StrictBool = Field(
        default=False,
        description="true: XLA's compiler for the target says whether the step fits; 202 and a run where no earlier "
        "answer is stored",
    )

    @field_validator("devices", "topology", mode="before")
    @classmethod
    def _limit(cls, value: object) -> object:
        if isinstance(value, list | tuple) and len(value) > LISTED_MAX:
            raise ValueError(f"the list has {len(value)} entries; it may have at most {LISTED_MAX}")
        return value

    @field_validator("training", check_fields=False)
    @classmethod
    def _need_batch(cls, value: TrainingSpec | None) -> TrainingSpec | None:
        if value is not None and "global_batch_size" not in value.model_fields_set:
            raise ValueError('the sequences of a step are not given; add "global_batch_size": 64')
        return value

    @field_validator("topology")
    @classmethod
    def _refuse_odd_names(cls, value: Devices | tuple[Devices, ...] | None) -> Devices | tuple[Devices, ...] | None:
        """Host names are shown in tables, drawings and reasons."""
        for reply in (value,) if isinstance(value, Devices) else value or ():
            names = {reply.host.name, *(each.name for each in reply.granules), *(each.host for each in reply.devices)}
            for name in names:
                if not re.fullmatch(LINE_PATTERN, name):
                    raise ValueError(
                        f"host name {name[:80]!r} has a line break or another control character; a name is one line"
                    )
        return value


class PlanRequest(_MeshRequest):
    """`POST /mesh/plan`: lays a mesh on devices."""

    mesh: StrictStr | dict[StrictStr, StrictInt] | tuple[tuple[StrictStr, StrictInt], ...] = Field(
        description='"dp:2,tp:4", {"dp": 2, "tp": 4} or [["dp", 2], ["tp", 4]]; one size may be -1',
        examples=["dp:2,tp:4", {"dp": 2, "tp": -1}],
    )
    target: StrictStr | None = Field(
        default=None,
        description="plan on hardware that need not be here: [granules*]chip:shape, or a slice's name",
        examples=["v5p:4x4x28", "64*h100:8", "2*v5e:16x16"],
    )
    device_order: Literal["planned", "given"] = Field(
        default="planned",
        description="planned: the order with the best score; given: as listed in `devices`, row-major",
    )
    axis_types: StrictStr | dict[StrictStr, StrictStr] | tuple[StrictStr, ...] | None = Field(
        default=None, description='"auto" (default), "explicit" or "manual": one for all, one an axis, or by name'
    )
    allow_unused: StrictBool = Field(
        default=False, description="a mesh smaller than the host is a warning, not an error"
    )
    dcn: StrictStr | dict[StrictStr, StrictInt] | None = Field(
        default=None,
        description='how axes are split over granules (slices, or hosts): "dp:4" or {"dp": 4}; null: by the score',
    )
    importance: dict[StrictStr, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None,
        description="how much traffic each axis has, such as bytes a step: only ratios count; null: by the axes' names",
    )
    model: ModelLike | None = Field(default=None, description=MODEL, examples=["llama3-70b"])
    training: TrainingSpec | None = Field(default=None, description="how the model is trained: prices its step")
    audit: StrictBool = Field(default=False, description="with model and training: also the best mesh of these devices")

    @property
    def targets(self) -> tuple[str, ...]:
        """The target, if there is one, as a search has them."""
        return () if self.target is None else (self.target,)


class SearchRequest(_MeshRequest):
    """`POST /mesh/search`: finds the meshes on which a model's step is fastest, of those that fit."""

    model: ModelLike = Field(description=MODEL, examples=["llama3-70b"])
    training: TrainingSpec = Field(description="how it is trained")
    targets: tuple[StrictStr, ...] = Field(
        default=(),
        max_length=TARGETS_MAX,
        description="hardware that need not be here; of several the best plan on each, the fastest first, by price "
        "where all have one; empty: this host",
        examples=[["v5p:8x8x8"], ["2*v6e:16x16", "v5p:8x8x8"]],
    )
    axes: dict[SearchAxis, Count] = Field(
        default_factory=dict, description='sizes that are given: {"tp": 8}; {"pp": 1} allows no pipeline'
    )
    at_most: dict[SearchAxis, Count] = Field(default_factory=dict, description='greatest sizes: {"tp": 8}')
    remat: tuple[Remat, ...] = Field(default=(), description="to choose from; empty: all, or that of `training`")
    moment_dtypes: tuple[WeightDtype, ...] = Field(
        default=(), description="of both of AdamW's moments, to choose from; empty: those of `training`"
    )
    price_per_device_hour: Price | dict[StrictStr, Price] | None = Field(
        default=None,
        description="of one device, in any currency: plans then include the price of tokens; one for all, or by "
        "target; of v2, v3 and tpu7x a device is half a chip, and its price half of a chip's",
        examples=[4.2, {"v5p:8x8x8": 4.2, "2*v6e:16x16": 2.7}],
    )
    top: Annotated[StrictInt, Field(ge=1, le=32)] = Field(default=3, description="plans returned for one target")
    fallback: StrictBool = Field(
        default=False, description="also the best plan for what is left when a device of the best one's fails"
    )


class PlanAxis(Reply):
    """What one mesh axis runs over. Figures that are not known are null."""

    name: str
    size: int
    link: str | None = Field(
        default=None, description='slowest link between neighbors: "ici", "nvlink", "xgmi", "pcie", "host", "dcn"'
    )
    dcn_size: int = Field(default=1, description="over how many granules (slices, or hosts) a group of it spreads")
    group_shape: tuple[int, ...] | None = Field(default=None, description="extent of a group in the torus, if any")
    max_hops: int | None = None
    links: float | None = Field(
        default=None, description="ICI links that each device has to others of its group; a link over h hops counts 1/h"
    )
    bandwidth_bytes_per_s: float | None = Field(default=None, description="of that link, one way")
    basis: str | None = None


class Plan(Reply):
    """A validated mesh: which device stands where."""

    fingerprint: str = Field(description="equal to meshwright.mesh.mesh_fingerprint of the mesh built from it")
    mesh_shape: MeshShape
    axis_types: dict[str, AxisType]
    platform: Literal["cpu", "gpu", "tpu"]
    devices: tuple[DeviceRef, ...] = Field(default=(), description="row-major in mesh order; empty: left out")
    granules: tuple[Granule, ...] = ()
    axes: tuple[PlanAxis, ...] = ()
    device_order: str | None = Field(
        default=None, description='how it was found: torus, exact, plain, given or uniform (docs, "Device order")'
    )
    target: str | None = Field(default=None, description="the target that was planned on, as it is written")
    memory: PlanMemory | None = Field(default=None, description="estimated; `verification` has the compiler's figures")
    step_time: PlanStepTime | None = Field(default=None, description="estimated")
    schedule: PlanSchedule | None = Field(default=None, description="how the batch goes through the mesh")
    mfu: float | None = Field(default=None, description="model FLOPs, causal, ÷ what the devices could do")
    tokens_per_s: float | None = None
    price_per_million_tokens: float | None = Field(default=None, description="where a device's price was given")
    largest_batch: int | None = Field(default=None, description="sequences that fit in one pass of this mesh")
    measured: tuple[MeasuredFigure, ...] = Field(
        default=(), description="figures of this host that stand in the place of the tables' own"
    )
    audit: AuditAlternative | None = Field(
        default=None, description="the best that the same devices could do; null: not asked, or no mesh of them fits"
    )
    model: ModelFacts | None = Field(default=None, description="the model that was asked for; null in a stored plan")
    verification: Verification | None = Field(default=None, description="what the compiler says; null: not asked")
    environment: dict[str, str] = Field(
        default_factory=dict,
        description="what one process on each host starts with; CPU processes that share a host divide "
        "JAX_NUM_CPU_DEVICES between them",
    )
    code: str = Field(default="", description="Python that makes this mesh in the job")
    exports: dict[ExportName, str] = Field(
        default_factory=dict, description="those that were asked for; of a search, those that can be written"
    )
    warnings: tuple[Notice, ...] = ()


class Rejected(Reply):
    """A mesh that was considered and rejected."""

    mesh_shape: MeshShape
    reason: str
    message: str


class ComparedTarget(Reply):
    """One of several targets: how its best plan compares, or why it has none."""

    target: str = Field(description="of its plan in `plans`; as it was asked for, where it has none")
    reason: str | None = Field(
        default=None,
        description="why it has no plan: unknown_target: there is no such chip, slice or host; nothing_fits; or a "
        "problem's code",
    )
    message: str = Field(default="", description="the same in words; beside a plan: how it compares with the best")
    rejected: tuple[Rejected, ...] = Field(default=(), description="families of meshes that are not its best")


class Fallback(Reply):
    """What is left when a device fails, and the best plan for it."""

    plans: tuple[Plan, ...] = Field(description="at most one; none where nothing fits")
    message: str = Field(
        description="what goes with a device (its host, slice or NVLink domain, or only itself), and what that costs"
    )


class Plans(Reply):
    """`POST /mesh/plan`: one plan. `POST /mesh/search`: plans, best first."""

    plans: tuple[Plan, ...]
    rejected: tuple[Rejected, ...] = ()
    comparison: tuple[ComparedTarget, ...] = Field(default=(), description="of several `targets`: each, the best first")
    fallback: Fallback | None = Field(default=None, description="where it was asked for")
    warnings: tuple[Notice, ...] = Field(default=(), description="about the request, not about one plan")


Price = Annotated[StrictFloat, Field(gt=0, le=1e6)] | Annotated[StrictInt, Field(gt=0, le=10**6)]

SearchAxis = Literal["dp", "fsdp", "tp", "cp", "ep", "pp"]
"""What a search calls the axes that it makes."""


class PlanSchedule(Reply):
    """How the batch goes through a plan's mesh, and what is computed again."""

    micro_batch_size: int = Field(description="sequences that each data-parallel part works on at a time")
    gradient_accumulation_steps: int = Field(
        description="micro-batches one after the other in a step; a pipeline's too"
    )
    pipeline_repeats: int = Field(
        default=1, description="pieces of a stage's layers that run in turn: rounds of a circular pipeline"
    )
    pipeline_runs: int = Field(default=1, description="of a pipeline's loop, which share its micro-batches")
    pipeline_gathers_once: bool = Field(
        default=False, description="weights on fsdp are gathered before the pipeline's loop, and stay whole"
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
    host_bytes: int = Field(default=0, description="of a device in its host's memory: remat offload")


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

    name: str = Field(
        description='"flops_per_s", "memory_bytes_per_s", "bus_bandwidth_bytes_per_s" or "network_bytes_per_s"'
    )
    value: float
    default: float | None = Field(description="what would have been taken; null: nothing is known")
    run_id: str = Field(description="the bench, or the preflight, that measured it")
    age_s: float


class AuditAlternative(Reply):
    """The best that the same devices could do with the same batch."""

    mesh_shape: dict[str, int]
    schedule: PlanSchedule
    step_s: float
    message: str
