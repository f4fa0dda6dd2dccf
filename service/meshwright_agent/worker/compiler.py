"""The compiler: XLA on hardware that need not be here. `python -m meshwright_agent.worker.compiler`, a child.

Rule: one job, then the process goes, so that memory comes back, an abort concerns one job, and what it printed is that
job's. Its memory is bounded and its turn is the last before jax is imported. It opens no device: its environment, made
by the agent, hides them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from meshwright.compiling.limits import end_over_limit, limit_process, read_memory_bytes
from meshwright.wire.base import Reply
from meshwright.wire.compiling import CompileJob
from meshwright_agent.worker.child import CallContext, Handler, serve

KIND: Final = "compiler"

Tell = Callable[[str, int, int], None]
"""Takes what is being done, how much of it is done, and of how much."""
Work = Callable[[CompileJob, Tell], Reply]
"""Does a job, and tells how far it is."""

STARTING: Final = {"done": 0, "total": 1, "message": "starting the compiler"}


def read_hello() -> dict[str, Any]:
    """Returns nothing: what the compiler is depends on the job."""
    return {}


def build_handler(load: Callable[[], Work]) -> Handler:
    """Returns the handler of one operation: {"job": JSON, "memory_limit_bytes"} in, {"answer": JSON} out.

    Args:
        load: imports what does the work; called when the process is bounded.
    """

    def handle(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        limit_bytes = arguments["memory_limit_bytes"]
        limit_process(limit_bytes)
        job = CompileJob.model_validate_json(arguments["job"])
        context.progress(STARTING)
        try:
            return {"answer": load()(job, build_tell(context)).model_dump_json()}
        except MemoryError:  # the kernel's refusal, where the watch could not look in time
            if limit_bytes is None:
                raise
            end_over_limit(read_memory_bytes(), limit_bytes)

    return handle


def build_tell(context: CallContext) -> Tell:
    """Returns what sends progress to the agent, and ends the work once it was cancelled."""

    def tell(message: str, done: int, total: int) -> None:
        context.check()
        context.progress({"done": done, "total": total, "message": message})

    return tell


def load_verify() -> Work:
    """Returns what compiles one step; imports jax."""
    from meshwright.compiling.report import verify_job

    return verify_job


def load_fit() -> Work:
    """Returns what looks for the largest batch that fits; imports jax."""
    from meshwright.compiling.fit import fit_batch

    return fit_batch


if __name__ == "__main__":
    serve(KIND, read_hello, {"verify": build_handler(load_verify), "fit": build_handler(load_fit)})
