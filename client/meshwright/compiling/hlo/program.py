"""What a compiled program says of itself: collectives, and on TPU the time.

Rule: one walk over what runs; each reader takes from it what it knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.compiling.hlo.axes import MeshIds
from meshwright.compiling.hlo.collectives import CollectiveReader, merge_parts
from meshwright.compiling.hlo.estimate import build_estimate
from meshwright.compiling.hlo.execution import walk_executed
from meshwright.compiling.hlo.module import parse_module
from meshwright.wire.base import Notice
from meshwright.wire.verification import StepEstimate, VerifiedCollective


@dataclass(frozen=True)
class ProgramFacts:
    """Of one step on one device.

    Attributes:
        collectives: one entry for each axis, kind and size of group; the most bytes first.
        estimate: the compiler's own time; None but on TPU.
        notices: what could not be read, and what was assumed instead.
    """

    collectives: tuple[VerifiedCollective, ...]
    estimate: StepEstimate | None
    notices: tuple[Notice, ...]


def read_program(
    text: str,
    *,
    mesh_shape: Mapping[str, int],
    platform: str,
    clock_hz: float | None,
    granules: Sequence[int] = (),
    device_ids: Sequence[int] = (),
) -> ProgramFacts:
    """Returns what a compiled program tells.

    Args:
        text: `compiled.as_text()`.
        mesh_shape: axis sizes, in the order of the mesh.
        platform: "tpu", "gpu" or "cpu": only TPU programs have estimates.
        clock_hz: of a TensorCore; None gives no estimate.
        granules: the granule of each place of the mesh, row-major: a program for several TPU slices numbers the
            devices of one. Empty: there is one.
        device_ids: JAX's id of the device in each place of the mesh: what TPU programs call devices of other slices;
            empty where there are none.

    Raises:
        ValueError: it is no text of an HLO module, or one whose groups are of no form that is known.
    """
    module = parse_module(text)
    notices: list[Notice] = []
    executed = list(walk_executed(module, notices.append))
    ids = MeshIds(mesh_shape, module.device_count, granules, device_ids)
    reader = CollectiveReader(ids)
    parts = [part for place in executed if (part := reader.read_collective(place))]
    return ProgramFacts(
        collectives=merge_parts(parts),
        estimate=build_estimate(executed, clock_hz) if platform == "tpu" and clock_hz else None,
        notices=tuple({notice.message: notice for notice in notices}.values()),
    )
