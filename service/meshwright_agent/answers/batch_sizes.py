"""BatchSizes: how large a batch, from the table, by the cost model, or by the compiler.

Rule: this host stands in only where the request names no hardware. Knows no route.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.planning.batch_request import check_batch_fields, name_batch_hardware
from meshwright.planning.batch_size import answer_batch_size
from meshwright.topology.model import Topology
from meshwright.wire.base import Basis
from meshwright.wire.batch_size import BatchSize, BatchSizeRequest
from meshwright.wire.runs import Run
from meshwright_agent.answers.compiles import Compiles
from meshwright_agent.answers.plans import PlanMaker


class BatchSizes:
    """Answers every question about batch sizes.

    Args:
        plans: asks the planner for a model's batch.
        compiles: asks the compiler.
        topology: this host's devices; raises UnavailableError while they are not known.
    """

    def __init__(self, plans: PlanMaker, compiles: Compiles, topology: Callable[[], Topology]) -> None:
        self._plans = plans
        self._compiles = compiles
        self._topology = topology

    async def answer(self, request: BatchSizeRequest) -> BatchSize:
        """Returns the table, the roofline and the verdict; with a model also its batch, reckoned.

        Raises:
            RequestError: a name or target is none, or a field is about a model and none is given.
            UnavailableError: this host's devices are not known, or the planner failed; QueueFullError: it is busy.
        """
        if request.model is None:
            return self._advise(request)
        reckoned = await self._plans.reckon(request)
        advice = self._advise(request.model_copy(update={"target": reckoned.target}))
        return advice.model_copy(update={"reckoned": reckoned})

    async def answer_by_compile(self, request: BatchSizeRequest) -> BatchSize | Run:
        """Returns the same with the largest batch that the compiler says fits, or the run that will say so.

        Raises:
            ProblemError: see `PlanMaker.build_fit_task` and `Compiles.settle_batch`.
        """
        task = await self._plans.build_fit_task(request)
        advice = self._advise(request.model_copy(update={"hardware": request.hardware or task.chip}))
        return await self._compiles.settle_batch(advice, request, task)

    def _advise(self, request: BatchSizeRequest) -> BatchSize:
        check_batch_fields(request)
        request = name_batch_hardware(request)
        named: tuple[None, None, Basis] = (None, None, "declared")
        platform, kind, basis = self._see_hardware() if request.hardware is None else named
        return answer_batch_size(request, platform=platform, kind=kind, basis=basis)

    def _see_hardware(self) -> tuple[str, str, Basis]:
        first = self._topology().devices[0]
        return first.platform, first.kind, first.jax.basis if first.jax else first.basis
