"""Compiles the other step, in the child that `meshwright.compiling.process` starts.

Rule: the same job, the same mesh, the same compiler and the same reading as the product's; only the step is another.
"""

from __future__ import annotations

from typing import Any

from meshwright.compiling.worker import Tell
from meshwright.planning.compile_job import CompileJob
from meshwright.wire.verification import Verification


def compile_other(job: dict[str, Any], tell: Tell) -> Verification:
    """Returns what the compiler says of the other step."""
    asked = CompileJob.model_validate(job)
    from meshwright.compiling.report import open_site, report_lowered
    from tests.compiler.steps.other import build_step
    from tests.compiler.steps.weights import count_weights

    site = open_site(asked.target, asked.mesh, asked.capacity_bytes)
    step = build_step(asked.model, asked.training, site.mesh)
    found = report_lowered(step.function.lower(*step.arguments), site, tell)
    return found.model_copy(update={"target": asked.target.name, "parameter_count": count_weights(asked.model)})
