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
            timeout_s: seconds to wait for the compile, including the queue; None: no limit.
            **options: devices, model, training, and the contents of the answer: see `PlanOptions`.

        Raises:
            InvalidMeshError: the mesh is not valid.
            InvalidRequestError: an option does not exist, or has the wrong type.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: the mesh does not fit these devices. The hint has shapes that do.
            DevicesUnusedError: the mesh would leave devices unused.
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
        """Returns plans of the meshes with the fastest step of a model, of those that fit, and why others were
        rejected.

        Args:
            model: the trained model: a preset such as "llama3-70b", the content of a config.json, or dimensions.
            training: its training, such as {"global_batch_size": 64, "seq_len": 8192}.
            on_progress: called with each progress of the compiles.
            timeout_s: seconds to wait for them, including the queue; None: no limit.
            **options: devices or targets, the choices, and the contents of the answer: see `SearchOptions`.

        Raises:
            InvalidRequestError: an option does not exist, or has the wrong type; or the model is not valid.
            PlanInfeasibleError: no mesh divides model and batch; or such devices are unknown (name a target).
        """
        return await self._complete(calls.search(model, training, **options), on_progress, timeout_s)

    async def get_plan(self, fingerprint: str) -> Plan:
        """Returns the stored plan with this fingerprint, so that every rank can get the same plan.

        Raises:
            NotFoundError: the agent does not have this plan.
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
        compile: bool = False,
        on_progress: Callable[[Progress], object] | None = None,
        timeout_s: float | None = None,
    ) -> BatchSize:
        """Returns recommended batch sizes for `hardware` (None: the host's own), and checks a batch size of a device.

        With a `model`, the answer has `estimated`: the recommended number of sequences of its step on a mesh, and why.
        With `compile=True`, it has `compiled` instead: the largest batch of a model that fits by XLA's compiler.

        Args:
            hardware: "h100", "tpu_v5e", a JAX device kind, …
            per_device_batch_size: is checked against the table.
            model: the trained model, as for `plan`.
            training: its training, such as {"seq_len": 8192}; `global_batch_size`, where given, is the limit.
            mesh: the mesh of the training; None: the fastest that fits is searched (not with `compile`).
            target: the hardware, as for `plan`; None: the agent's host.
            plan: a plan that the agent stores, or its fingerprint, instead of `mesh` and `target`.
            memory_strategy: the part of a GPU's memory that the job's JAX may take; None: 0.92 where a model is
                trained.
            compile: asks XLA's compiler, and waits for the result.
            on_progress: called with each progress of the compiles.
            timeout_s: seconds to wait for them, including the queue; None: no limit.

        Raises:
            UnknownHardwareError: the name is in no table. The hint has similar names.
            InvalidRequestError: training, mesh or plan without a model, or the model is not valid.
            NotFoundError: the agent does not have this plan.
            DoesNotDivideError: the mesh cannot shard the model.
            PlanInfeasibleError: no figures are known for such devices (name a target), or no mesh fits.
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
            compile=compile,
        )
        return await self._complete(call, on_progress, timeout_s)
