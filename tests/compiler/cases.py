"""The slices and meshes on which the two orders are compared.

Rule: every TPU generation that can be asked; meshes whose axes take whole dimensions, share one, compete for the same
ones, and some on which JAX has no order. Axes have names that rank nothing, so the inner axis counts more, as for JAX.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_OPTIONS: Final[dict[str, dict[str, Any]]] = {"v4": {"chip_config_name": "megacore"}}
"""So that v4 has one device a chip, which `mesh_utils` asks for."""


@dataclass(frozen=True)
class Answer:
    """What the compiler does along an axis, or why there is nothing.

    Attributes:
        strategy: its name for it.
        colors: None where the strategy has none.
        phases: None where the strategy has none.
        hops: the longest step between neighbors.
        failure: None where it compiled.
    """

    strategy: str | None = None
    colors: int | None = None
    phases: int | None = None
    hops: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Case:
    """A mesh of all devices of a slice. `topology`: libtpu's name, such as "v5p:4x4x4"."""

    topology: str
    sizes: tuple[int, ...]

    @property
    def options(self) -> dict[str, Any]:
        """What `get_topology_desc` needs besides the name."""
        return _OPTIONS.get(self.topology.partition(":")[0], {})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"a{axis}" for axis in range(len(self.sizes)))

    @property
    def axes(self) -> tuple[int, ...]:
        """Those along which something is reduced."""
        return tuple(axis for axis, size in enumerate(self.sizes) if size > 1)


_MESHES: Final[dict[str, list[tuple[int, ...]]]] = {
    "v4:2x2x4": [(4, 4), (2, 8), (8, 2)], "v4:4x4x4": [(16, 4), (4, 16), (8, 8), (16, 2, 2), (2, 2, 16)],
    "v4:4x4x8": [(8, 16), (4, 32), (32, 4)], "v4:8x8x8": [(64, 4, 2), (2, 64, 4)], "v5e:2x4": [(2, 4)],
    "v5e:4x4": [(4, 4), (2, 8)], "v5e:8x8": [(8, 8), (4, 16), (2, 4, 8)], "v5e:16x16": [(16, 16), (32, 8), (4, 64)],
    "v5p:2x2x1": [(2, 2)], "v5p:2x2x2": [(2, 4), (4, 2)], "v5p:2x2x4": [(4, 4), (2, 8), (8, 2), (2, 2, 4)],
    "v5p:4x4x4": [(16, 4), (4, 16), (8, 8), (4, 4, 4), (16, 2, 2), (2, 16, 2), (2, 8, 4)],
    "v5p:4x4x8": [(16, 8), (8, 16), (32, 4), (2, 64)], "v5p:4x4x12": [(4, 48), (48, 4), (12, 16)],
    "v5p:4x4x28": [(56, 8), (28, 16)], "v5p:4x8x8": [(64, 4), (4, 64), (32, 8), (64, 2, 2)],
    "v5p:8x8x8": [(64, 8), (8, 64)], "v6e:2x4": [(2, 4)], "v6e:4x4": [(4, 4)], "v6e:8x8": [(8, 8), (4, 16)],
    "v6e:16x16": [(16, 16), (2, 128)], "tpu7x:2x2x1": [(4, 2), (2, 4), (2, 2, 2)], "tpu7x:2x2x4": [(4, 8), (8, 4)],
    "tpu7x:2x4x4": [(8, 8)], "tpu7x:4x4x4": [(16, 8), (8, 16), (32, 4), (2, 4, 16), (2, 2, 32)],
    "tpu7x:4x4x8": [(16, 16), (8, 32), (4, 64), (64, 4), (4, 4, 16)],
}  # fmt: skip

CASES: Final = tuple(Case(topology, sizes) for topology, meshes in _MESHES.items() for sizes in meshes)
