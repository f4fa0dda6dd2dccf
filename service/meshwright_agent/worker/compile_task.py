"""CompileTask: one thing to ask the compiler child, complete; and which distributions it needs.

Rule: JSON in, JSON out, so that the agent passes on what the planner made without reading it. Knows no model and no
mesh; `tasks` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from meshwright.wire.devices import Platform

Operation = Literal["verify", "fit"]
"""The compiler child's handlers: one step, or the largest batch."""

COMPILERS: Final[Mapping[Platform, tuple[tuple[str, ...], str]]] = {
    "cpu": ((), ""),
    "tpu": (("libtpu",), "pip install 'meshwright[compile-tpu]'"),
    "gpu": (("jax-cuda12-pjrt", "jax-cuda13-pjrt"), "pip install 'meshwright[compile-cuda]'"),
}
"""By platform: distributions of which one must be installed beside jaxlib, and the line that adds it."""


@dataclass(frozen=True)
class CompileTask:
    """One thing to ask the compiler.

    Attributes:
        op: which handler of the compiler child.
        target: the hardware, as people write it.
        chip: an alias of the chip table where a target or a stored plan was named; None: this host's.
        key: what the answer is kept under.
        job: a CompileJob, JSON.
        answer: a not_compiled Verification, JSON, where the answer is known without a compile; else None.
        data_parallel_size: parts that the batch is cut into.
    """

    op: Operation
    target: str | None
    chip: str | None = None
    key: str = ""
    job: str = ""
    answer: str | None = None
    data_parallel_size: int = 1

    def as_json(self) -> dict[str, Any]:
        """Returns the task as a JSON object."""
        return asdict(self)


def explain_missing(versions: Mapping[str, str], platform: Platform) -> str | None:
    """Returns why nothing compiles for a platform with these distributions, and the line that mends it; else None."""
    if "jaxlib" not in versions:
        return "jaxlib is not installed, which compiles for every target; pip install 'meshwright[cpu]'"
    needed, line = COMPILERS[platform]
    if not needed or any(name in versions for name in needed):
        return None
    return f"no compiler for {platform.upper()} targets is installed ({' or '.join(needed)} is missing); {line}"
