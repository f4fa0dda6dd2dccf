"""A step of `tests.compiler.steps` as a run: its target, its mesh as a layout, its training.

Rule: nothing is said twice; what was measured comes from the caller. Devices are as JAX counts them; a TPU7x is two.
"""

from __future__ import annotations

from typing import Any, Final, cast

from meshwright.planning.cost.layout import Layout
from meshwright.spec import MeshSpec
from meshwright.targets import TargetSpec
from meshwright.topology.chips import find_chip
from tests.accuracy.run import REMATS, Recompute, Run
from tests.accuracy.sets import RunSet
from tests.compiler.steps.cases import Case

HOST_CHIPS: Final = 4
"""Source: `meshwright.topology.systems.HOST_SHAPE`."""


def build_case_run(run_set: RunSet, case: Case, id_: str, fold: str, **measured: Any) -> Run:
    """Returns the run of a step.

    Args:
        run_set: whose it is.
        case: the step, on TPUs.
        id_, fold: of the run.
        measured: fields of `Run` that the step does not say.

    Raises:
        ValueError: the batch cannot be cut as the mesh cuts it.
    """
    target, training = TargetSpec.parse(case.target), case.training
    chip = find_chip(target.chip)
    assert chip is not None, target.chip
    layout = build_layout(case)
    devices = int(layout.devices)
    fields: dict[str, Any] = {
        "published_recompute": training.remat,
        "step_s": None,
        "step_basis": "",
        "peak_bytes": None,
        "memory_kind": "",
        "oom": None,
        "note": "",
        "source": run_set.source,
        **measured,
    }
    return Run(
        set_name=run_set.name,
        id=id_,
        model=case.model.model_copy(update={"name": None}),
        target=case.target,
        chip=target.chip,
        devices=devices,
        hosts=devices // (HOST_CHIPS * chip.jax_devices_per_chip),
        granules=target.granules,
        layout=layout,
        sequence_length=training.sequence_length,
        compute_dtype="bfloat16",
        attention="flash" if training.attention == "flash" else "scores",
        first_moment_dtype=training.first_moment_dtype or training.weight_dtype,
        practice=run_set.practice,
        zero_stage=3,
        sequence_parallel=layout.tp != 1,
        recompute=cast(Recompute, training.remat),
        edge_layers=0,
        fold=fold,
        group=fold,
        **fields,
    )


def build_layout(case: Case) -> Layout:
    """Returns how a step is laid out: all of a part's sequences at a time, unless gradients are accumulated.

    Raises:
        ValueError: the batch is no multiple of what the mesh cuts it into.
    """
    axes, passes = dict(MeshSpec.parse(case.mesh).axes), case.training.gradient_accumulation
    remat = REMATS[cast(Recompute, case.training.remat)]
    parts = int(Layout(**axes).data_parts) * passes
    micro_batch, rest = divmod(case.training.global_batch, parts)
    if rest:
        raise ValueError(f"{case.name}: its batch is no multiple of {parts}")
    return Layout(**axes, micro_batch=micro_batch, passes=passes, remat=remat)
