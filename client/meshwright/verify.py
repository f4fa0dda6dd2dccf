"""What XLA's compiler says of *your* step on a plan's hardware, which need not be here.

Rule: the step is traced and compiled in a child process, so that neither the compiler's crash nor its memory is yours,
and no device is touched. Imports jax, so it is imported by name only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from meshwright._verify.ask import PlanLike, Step, ask_child, find_main, pack, pack_step, read_plan, speaks_of_main
from meshwright._verify.trace import Call, describe_leaves
from meshwright.wire.runs import Progress
from meshwright.wire.verification import Verification

__all__ = ["verify"]

_CONFIG: Final = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_threefry_partitionable",
)
"""What of JAX's configuration changes a traced step."""


def verify(
    plan: PlanLike,
    step: Callable[..., Any] | str,
    *abstract_args: Any,
    in_specs: Any = None,
    donate_argnums: int | Sequence[int] | None = None,
    target: str | None = None,
    limit_s: float | None = None,
    memory_limit_bytes: int | None = None,
    on_progress: Callable[[Progress], object] | None = None,
) -> Verification:
    """Returns the compiler's report of a step on a plan's hardware: fits or not, its memory, its collectives.

    The step is jitted unless it is already. The plan's mesh is in force while it is traced (`jax.set_mesh`); a step
    with a parameter `mesh` that the call leaves open gets it. Without `abstract_args`, `step` is a builder: called with
    the mesh, it returns `(step, arguments)`. Whatever the compiler does, and a step that does not trace, is a report:
    its `status` is "verified" only where it compiled and fits.

    Args:
        plan: what the agent, `load_plan` or `meshwright plan -o` gives: a plan, an answer, JSON, or a file of it.
        step: a function; or its name, "module:function" or "file.py:function". A closure or lambda needs cloudpickle.
        *abstract_args: what it is called with: `jax.ShapeDtypeStruct`s, arrays (only their shapes count), scalars.
        in_specs: how the arguments are split: a prefix of their tree, of PartitionSpecs, as `jax.shard_map` takes it;
            None: by the NamedSharding that a leaf has. A leaf of which nothing says it is whole on every device.
        donate_argnums: as `jax.jit` takes them, for a step that is not jitted.
        target: the hardware, where the plan was made on a host: "8*h100:8"; None: the plan's own.
        limit_s: seconds after which the compile is given up; None: 600.
        memory_limit_bytes: of this host's memory, for the compile; None: three quarters of it.
        on_progress: called with each progress.

    Raises:
        SettingsError: the plan is none, or does not say its hardware.
        PlanInfeasibleError: an answer that holds no plan.
        InvalidRequestError: there is no such step.
        TypeError: the step or its arguments cannot be sent to another process; `donate_argnums` for a jitted step.
        ValueError: a leaf is split over an axis that the plan does not have.
        InternalError: a bug of ours.
    """
    read = read_plan(plan)
    named = pack_step(step)
    if donate_argnums is not None and hasattr(step, "lower"):
        raise TypeError(
            "step is jitted already, and donate_argnums is for one that is not; give it to jax.jit, or leave it out"
        )
    call = None
    if abstract_args:
        args = describe_leaves(abstract_args, in_specs, read.mesh_shape)
        call = pack(Call(args, donate_argnums), "an argument")
    return ask_child(
        read,
        named,
        target=target,
        limit_s=limit_s,
        memory_limit_bytes=memory_limit_bytes,
        on_progress=on_progress,
        call=call,
        main=_find_main(named, call),
        paths=tuple(sys.path),
        config={name: getattr(jax.config, name) for name in _CONFIG if hasattr(jax.config, name)},
    )


def _find_main(step: Step, call: str | None) -> Step | None:
    """Returns the script, where the step stands in it or a pickle names something of it."""
    main = find_main()
    if main is None:
        return None
    if step.kind == "pickle" or step.where != main.where:
        return main if speaks_of_main(step.where if step.kind == "pickle" else None, call) else None
    return step
