"""The report of XLA's compiler on a plan: whether it fits, its memory, the collectives of each axis, the time.

Rule: each figure is the compiler's own, or derived from its program as described in the field; an unreported figure is
null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.wire.base import Notice, Reply

VerificationStatus = Literal["verified", "does_not_fit", "not_compiled", "aborted"]
"""It compiled and fits · it needs more memory than available · nothing was compiled, `reason` has the cause · the
compiler crashed or was stopped, `reason` and `log` have the details."""

CollectiveOp = Literal[
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast", "send"
]

UNKNOWN_AXIS = "?"
"""The `axis` of a collective whose groups match no axes of the mesh."""


class VerifiedCollective(Reply):
    """All collectives of one kind on one axis, in one step of one device; loops multiplied out."""

    axis: str = Field(description='"tp"; "dp,fsdp" where it runs over several; "?" where its groups are of no axis')
    op: CollectiveOp
    count: float = Field(description="times a step; a fraction where only some devices take part")
    bytes: float = Field(
        description="a step, as nccl-tests counts sizes: all-reduce, all-to-all: a device's part; all-gather, "
        "reduce-scatter: the whole of a group; collective-permute: what a device sends"
    )
    group_size: int = Field(description="devices that take part together")
    asynchronous_count: float = Field(default=0, description="of them, those the compiler lets run beside compute")


class MemoryParts(Reply):
    """`memory_analysis()` per device. Not a sum: temporaries and arguments share memory over the program's time."""

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None
    alias_bytes: int | None = Field(default=None, description="outputs that stand where donated arguments stood")


class Verification(Reply):
    """The report of one compile."""

    status: VerificationStatus
    reason: str | None = Field(default=None, description="why not verified: in a sentence, with a value that works")
    target: str | None = None
    peak_memory_bytes: int | None = Field(default=None, description="most that a device holds at one time")
    capacity_bytes: int | None = Field(default=None, description="that a job may use on a device")
    needed_bytes: int | None = Field(
        default=None,
        description="does_not_fit: what it needs; on GPUs 1.04 of the peak, as a card's own compile may need more",
    )
    memory: MemoryParts | None = None
    collectives: tuple[VerifiedCollective, ...] = ()
    estimated_step_s: float | None = Field(
        default=None, description="TPU: by the compiler's cycles, without collectives and waiting (docs, Verification)"
    )
    parameter_count: int | None = Field(default=None, description="of the step that was compiled")
    compile_s: float | None = None
    versions: dict[str, str] = Field(default_factory=dict, description="jax, jaxlib, libtpu or the CUDA plugin")
    stored: bool = Field(default=False, description="true: an earlier compile's answer")
    log: tuple[str, ...] = Field(default=(), description="the compiler's last lines, where it failed")
    warnings: tuple[Notice, ...] = ()
