"""Answers of the compiler, kept as they come, one line of JSON each: a run that was ended goes on where it was.

Rule: an answer is used again for the same job with the same compilers alone. It does not know whether the step's code
has changed since, so whoever changed it begins anew. One compile at a time, each in a child of its own.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshwright.compiling.compilers import read_versions
from meshwright.compiling.process import FUNCTIONS, Ended, build_aborted, run_child
from meshwright.errors import ProblemError
from meshwright.planning.compile_job import CompileJob
from meshwright.wire.verification import Verification

LIMIT_S: Final = 1800.0


def ask_child(job: CompileJob) -> Verification:
    """Returns what the compiler says of our step; an abort is an answer, and so is a bug of ours."""
    try:
        found = run_child(FUNCTIONS["verify"], job.model_dump(mode="json"), limit_s=LIMIT_S)
    except ProblemError as error:  # the other cases of a long run are worth having
        return Verification(status="aborted", reason=str(error), target=job.target.name)
    if isinstance(found, Ended):
        return build_aborted(found, job.target.name)
    return Verification.model_validate(found)


@dataclass(frozen=True)
class Answers:
    """The file of kept answers, which need not be there."""

    path: Path

    def find(self, job: CompileJob) -> Verification | None:
        """Returns the answer that is kept, or None."""
        lines = map(json.loads, self.path.read_text().splitlines() if self.path.exists() else ())
        kept = {line["key"]: line["answer"] for line in lines}.get(build_key(job))
        return None if kept is None else Verification.model_validate(kept)

    def ask(self, job: CompileJob) -> Verification:
        """Returns the compiler's answer and keeps it, without the groups and logs, which may be megabytes."""
        found = ask_child(job)
        collectives = tuple(each.model_copy(update={"groups": ""}) for each in found.collectives)
        found = found.model_copy(update={"collectives": collectives, "log": found.log[-5:]})
        answer = found.model_dump(mode="json", exclude_defaults=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"key": build_key(job), "answer": answer}) + "\n")
        return found


def build_key(job: CompileJob) -> str:
    """Returns what an answer is kept under: the job and the versions of what compiles it.

    Fields at their defaults say nothing, so that a field which is added to jobs later forgets no answer.
    """
    whole = [job.model_dump(mode="json", exclude_defaults=True), read_versions(job.target.platform)]
    return f"ours {hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]}"
