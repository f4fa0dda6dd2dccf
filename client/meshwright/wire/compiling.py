"""The job of a compiler child: the target by the compiler's names, the mesh, and the step.

Rule: the job is complete, and the child needs no further data. Independent of jax.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from meshwright.spec import AxisType
from meshwright.wire.base import Wire
from meshwright.wire.devices import Platform
from meshwright.wire.model import ModelSpec, TrainingSpec


class CompileTarget(Wire):
    """Hardware that need not be here."""

    platform: Platform
    chip: str = Field(description='an alias of the chip table: "v5p", "h100"; "cpu"')
    shape: tuple[int, ...] = Field(description="TPU: chips of a slice in x, y, z; else (devices of a granule,)")
    granules: int = Field(default=1, description="slices, or hosts")
    wrap: tuple[bool, ...] | None = None
    twisted: bool = Field(default=False, description="a twisted torus")
    name: str = Field(description="as people write it: 2*v5e:16x16")


class CompileMesh(Wire):
    """A mesh on the target's devices."""

    shape: dict[str, int]
    axis_types: dict[str, AxisType]
    places: tuple[tuple[int, int], ...] = Field(
        description="(granule, position in the granule) of each device, row-major; positions count x fastest, then y, "
        "z, and the cores of a chip faster than all"
    )


class CompileJob(Wire):
    """One step on one mesh."""

    target: CompileTarget
    mesh: CompileMesh
    model: ModelSpec
    training: TrainingSpec
    capacity_bytes: int | None = Field(default=None, description="of a device; null: what the compiler says it has")
    search: Literal["none", "largest_batch"] = "none"
