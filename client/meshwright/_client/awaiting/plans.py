"""Plans and batch sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from meshwright._calls import calls
from meshwright._calls.options import (
    MemoryStrategyName,
    ModelLike,
    PlanOptions,
    SearchOptions,
    TrainingLike,
    Verify,
)
from meshwright._client.awaiting.driving import AsyncDriver
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.batch_size import BatchSize
from meshwright.wire.mesh import Plan, Plans
from meshwright.wire.runs import Progress


class AsyncPlanCalls(AsyncDriver):
    """Which mesh, and how large a batch."""

    async def plan(
        self,
        mesh: MeshLike | MeshSpec,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PlanOptions],
    ) -> Plan:
        """Returns the plan of a mesh such as "dp:2,tp:-1" on the agent's devices.

        Args:
            mesh: axes, outermost first: a string, a dict, a list of pairs or a MeshSpec; one size may be -1.
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
        return await self._complete(calls.plan(mesh, **options), on_progress, timeout_s)

    async def search(
        self,
        model: ModelLike,
        training: TrainingLike,
        *,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> Plans:
        """Returns the plans of the meshes on which a model's step is fastest, of those that fit, and why others lost.

        Args:
            model: what is trained: a preset such as "llama3-70b", the content of a config.json, or dimensions.
            training: how, such as {"global_batch": 64, "sequence_length": 8192}.
            on_progress: called with each progress of the compiles.
            timeout_s: seconds to wait for them, in the queue too; None: as long as it takes.
            **options: which devices or targets, what may be chosen, and what to tell: see `SearchOptions`.

        Raises:
            InvalidRequestError: an option is none that there is, or has the wrong type; or the model is none.
            PlanInfeasibleError: no mesh cuts model and batch; or nothing is known of such devices (name a target).
        """
        return await self._complete(calls.search(model, training, **options), on_progress, timeout_s)

    async def get_plan(self, fingerprint: str) -> Plan:
        """Returns the stored plan with this fingerprint: how every rank gets the same one.

        Raises:
            NotFoundError: the agent has none.
        """
        return await self._ask(calls.stored_plan(fingerprint))

    async def batch_size(
        self,
        hardware: str | None = None,
        per_device_batch_size: int | None = None,
        *,
        model: ModelLike | None = None,
        training: TrainingLike | None = None,
        mesh: MeshLike | MeshSpec | None = None,
        target: str | None = None,
        plan: Plan | str | None = None,
        memory_strategy: MemoryStrategyName | None = None,
        verify: Verify = "none",
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
    ) -> BatchSize:
        """Returns recommended batch sizes for `hardware` (None: the host's own), and checks a batch size of a device.

        With a `model` also `estimated`: how many sequences its step should have on a mesh, and why. With
        `verify="compile"` `compiled` instead: the largest batch of a model that XLA's compiler says fits.

        Args:
            hardware: "h100", "tpu_v5e", a JAX device kind, …
            per_device_batch_size: is checked against the table.
            model: what is trained, as for `plan`.
            training: how, such as {"sequence_length": 8192}; `global_batch`, where given, is the greatest to look at.
            mesh: the mesh that it is trained on; None: the fastest that fits is searched (not with `verify`).
            target: the hardware, as for `plan`; None: the agent's host.
            plan: one that the agent keeps, or its fingerprint, instead of `mesh` and `target`.
            memory_strategy: how much of a GPU's memory the job's JAX may take; None: 0.92 where a model is trained.
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
            per_device_batch_size,
            model=model,
            training=training,
            mesh=mesh,
            target=target,
            plan=plan,
            memory_strategy=memory_strategy,
            verify=verify,
        )
        return await self._complete(call, on_progress, timeout_s)
