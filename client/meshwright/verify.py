"""Asks XLA's compiler about *your* step on a plan's hardware, which need not be present.

Rule: the step is traced and compiled in a child process, so that the compiler's crash and memory do not affect your
process, and no device is used. Imports jax, so it is imported by name only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from meshwright._reference import PlanLike, read_plan
from meshwright._verify.ask import JITTED, Step, ask_child, find_main, pack, pack_step, speaks_of_main
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

    The step is jitted unless it already is. The plan's mesh is in force while it is traced (`jax.set_mesh`); it is
    passed to a parameter `mesh` of the step that the call leaves open. Without `abstract_args`, `step` is a builder:
    called with the mesh, it returns `(step, arguments)`. Every outcome of the compiler, and a step that cannot be
    traced, gives a report. Its `status` is "verified" only where the step compiled and fits.

    Args:
        plan: the result of the agent, `load_plan` or `meshwright plan --save`: a plan, an answer, JSON, or a file.
        step: a function; or its name, "module:function" or "file.py:function". A closure or lambda needs cloudpickle.
        *abstract_args: its arguments: `jax.ShapeDtypeStruct`s, arrays (only their shapes count), scalars.
        in_specs: the sharding of the arguments: a prefix of their tree, of PartitionSpecs, as in `jax.shard_map`; None:
            the NamedSharding of each leaf. A leaf without a sharding is whole on every device.
        donate_argnums: as in `jax.jit`, for a step that is not jitted.
        target: the hardware, where the plan was made on a host: "8*h100:8"; None: the plan's own.
        limit_s: seconds after which the compile is stopped; None: 600.
        memory_limit_bytes: of this host's memory, for the compile; None: three quarters of it.
        on_progress: called with each progress.

    Raises:
        SettingsError: the plan is not valid, or does not have its hardware.
        PlanInfeasibleError: the answer does not contain a plan.
        InvalidRequestError: the step does not exist.
        TypeError: the step or its arguments cannot be sent to another process; or `donate_argnums` is given for a
            jitted step; or it or `in_specs` for none of `abstract_args`.
        ValueError: a leaf is split over an axis that the plan does not have.
        ProblemError: a bug of Meshwright.
    """
    read = read_plan(plan)
    named = pack_step(step)
    if donate_argnums is not None and not isinstance(step, str) and hasattr(step, "lower"):
        raise TypeError(JITTED)
    if not abstract_args and (in_specs is not None or donate_argnums is not None):
        raise TypeError("in_specs and donate_argnums are of abstract_args, and none are given; give these too")
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
    """Returns the script, where it defines the step or a pickle refers to it."""
    main = find_main()
    if main is None:
        return None
    if step.kind == "pickle" or step.where != main.where:
        return main if speaks_of_main(step.where if step.kind == "pickle" else None, call) else None
    return step
