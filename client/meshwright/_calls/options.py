"""The options of a plan and of its training, in all forms that callers may use. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from meshwright.wire.cost import SearchAxis
from meshwright.wire.devices import Devices
from meshwright.wire.leases import Lease
from meshwright.wire.mesh import DeviceSelection
from meshwright.wire.model import ModelSpec, Remat, TrainingSpec, WeightDtype

DeviceNames = Sequence[int | str]
"""Local indices or uuids."""
DevicesLike = Sequence[int | str] | DeviceSelection | Mapping[str, Any]
"""Local indices, uuids or PCI bus ids; or a selection such as {"count": 4, "exclude": [0]}."""
TopologyLike = Devices | Mapping[str, Any] | Sequence[Devices | Mapping[str, Any]]
"""What the agents' `devices()` returned, of one host or of several; or the same as JSON."""
ModelLike = str | ModelSpec | Mapping[str, Any]
"""A preset's name, the content of a config.json, or dimensions by the same names."""
TrainingLike = TrainingSpec | Mapping[str, Any]
"""The training, such as {"global_batch_size": 64, "seq_len": 8192}."""
AxisTypesLike = str | Sequence[str] | Mapping[str, str]
MemoryStrategyName = Literal["conservative", "balanced", "aggressive"]
ExportName = Literal["jax", "maxtext"]
EnvironmentStrategy = Literal["conservative", "balanced", "aggressive", "custom"]


class _MeshOptions(TypedDict, total=False):
    """Optional settings of a plan and of a search. Each is the request's field of the same name.

    Attributes:
        devices: local indices, uuids or PCI bus ids, or a selection such as {"count": 4}; None: all.
        lease: the job's own lease: plans on its devices, and not on devices of other leases.
        topology: plan on these hosts: the results of their agents' `devices()`.
        include_devices: False leaves the list of devices out: `plan.devices` is empty.
        memory_strategy: the part of a GPU's memory that the job's JAX may take, as `plan.environment` has it; None:
            0.92 where a model is trained, else 0.75.
        exports: write "jax" (mesh and PartitionSpecs) or "maxtext" (flags) into `plan.exports`; needs a model.
        compile: asks XLA's compiler whether the step fits, and waits for the result in `plan.verification`. If
            the waiting ends early, the compile continues and its result is stored.
    """

    devices: DevicesLike | None
    lease: Lease | str | None
    topology: TopologyLike | None
    include_devices: bool
    memory_strategy: MemoryStrategyName | None
    exports: Sequence[ExportName]
    compile: bool


class PlanOptions(_MeshOptions, total=False):
    """Optional settings of a plan only, besides its mesh.

    Attributes:
        target: plan on hardware that need not be present, such as "v5p:4x4x28" or "64*h100:8"; None: the agent's host.
        device_order: "planned" searches the best order, "given" takes the one of `devices`, row-major.
        axis_types: "auto", "explicit" or "manual": one for all, one an axis, or by name; None: auto.
        allow_unused: a mesh smaller than the host causes a warning instead of an error.
        dcn: how axes are split over slices or hosts, such as "dp:4"; None: by the score.
        importance: the traffic of each axis, such as {"tp": 8, "dp": 1}; None: by the axes' names.
        model: the trained model: a preset such as "llama3-70b", the content of a config.json, or dimensions.
        training: its training, such as {"global_batch_size": 64, "seq_len": 8192}: prices the step.
        audit: with model and training, report the best mesh of its devices in `plan.audit`.
    """

    target: str | None
    device_order: Literal["planned", "given"]
    axis_types: AxisTypesLike | None
    allow_unused: bool
    dcn: str | Mapping[str, int] | None
    importance: Mapping[str, float] | None
    model: ModelLike | None
    training: TrainingLike | None
    audit: bool


class SearchOptions(_MeshOptions, total=False):
    """Optional settings of a search only, besides its model and training.

    Attributes:
        targets: hardware that need not be present, such as ["64*h100:8"]; for several, the best plan on each.
        axes: fixed sizes, such as {"tp": 8}.
        at_most: greatest sizes, such as {"pp": 1}.
        remat: "none", "minimal", "full": to choose from; empty: all, or that of the training.
        moment_dtypes: of AdamW's moments, to choose from; empty: those of the training.
        price_per_device_hour: of one device, in any currency; one for all, or by target: plans report the cost of
            tokens.
        top: the number of plans of one target.
        fallback: also plan for the remaining devices when a device fails, in `plans.fallback`.
    """

    targets: Sequence[str]
    axes: Mapping[SearchAxis, int]
    at_most: Mapping[SearchAxis, int]
    remat: Sequence[Remat]
    moment_dtypes: Sequence[WeightDtype]
    price_per_device_hour: float | Mapping[str, float] | None
    top: int
    fallback: bool
