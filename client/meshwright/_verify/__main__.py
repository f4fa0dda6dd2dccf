"""`python -m meshwright._verify`: traces and compiles one step of the user's. Asked as `compiling.child` says."""

from __future__ import annotations

import sys
from typing import Any

from meshwright._verify.job import StepJob
from meshwright.compiling.serving import Tell, serve
from meshwright.wire.verification import Verification


def _verify(job: dict[str, Any], tell: Tell) -> Verification:
    asked = StepJob.model_validate(job)
    sys.path[:] = asked.paths or sys.path
    from meshwright._verify.trace import verify_step

    return verify_step(asked, tell)


if __name__ == "__main__":
    serve({"verify": _verify})
