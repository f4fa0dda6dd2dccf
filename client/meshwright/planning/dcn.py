"""The split of mesh axes over granules as a request says it: read, checked, filled in.

Rule: an axis that is not named is not split; the parts multiply to the number of granules. Knows no devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from meshwright.errors import InvalidMeshError, InvalidRequestError, PlanInfeasibleError
from meshwright.planning.granules import split_axes
from meshwright.spec import MeshSpec


def read_dcn(asked: str | Mapping[str, int], spec: MeshSpec, granules: Sequence[int]) -> tuple[int, ...]:
    """Returns over how many granules each axis is split.

    Args:
        asked: "dp:2,fsdp:2" or {"dp": 2, "fsdp": 2}; one part may be -1.
        spec: the mesh, without -1.
        granules: how many devices each granule (or NVLink domain of several) has that the mesh is to stand on.

    Raises:
        InvalidRequestError: it is malformed, or names no axis of the mesh.
        PlanInfeasibleError: granules differ in size, a part does not divide its axis, or the parts do not multiply to
            the number of granules.
    """
    parts = _parse(asked, spec)
    count = len(granules)
    known = math.prod(part for part in parts.values() if part != -1)
    if -1 in parts.values() and count % known == 0:
        parts = {name: count // known if part == -1 else part for name, part in parts.items()}
    split = tuple(parts.get(name, 1) for name in spec.names)
    if len(set(granules)) > 1:
        sizes = ", ".join(map(str, sorted(set(granules))))
        raise _refuse(
            f"dcn {_write(parts)} splits mesh {spec} over {count} granules (slices, or hosts); they have {sizes} "
            f"devices; a split needs as many in each",
            "leave dcn out, or choose devices of equal granules in `devices`",
        )
    if math.prod(split) != count or any(size % part for size, part in zip(spec.sizes, split, strict=True)):
        works = split_axes(spec.sizes, count)
        hint = "leave it out"
        if works and count > 1:
            hint = f"use dcn {_write(dict(zip(spec.names, works, strict=True)))}, or {hint}"
        raise _refuse(
            f"dcn {_write(parts)} splits mesh {spec}; there are {count} granules (slices, or hosts); each part divides "
            f"its axis, and together they multiply to {count}",
            hint,
        )
    return split


def _parse(asked: str | Mapping[str, int], spec: MeshSpec) -> dict[str, int]:
    try:
        parts = dict(MeshSpec.parse(asked).axes)
    except InvalidMeshError as error:
        hint = 'write it as a mesh of granules: "dp:2" or {"dp": 2}'
        raise InvalidRequestError.of("dcn", f"dcn: {error.detail}", hint, error.detail) from None
    unknown = [name for name in parts if name not in spec.names]
    if unknown:
        message = f"axis {unknown[0]!r} is not in mesh {spec}; dcn splits axes of the mesh"
        raise InvalidRequestError.of("dcn", f"dcn: {message}", f"use one of {', '.join(spec.names)}", message)
    return parts


def _write(parts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{part}" for name, part in parts.items() if part != 1) or "of 1"


def _refuse(detail: str, hint: str) -> PlanInfeasibleError:
    return PlanInfeasibleError.of("dcn", detail, hint, detail.rpartition("; ")[2])
