"""Compiles: what XLA's compiler says of a task: from the store where it has said so already, else from the child.

Rule: what ends the compiler (an abort, a kill, a limit) is an answer with the status "aborted", and never counts
against the next one; only what we did wrong is an error. What holds for good (it fits, or not) is stored by its key;
the rest may be other tomorrow. Knows no plan and no run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from meshwright.compiling.child import describe_status
from meshwright.compiling.limits import MEMORY_EXIT_STATUS, describe_limit, read_default_limit_bytes
from meshwright.errors import ProblemError, StoreUnavailableError, WorkerCrashedError, WorkerTimeoutError
from meshwright.planning.compile_request import build_unfitted
from meshwright.wire.batch_size import CompiledBatch
from meshwright.wire.verification import Verification, VerificationStatus
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, Document, Store
from meshwright_agent.worker.compile_task import CompileTask
from meshwright_agent.worker.faults import Obituary
from meshwright_agent.worker.supervisor import Supervisor

LASTING: Final[frozenset[VerificationStatus]] = frozenset({"verified", "does_not_fit"})
"""What is stored. A missing extra may be installed, a host may have more memory tomorrow."""
LOG_LINES: Final = 50
"""Of a compiler that aborted, in its answer."""
_BAD_ALLOC: Final = "bad_alloc"
"""What C++ says on stderr when it aborts because the kernel gave it no memory."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """What is known of a task.

    Attributes:
        text: a Verification, or for "fit" a CompiledBatch, JSON.
        generation: which compiler said so; None: it was known.
    """

    text: str
    generation: int | None


class Compiles:
    """Asks the store, then the compiler.

    Args:
        child: the compiler.
        settings: its limits.
        store: keeps answers.

    Attributes:
        counts: compiles that ended, by status.
    """

    def __init__(self, child: Supervisor, store: Store, *, settings: Settings) -> None:
        self._child = child
        self._timeout_s = settings.compile_timeout_s
        self._limit_bytes = settings.compile_memory_bytes or read_default_limit_bytes() or None
        self._store = store
        self.counts: Counter[VerificationStatus] = Counter()

    async def recall(self, task: CompileTask) -> str | None:
        """Returns what is known of a task without a compile, JSON; None where the compiler must be asked.

        A store that does not answer costs a compile, not the answer; so does an answer that cannot be read.
        """
        if task.answer is not None:
            return _answer_without(task, Verification.model_validate_json(task.answer))
        text = await self._find(task)
        if text is None:
            return None
        try:
            return _mark_stored(task, text)
        except ValidationError as error:
            log.error("what the compiler said of %s cannot be read and is asked anew: %s", task.key, error)
            return None

    async def compile(self, task: CompileTask, tell: Callable[[dict[str, Any]], None]) -> Compiled:
        """Returns what the compiler says of a task, or has said of it meanwhile.

        Args:
            task: what to compile.
            tell: gets progress.

        Raises:
            ProblemError: the compiler cannot be started, or a bug of ours.
            CallCancelled: somebody gave the call up.
        """
        known = await self.recall(task)
        if known is not None:
            return Compiled(known, None)
        compiled = await self._ask(task, tell)
        status = _read_verification(task, compiled.text).status
        self.counts[status] += 1
        if status in LASTING:
            await self._keep(task, compiled.text)
        return compiled

    async def _ask(self, task: CompileTask, tell: Callable[[dict[str, Any]], None]) -> Compiled:
        arguments = {"job": task.job, "memory_limit_bytes": self._limit_bytes}
        try:
            answer = await self._child.call(task.op, arguments, deadline_s=self._timeout_s, on_progress=tell)
        except (WorkerCrashedError, WorkerTimeoutError) as error:
            dead = self._child.obituary
            if dead is None or dead.op is None:  # it did not even start: that says nothing of the job
                raise
            return Compiled(_answer_without(task, self._bury(task, dead, error)), self._child.generation)
        finally:
            self._forgive()
        return Compiled(_add_key(task, answer.result["answer"]), answer.generation)

    def _forgive(self) -> None:
        """Lets the next task begin at once, each has a process of its own; not while the kernel holds a dead one."""
        if not self._child.abandoned_pids:
            self._child.reset()

    def _bury(self, task: CompileTask, dead: Obituary, error: ProblemError) -> Verification:
        reason, lines = self._explain(dead, error), dead.log[-LOG_LINES:]
        return Verification(status="aborted", reason=reason, key=task.key, target=task.target, log=lines)

    def _explain(self, dead: Obituary, error: ProblemError) -> str:
        if isinstance(error, WorkerTimeoutError):
            return (
                f"the compiler did not end within {self._timeout_s:g} s and was killed; scan the layers, "
                f"compile for fewer devices, or raise MESHWRIGHT_COMPILE_TIMEOUT_S"
            )
        is_refused = dead.status is not None and dead.status < 0 and any(_BAD_ALLOC in line for line in dead.log)
        if dead.status == MEMORY_EXIT_STATUS or is_refused:
            return f"{describe_limit(self._limit_bytes)}; MESHWRIGHT_COMPILE_MEMORY_BYTES raises the limit"
        return describe_status(dead.status)

    async def _find(self, task: CompileTask) -> str | None:
        try:
            document = await self._store.get(COMPILE, task.key)
        except StoreUnavailableError as error:
            log.warning("whether %s was compiled before is not known: %s", task.key, error.detail)
            return None
        return document.body if document else None

    async def _keep(self, task: CompileTask, text: str) -> None:
        """Stores an answer; a store that does not answer costs the storing, not the answer."""
        try:
            await self._store.write(Document(COMPILE, task.key, text))
        except StoreUnavailableError as error:
            log.warning("what the compiler said of %s is not stored: %s", task.key, error.detail)


def _read_verification(task: CompileTask, text: str) -> Verification:
    if task.op == "fit":
        return CompiledBatch.model_validate_json(text).verification
    return Verification.model_validate_json(text)


def _add_key(task: CompileTask, text: str) -> str:
    return _change(task, text, key=task.key)


def _mark_stored(task: CompileTask, text: str) -> str:
    return _change(task, text, stored=True)


def _change(task: CompileTask, text: str, **fields: Any) -> str:
    """Returns the answer with these fields of its verification."""
    if task.op == "verify":
        return Verification.model_validate_json(text).model_copy(update=fields).model_dump_json()
    batch = CompiledBatch.model_validate_json(text)
    changed = batch.verification.model_copy(update=fields)
    return batch.model_copy(update={"verification": changed}).model_dump_json()


def _answer_without(task: CompileTask, verification: Verification) -> str:
    """Returns the answer where the compiler gave none: for a batch, that none is known to fit."""
    if task.op == "verify":
        return verification.model_dump_json()
    return build_unfitted(task.data_parallel_size, verification).model_dump_json()
