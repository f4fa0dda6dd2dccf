"""What may be said of a plan and of what is trained, in the forms that callers may say it. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from meshwright.wire.cost import SearchSpec
from meshwright.wire.devices import Devices
from meshwright.wire.leases import Lease
from meshwright.wire.mesh import DeviceSelection
from meshwright.wire.model import ModelSpec, TrainingSpec

DeviceNames = Sequence[int | str]
"""Local indices or uuids."""
DevicesLike = Sequence[int | str] | DeviceSelection | Mapping[str, Any]
"""Local indices, uuids or PCI bus ids; or a selection such as {"count": 4, "exclude": [0]}."""
TopologyLike = Devices | Mapping[str, Any] | Sequence[Devices | Mapping[str, Any]]
"""What the agents' `devices()` returned, of one host or of several; or the same as JSON."""
ModelLike = str | ModelSpec | Mapping[str, Any]
"""A preset's name, the content of a config.json, or dimensions by the same names."""
TrainingLike = TrainingSpec | Mapping[str, Any]
"""How it is trained, such as {"global_batch": 64, "sequence_length": 8192}."""
SearchLike = SearchSpec | Mapping[str, Any]
"""What a search for a mesh may choose, such as {"axes": {"tp": 8}, "at_most": {"pp": 1}}."""
Verify = Literal["none", "compile"]
AxisTypesLike = str | Sequence[str] | Mapping[str, str]
MemoryStrategyName = Literal["conservative", "balanced", "aggressive"]
ExportName = Literal["jax", "maxtext"]
EnvironmentStrategy = Literal["conservative", "balanced", "aggressive", "custom"]


class OptionsWithDevices(TypedDict, total=False):
    """`PlanOptions` of a plan whose devices are listed: those besides `include_devices`."""

    devices: DevicesLike | None
    device_order: Literal["planned", "given"]
    axis_types: AxisTypesLike | None
    allow_unused: bool
    memory_strategy: MemoryStrategyName
    target: str | None
    targets: Sequence[str] | None
    topology: TopologyLike | None
    dcn: str | Mapping[str, int] | None
    importance: Mapping[str, float] | None
    model: ModelLike | None
    training: TrainingLike | None
    search: SearchLike | None
    top: int
    audit: bool
    fallback: bool
    exports: Sequence[ExportName]
    verify: Verify
    lease: Lease | str | None


class PlanOptions(OptionsWithDevices, total=False):
    """What may be said of a plan besides its mesh. Each as the request's field of that name; left out: its default.

    Attributes:
        devices: local indices, uuids or PCI bus ids, or a selection such as {"count": 4}; None: all.
        device_order: "planned" looks for the best order, "given" takes the one of `devices`, row-major.
        axis_types: "auto", "explicit" or "manual": one for all, one an axis, or by name; None: auto.
        allow_unused: a mesh smaller than the host is a warning and not an error.
        include_devices: False leaves the list of devices out of the reply.
        memory_strategy: how much memory the job's JAX may take; goes into the plan's environment.
        target: plan on hardware that need not be here, such as "v5p:4x4x28" or "64*h100:8"; None: the agent's host.
        targets: compare these: the best plan on each.
        topology: plan on these hosts: what their agents' `devices()` returned.
        dcn: how axes are split over slices or hosts, such as "dp:4"; None: as the score has it.
        importance: how much traffic each axis has, such as {"tp": 8, "dp": 1}; None: by the axes' names.
        model: what is trained: a preset such as "llama3-70b", the content of a config.json, or dimensions.
        training: how, such as {"global_batch": 64, "sequence_length": 8192}.
        search: without a mesh, what may be chosen, such as {"at_most": {"tp": 8}}.
        top: without a mesh, how many plans are told.
        audit: with mesh and model, tell in `plan.audit` the best mesh of its devices.
        fallback: without a mesh, also plan for what is left when a device fails, in `plans.fallback`.
        exports: write "jax" (mesh and PartitionSpecs) or "maxtext" (flags) into `plan.exports`.
        lease: the job's own: its devices are planned on, and not what others have reserved.
        verify: "compile" asks XLA's compiler whether the step fits, and waits for its word, in `plan.verification`.
            A compile goes on, and its answer is kept, when the waiting ends early.
    """

    include_devices: bool
