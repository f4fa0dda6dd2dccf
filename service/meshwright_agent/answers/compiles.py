"""Compiles: plans and batch sizes with the report of XLA's compiler, from the store or from a run.

Each compile is a child process (`meshwright.compiling.process`), started by a thread of the agent. An abort, a kill or
a limit is an answer with the status "aborted". A run fails only when the process cannot be started or by a bug in this
code. Permanent answers are stored by their key. This module does not depend on routes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from pydantic import ValidationError

from meshwright.compiling.process import FUNCTIONS, Ended, read_default_limit_bytes, run_child
from meshwright.errors import UnavailableError
from meshwright.planning.compile_job import build_unfitted
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, CompiledBatch
from meshwright.wire.runs import Progress, Run
from meshwright.wire.verification import Verification, VerificationStatus
from meshwright_agent.answers.plans import PlanAnswer, PlanMaker
from meshwright_agent.bodies import shorten_large
from meshwright_agent.children.compile_tasks import CompileTask
from meshwright_agent.runs import Done, Emit, RunQueue
from meshwright_agent.settings import Settings
from meshwright_agent.store import COMPILE, Document, Store, StoreUnavailableError

LASTING: Final[frozenset[VerificationStatus]] = frozenset({"verified", "does_not_fit"})
"""Statuses that are stored. The others may change: an extra may be installed, or memory added."""
LOG_LINES: Final = 50
"""Log lines of an aborted compiler in its answer."""
_SETTINGS: Final = {"time": "MESHWRIGHT_COMPILE_TIMEOUT_S", "memory": "MESHWRIGHT_COMPILE_MEMORY_BYTES"}
"""Limit that a compile reached → the setting that raises it."""

log = logging.getLogger(__name__)


class Compiles:
    """Reads answers from the store, else from the compiler, one compile at a time."""

    def __init__(
        self, store: Store, plans: PlanMaker, runs: RunQueue, *, settings: Settings, environ: Mapping[str, str]
    ) -> None:
        self._store = store
        self._plans = plans
        self._runs = runs
        self._run_child = partial(
            run_child,
            limit_s=settings.compile_timeout_s,
            memory_limit_bytes=settings.compile_memory_bytes or read_default_limit_bytes(),
            environ=environ,
        )
        # A separate thread: a child dies with the thread that started it, and asyncio waits for its default threads.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="compile")

    def close(self) -> None:
        """Starts no more compiles. The run of a current compile was cancelled before."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    # ---- plans and batch sizes -----------------------------------------------------------------------------------

    async def settle_plans(self, answer: PlanAnswer) -> PlanAnswer | Run:
        """Returns the plans with the compiler's reports, or the run that will produce the reports.

        Args:
            answer: plans with their tasks, not stored yet; an answer without tasks is returned unchanged.

        Raises:
            QueueFullError: the queue of compiles is full.
            StoreUnavailableError: the store does not answer; UnavailableError: the agent is shutting down.
        """
        if not answer.tasks:
            return answer
        request, tasks = json.loads(answer.request), [CompileTask(**task) for task in answer.tasks]
        known = [text for task in tasks if (text := await self.find_known(task)) is not None]
        kept = await self._plans.keep(answer)  # its fingerprint names the mesh already while it is compiled
        if len(known) == len(tasks):
            return await asyncio.to_thread(kept.verify, known)

        async def execute(_run: Run, emit: Emit) -> Done:
            compiled = [await self.compile(task, emit) for task in tasks]
            plans: Done = await asyncio.to_thread(lambda: json.loads(kept.verify(compiled).cut_for_run().text))
            return plans

        return await self._runs.submit("plan", request, execute)

    async def answer_batch(self, request: BatchSizeRequest) -> BatchSize | Run:
        """Returns advice with the largest batch that fits by the compiler's report, or the run that will find it.

        Raises:
            ProblemError: as for `PlanMaker.build_fit_task` and `settle_plans`.
        """
        task = await self._plans.build_fit_task(request)
        advice = self._plans.advise(request.model_copy(update={"hardware": request.hardware or task.chip}))
        body = shorten_large(request.model_dump(mode="json"))
        if (known := await self.find_known(task)) is not None:
            return _add_batch(advice, known)

        async def execute(_run: Run, emit: Emit) -> Done:
            batch = _add_batch(advice, await self.compile(task, emit))
            return batch.model_dump(mode="json")

        return await self._runs.submit("batch_size", body, execute)

    # ---- one compile ---------------------------------------------------------------------------------------------

    async def find_known(self, task: CompileTask) -> str | None:
        """Returns the known answer to a task, JSON; None if the task must be compiled.

        If the store does not answer, or the stored answer cannot be read, the task is compiled again.
        """
        if task.answer is not None:
            return _answer_without(task, Verification.model_validate_json(task.answer))
        try:
            document = await self._store.get(COMPILE, task.key)
            return _change(task, document.body, stored=True) if document else None
        except StoreUnavailableError as error:
            log.warning("whether %s was compiled before is not known: %s", task.key, error.detail)
        except ValidationError as error:
            log.error("what the compiler said of %s cannot be read and is asked anew: %s", task.key, error)
        return None

    async def compile(self, task: CompileTask, emit: Emit) -> str:
        """Returns the compiler's report on a task, or a report that was stored in the meantime, JSON.

        Raises:
            UnavailableError: the compiler cannot be started.
            ProblemError: the compile failed by a bug in this code.
        """
        known = await self.find_known(task)
        if known is not None:
            return known
        found = await self._ask(task, emit)
        if isinstance(found, Ended):
            return _answer_without(task, _build_aborted(task, found))
        text = _change(task, json.dumps(found))
        if _read_verification(task, text).status in LASTING:
            try:
                await self._store.write(Document(COMPILE, task.key, text))
            except StoreUnavailableError as error:  # the answer is returned, but not stored
                log.warning("what the compiler said of %s is not stored: %s", task.key, error.detail)
        return text

    async def _ask(self, task: CompileTask, emit: Emit) -> dict[str, Any] | Ended:
        """Returns the child's answer. A cancelled task ends after the child has ended."""
        loop, stop = asyncio.get_running_loop(), threading.Event()

        def tell(progress: Progress) -> None:
            loop.call_soon_threadsafe(emit, progress.model_dump())

        ask: Callable[[str, Any], dict[str, Any] | Ended] = partial(
            self._run_child, on_progress=tell, is_stopped=stop.is_set
        )
        asking = loop.run_in_executor(self._executor, ask, FUNCTIONS[task.op], json.loads(task.job))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({asking})
            raise
        except OSError as error:
            detail = f"the compiler could not be started: {error}"
            raise UnavailableError(
                detail, hint="the host lacks processes, memory or files; see its log", code="worker_failed"
            ) from error


def _build_aborted(task: CompileTask, ended: Ended) -> Verification:
    reason = ended.reason if ended.limit is None else f"{ended.reason}; {_SETTINGS[ended.limit]} raises the limit"
    return Verification(status="aborted", reason=reason, target=task.target, log=ended.log[-LOG_LINES:])


def _add_batch(advice: BatchSize, text: str) -> BatchSize:
    return advice.model_copy(update={"compiled": CompiledBatch.model_validate_json(text)})


def _read_verification(task: CompileTask, text: str) -> Verification:
    if task.op == "fit":
        return CompiledBatch.model_validate_json(text).verification
    return Verification.model_validate_json(text)


def _change(task: CompileTask, text: str, **fields: Any) -> str:
    """Returns the answer with these fields replaced in its verification."""
    if task.op == "verify":
        return Verification.model_validate_json(text).model_copy(update=fields).model_dump_json()
    batch = CompiledBatch.model_validate_json(text)
    changed = batch.verification.model_copy(update=fields)
    return batch.model_copy(update={"verification": changed}).model_dump_json()


def _answer_without(task: CompileTask, verification: Verification) -> str:
    """Returns the answer to use without a compiler report: for a batch, no size is known to fit."""
    if task.op == "verify":
        return verification.model_dump_json()
    return build_unfitted(verification).model_dump_json()
