"""Evidence: plans and batch sizes that the compiler vouches for. What is known is answered at once, else by a run.

Rule: the answer of a run is that of a request made after it. Knows no route.
"""

from __future__ import annotations

import json
from typing import Any

from meshwright.wire.batch_size import BatchSize, BatchSizeRequest, CompiledBatch
from meshwright.wire.runs import Run
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.plans import PlanMaker
from meshwright_agent.answers.replies import PlanAnswer
from meshwright_agent.bodies import shorten_large
from meshwright_agent.runs import Emit, RunQueue
from meshwright_agent.worker.compile_task import CompileTask


class Evidence:
    """Joins plans, compiles and the queue of runs.

    Args:
        compiles: what the compiler says.
        plans: makes and keeps plans.
        runs: the queue of compiles.
    """

    def __init__(self, compiles: Compiles, plans: PlanMaker, runs: RunQueue) -> None:
        self._compiles = compiles
        self._plans = plans
        self._runs = runs

    # ---- plans -----------------------------------------------------------------------------------------

    async def settle_plans(self, answer: PlanAnswer) -> PlanAnswer | Run:
        """Returns the plans with what the compiler says of them, or the run that will say so.

        Args:
            answer: plans with their tasks, not kept yet; without tasks it is returned as it is.

        Raises:
            QueueFullError: as many compiles wait as may.
            StoreUnavailableError: the store does not answer; DrainingError: the agent is shutting down.
        """
        if not answer.tasks:
            return answer
        request, tasks = json.loads(answer.request), [CompileTask(**task) for task in answer.tasks]
        known = [text for task in tasks if (text := await self._compiles.recall(task)) is not None]
        kept = await self._plans.keep(answer)  # its fingerprint is good for a mesh while it is compiled
        if len(known) == len(tasks):
            return kept.verify(known)

        async def execute(_run: Run, emit: Emit) -> tuple[dict[str, Any], int | None]:
            compiled = [await self._compiles.compile(task, emit) for task in tasks]
            finished = kept.verify([each.text for each in compiled]).cut_for_run()
            return json.loads(finished.write()), compiled[-1].generation

        return await self._runs.submit("plan", request, execute)

    # ---- batch sizes -----------------------------------------------------------------------------------

    async def settle_batch(self, advice: BatchSize, request: BatchSizeRequest, task: CompileTask) -> BatchSize | Run:
        """Returns the advice with the largest batch that the compiler says fits, or the run that will say so.

        Args:
            advice: what the table says.
            request: what was asked.
            task: what is to be compiled.

        Raises:
            ProblemError: as for `settle_plans`.
        """
        said = shorten_large(request.model_dump(mode="json"))
        if (known := await self._compiles.recall(task)) is not None:
            return _add_batch(advice, known)

        async def execute(_run: Run, emit: Emit) -> tuple[dict[str, Any], int | None]:
            compiled = await self._compiles.compile(task, emit)
            return _add_batch(advice, compiled.text).model_dump(mode="json"), compiled.generation

        return await self._runs.submit("batch_size", said, execute)

    # ---- runs ------------------------------------------------------------------------------------------


def _add_batch(advice: BatchSize, text: str) -> BatchSize:
    return advice.model_copy(update={"compiled": CompiledBatch.model_validate_json(text)})
