"""Answers of the compiler, kept as they come, one line of JSON each: a run that was ended goes on where it was.

Rule: an answer is used again for the same job with the same compilers alone. It does not know whether the step's code
has changed since, so whoever changed it begins anew. One compile at a time, each in a child of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from meshwright.compiling.compilers import read_versions
from meshwright.compiling.process import FUNCTIONS, Ended, build_aborted, run_child
from meshwright.errors import ProblemError
from meshwright.planning.compile_job import CompileJob
from meshwright.wire.verification import Verification

StepName = Literal["ours", "other"]
Ask = Callable[[StepName, CompileJob], Verification]

LIMIT_S: Final = 1800.0

_ROOT: Final = Path(__file__).resolve().parents[3]
_FUNCTIONS: Final = {"ours": FUNCTIONS["verify"], "other": "tests.compiler.steps.child:compile_other"}


def ask_child(step: StepName, job: CompileJob) -> Verification:
    """Returns what the compiler says of one of the two steps; an abort is an answer, and so is a bug of ours."""
    environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
    try:
        found = run_child(_FUNCTIONS[step], job.model_dump(mode="json"), limit_s=LIMIT_S, environ=environ)
    except ProblemError as error:  # the other cases of a long run are worth having
        return Verification(status="aborted", reason=str(error), target=job.target.name)
    if isinstance(found, Ended):
        return build_aborted(found, job.target.name)
    return Verification.model_validate(found)


@dataclass(frozen=True)
class Answers:
    """The file, and whom to ask for what is not in it.

    Attributes:
        path: of the file, which need not be there.
        ask: is asked for one answer.
    """

    path: Path
    ask: Ask = ask_child

    @classmethod
    def of(cls, options: argparse.Namespace) -> Answers:
        """Returns the answers that a command line means, after it has dropped what shall be asked again."""
        answers = cls(options.kept)
        if options.anew:
            options.kept.unlink(missing_ok=True)
        if options.aborted:
            answers.forget("aborted")
        return answers

    def find(self, step: StepName, job: CompileJob) -> Verification:
        """Returns the answer that is kept; else asks, and keeps it."""
        key = build_key(step, job)
        if (kept := dict(self._read()).get(key)) is not None:
            return kept
        found = _shorten(self.ask(step, job))
        with self.path.open("a") as file:
            file.write(json.dumps({"key": key, "answer": found.model_dump(mode="json", exclude_defaults=True)}) + "\n")
        return found

    def has(self, step: StepName, job: CompileJob) -> bool:
        """True where the answer is kept."""
        return build_key(step, job) in dict(self._read())

    def forget(self, status: str) -> None:
        """Drops the answers of one status, so that they are asked again."""
        if not self.path.exists():
            return
        lines = self.path.read_text().splitlines()
        kept = [line for line in lines if json.loads(line)["answer"]["status"] != status]
        self.path.write_text("".join(f"{line}\n" for line in kept))

    def _read(self) -> Iterator[tuple[str, Verification]]:
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                told = json.loads(line)
                yield told["key"], Verification.model_validate(told["answer"])


def add_options(parser: argparse.ArgumentParser, kept: Path) -> None:
    """Adds the options that `Answers.of` reads."""
    parser.add_argument("--kept", type=Path, default=kept, metavar="FILE", help="answers, one a line")
    parser.add_argument("--anew", action="store_true", help="ask again for what is kept")
    parser.add_argument("--aborted", action="store_true", help="ask again for what had aborted")


def build_key(step: StepName, job: CompileJob) -> str:
    """Returns what an answer is kept under: the step's name, the job and the versions of what compiles it.

    Fields at their defaults say nothing, so that a field which is added to jobs later forgets no answer.
    """
    whole = [job.model_dump(mode="json", exclude_defaults=True), read_versions(job.target.platform)]
    return f"{step} {hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]}"


def _shorten(answer: Verification) -> Verification:
    """Returns the answer without the groups and logs, of which those for 8,192 devices are megabytes."""
    collectives = tuple(each.model_copy(update={"groups": ""}) for each in answer.collectives)
    return answer.model_copy(update={"collectives": collectives, "log": answer.log[-5:]})
