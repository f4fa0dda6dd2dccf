"""What the child is asked about a step of the user's: where it is found, what it is called with, on which hardware.

Rule: JSON, with pickles where the user's own objects stand; complete. Knows no jax.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from meshwright.wire.base import Wire
from meshwright.wire.compiling import CompileMesh, CompileTarget


class Step(Wire):
    """Where a function is found."""

    kind: Literal["module", "file", "pickle"]
    where: str = Field(description="module: its name; file: its path; pickle: base64")
    name: str = Field(default="", description="of the function in it, dotted")

    def __str__(self) -> str:
        return "the step" if self.kind == "pickle" else f"{self.where}:{self.name}"


class StepJob(Wire):
    """One step on one mesh."""

    target: CompileTarget
    mesh: CompileMesh
    capacity_bytes: int | None = None
    step: Step
    call: str | None = Field(default=None, description="base64 pickle of a Call; null: the step is a builder")
    main: Step | None = Field(default=None, description="what `__main__` is in the parent, where pickles speak of it")
    paths: tuple[str, ...] = Field(default=(), description="sys.path")
    config: dict[str, Any] = Field(default_factory=dict, description="of jax, as the parent has it")
