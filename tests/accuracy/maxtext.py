"""Steps of `tests.compiler.steps` as runs, and MaxText's published runs on TPUs, which its table has.

Rule: nothing is said twice: mesh, remat and seconds are those of `tests.compiler.steps.published`. Devices are as JAX
counts them; a TPU7x is two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from meshwright.planning.cost.layout import Layout
from meshwright.spec import MeshSpec
from meshwright.targets import TargetSpec
from meshwright.topology.chips import find_chip
from tests.accuracy.run import REMATS, LeftOut, Recompute, Run
from tests.accuracy.sets import MAXTEXT, RunSet
from tests.compiler.steps.cases import Case
from tests.compiler.steps.published import Published, read_published

HOST_CHIPS: Final = 4
"""Source: `meshwright.topology.systems.HOST_SHAPE`."""


def read_maxtext() -> Iterator[Run | LeftOut]:
    """Yields the rows in the order of their file."""
    for published in read_published():
        if published.case is None:
            yield LeftOut(MAXTEXT.name, published.name, published.left_out, published.source)
        else:
            yield _build_run(published, published.case)


def _build_run(published: Published, case: Case) -> Run:
    return build_case_run(
        MAXTEXT,
        case,
        published.name,
        f"{MAXTEXT.name}/{case.target.rpartition('*')[2].partition(':')[0]}/{published.fields['model']}",
        published_recompute=published.published_remat,
        step_s=published.measured_s,
        step_basis=published.derived or "published",
        note=published.note,
        source=published.source,
    )


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
