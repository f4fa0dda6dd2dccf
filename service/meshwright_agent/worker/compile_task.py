"""CompileTask: one thing to ask the compiler, complete.

Rule: JSON in, JSON out, so that the agent passes on what the planner made without reading it. Knows no model and no
mesh; `tasks` makes them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Operation = Literal["verify", "fit"]
"""What the compiler's child does: one step, or the largest batch."""


@dataclass(frozen=True)
class CompileTask:
    """One thing to ask the compiler.

    Attributes:
        op: what the compiler's child does.
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
