"""What a compiled program says of itself: collectives, flops, and on TPU the time.

Rule: one walk over what runs; each reader takes from it what it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.compiling.hlo.axes import MeshIds
from meshwright.compiling.hlo.collectives import CollectiveReader, merge_parts
from meshwright.compiling.hlo.estimate import build_estimate
from meshwright.compiling.hlo.execution import walk_executed
from meshwright.compiling.hlo.flops import count_flops
from meshwright.compiling.hlo.module import parse_module
from meshwright.wire.base import Notice
from meshwright.wire.verification import StepEstimate, VerifiedCollective


@dataclass(frozen=True)
class ProgramFacts:
    """Of one step on one device.

    Attributes:
        collectives: one entry for each axis, kind and size of group; the most bytes first.
        estimate: the compiler's own time; None but on TPU.
        flops: of matmuls.
        notices: what could not be read, and what was assumed instead.
    """

    collectives: tuple[VerifiedCollective, ...]
    estimate: StepEstimate | None
    flops: float
    notices: tuple[Notice, ...]


def read_program(
    text: str,
    *,
    mesh_shape: Mapping[str, int],
    platform: str,
    clock_hz: float | None,
    granules: Sequence[int] | None = None,
    device_ids: Sequence[int] | None = None,
) -> ProgramFacts:
    """Returns what a compiled program tells.

    Args:
        text: `compiled.as_text()`.
        mesh_shape: axis sizes, in the order of the mesh.
        platform: "tpu", "gpu" or "cpu": only TPU programs have estimates.
        clock_hz: of a TensorCore; None gives no estimate.
        granules: the granule of each place of the mesh, row-major: a program for several TPU slices numbers the
            devices of one. None takes the first axes to lie over them, and says so.
        device_ids: JAX's id of the device in each place of the mesh: what TPU programs call devices of other slices.

    Raises:
        ValueError: it is no text of an HLO module, or one whose groups are of no form that is known.
    """
    module = parse_module(text)
    notices: list[Notice] = []
    executed = list(walk_executed(module, notices.append))
    ids = MeshIds(mesh_shape, module.device_count, granules, device_ids)
    if granules is None and ids.device_count < ids.place_count:
        notices.append(_say_guessed(ids))
    reader = CollectiveReader(ids)
    parts = [part for place in executed if (part := reader.read_collective(place))]
    return ProgramFacts(
        collectives=merge_parts(parts),
        estimate=build_estimate(executed, clock_hz) if platform == "tpu" and clock_hz else None,
        flops=sum(count_flops(place) * place.times for place in executed),
        notices=tuple({notice.message: notice for notice in notices}.values()),
    )


def _say_guessed(ids: MeshIds) -> Notice:
    return Notice(
        code="granules_guessed",
        message=f"the program numbers {ids.device_count} devices of a mesh of {ids.place_count}; the mesh's first axes "
        "are taken to lie over the slices",
        hint="give the granule of each place of the mesh",
    )
