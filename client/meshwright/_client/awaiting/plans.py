"""Plans and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack, cast, overload

from meshwright._calls import calls
from meshwright._calls.options import (
    MemoryStrategyName,
    ModelLike,
    OptionsWithDevices,
    PlanOptions,
    TrainingLike,
    Verify,
)
from meshwright._client.awaiting.driving import AsyncDriver
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.batch_size import BatchSize
from meshwright.wire.mesh import Plan, Plans, PlansWithDevices, PlanWithDevices
from meshwright.wire.runs import Progress


class AsyncPlanCalls(AsyncDriver):
    """Which mesh, and how large a batch."""

    @overload
    async def plan(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        include_devices: Literal[True] = True,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[OptionsWithDevices],
    ) -> PlanWithDevices: ...

    @overload
    async def plan(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plan: ...

    async def plan(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plan:
        """Returns the best plan for a mesh such as "dp:2,tp:-1" on the agent's devices.

        Args:
            mesh: axes, outermost first: a string, a dict, a list of pairs or a MeshSpec; one size may be -1. None: the
                fastest for `model` and `training` that fits.
            on_progress: called with each progress of the compile.
            timeout_s: seconds to wait for the compile, in the queue too; None: as long as it takes.
            **options: which devices, model and training, and what to tell: see `PlanOptions`.

        Raises:
            InvalidMeshError: the mesh is none.
            InvalidRequestError: an option is none that there is, or has the wrong type.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: it cannot be laid on these devices; the hint has shapes that can.
            DevicesUnusedError: it would leave devices unused.
        """
        if mesh is None:
            options.setdefault("top", 1)
        return await self._complete(calls.best_plan(calls.plans(mesh, **options)), on_progress, timeout_s)

    @overload
    async def plans(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        include_devices: Literal[True] = True,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[OptionsWithDevices],
    ) -> PlansWithDevices: ...

    @overload
    async def plans(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plans: ...

    async def plans(
        self,
        mesh: MeshLike | MeshSpec | None = None,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plans:
        """Returns all plans, best first, and what was rejected; arguments and errors as for `plan`."""
        return await self._complete(calls.plans(mesh, **options), on_progress, timeout_s)

    async def get_plan(self, fingerprint: str) -> PlanWithDevices:
        """Returns the stored plan with this fingerprint: how every rank gets the same one.

        Raises:
            NotFoundError: the agent has none.
        """
        plan = await self._ask(calls.best_plan(calls.stored_plan(fingerprint)))
        return cast(PlanWithDevices, plan)  # the agent keeps plans whole

    async def batch_size(
        self,
        hardware: str | None = None,
        batch: int | None = None,
        *,
        model: ModelLike | None = None,
        training: TrainingLike | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        target: str | None = None,
        plan: Plan | str | None = None,
        memory_strategy: MemoryStrategyName = "balanced",
        verify: Verify = "none",
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
    ) -> BatchSize:
        """Returns recommended batch sizes for `hardware` (None: the host's own), and the verdict on `batch`.

        With a `model` also `reckoned`: how many sequences its step should have on a mesh, and which limit says so. With
        `verify="compile"` `compiled` instead: the largest batch of a model that XLA's compiler says fits.

        Args:
            hardware: "h100", "tpu_v5e", a JAX device kind, …
            batch: a batch size per device to judge.
            model: what is trained, as for `plan`.
            training: how, such as {"sequence_length": 8192}; `global_batch`, where given, is the greatest to look at.
            mesh: the mesh that it is trained on; None: the fastest that fits is searched (not with `verify`).
            target: the hardware, as for `plan`; None: the agent's host.
            plan: one that the agent keeps, or its fingerprint, instead of `mesh` and `target`.
            memory_strategy: how much memory the job's JAX may take on a GPU.
            verify: "compile" asks XLA's compiler, and waits for its word.
            on_progress: called with each progress of the compiles.
            timeout_s: seconds to wait for them, in the queue too; None: as long as it takes.

        Raises:
            UnknownHardwareError: no table knows the name; near ones stand in the hint.
            InvalidRequestError: training, mesh or plan without a model, or a model that is none.
            NotFoundError: the agent has no such plan.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: nothing is known of what such devices can do (name a target), or no mesh fits.
            RunFailedError: the run failed; or the class of its problem.
        """
        call = calls.batch_size(
            hardware,
            batch,
            model=model,
            training=training,
            mesh=mesh,
            target=target,
            plan=plan,
            memory_strategy=memory_strategy,
            verify=verify,
        )
        return await self._complete(call, on_progress, timeout_s)
