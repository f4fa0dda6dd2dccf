"""`python -m meshwright.compiling`: one compile, asked and answered as `child` says. Imports jax only when it compiles.

Knows no command line of its own.
"""

from __future__ import annotations

from typing import Any

from meshwright.compiling.serving import Tell, serve
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.compiling import CompileJob
from meshwright.wire.verification import Verification


def _verify(job: dict[str, Any], tell: Tell) -> Verification:
    from meshwright.compiling.report import verify_job

    return verify_job(CompileJob.model_validate(job), tell)


def _fit(job: dict[str, Any], tell: Tell) -> CompiledBatch:
    from meshwright.compiling.fit import fit_batch

    return fit_batch(CompileJob.model_validate(job), tell)


if __name__ == "__main__":
    serve({"verify": _verify, "fit": _fit})
