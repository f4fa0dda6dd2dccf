"""What a search prices on: one device's figures, and what its axes run over, of a topology.

Rule: all devices alike, in equal granules; else nothing is priced, and the refusal says why. Figures are the chip
table's, or those that were measured on this host where somebody hands them in (`replaced`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from meshwright.errors import PlanInfeasibleError
from meshwright.planning.cost.gemm import Dtype
from meshwright.planning.cost.layout import Layout
from meshwright.planning.cost.spans import NETWORK_BYTES_PER_S, Spans, lay_on_hosts, lay_on_torus, read_spans
from meshwright.planning.cost.step_time import Machine
from meshwright.planning.search.measured import Measurements
from meshwright.planning.search.replaced import Replaced
from meshwright.topology.chips import Chip, find_chip
from meshwright.topology.model import Topology
from meshwright.wire.mesh import Plan


@dataclass(frozen=True)
class Hardware:
    """What a search needs to know of a topology.

    Attributes:
        chip: of every device.
        devices: how many.
        domain: devices that a fast network joins: of a host, an NVLink domain or a slice.
        shape, wrap: of a slice, in chips; empty for GPUs.
        memory_bytes: of the device that has least, where its host says it; None: the chip table's counts.
        measured: what benches found of these devices; empty: the tables' figures count.
    """

    chip: Chip
    devices: int
    domain: int
    shape: tuple[int, ...]
    wrap: tuple[bool, ...]
    memory_bytes: int | None = None
    measured: Measurements = field(default_factory=Measurements)

    @property
    def platform(self) -> Literal["gpu", "tpu"]:
        """Of the chip."""
        return self.chip.platform

    @classmethod
    def of(cls, topology: Topology, devices: int, measured: Measurements | None = None) -> Hardware:
        """Returns what so many devices of a topology are.

        Args:
            topology: has the devices.
            devices: how many.
            measured: what benches found of them, where the topology is this host's.

        Raises:
            PlanInfeasibleError: its devices are of several kinds or of none that the chip table has, or its granules
                differ.
        """
        kinds = {device.kind for device in topology.devices}
        chip = find_chip(next(iter(kinds))) if len(kinds) == 1 else None
        if chip is None:
            raise _refuse(
                f"the devices are {', '.join(sorted(kinds)) or 'none'}; a model is priced on one kind of chip"
            )
        sizes = {len(group) for group in topology.group(range(len(topology.devices)))}
        shapes = {(granule.shape, granule.wrap) for granule in topology.granules}
        if len(sizes) > 1 or (chip.platform == "tpu" and (len(shapes) > 1 or None in next(iter(shapes)))):
            raise _refuse("hosts or slices differ in size or shape; a model is priced on equal ones")
        memory = [least for _, least in topology.equipment.values() if least is not None]
        shape, wrap = next(iter(shapes)) if chip.platform == "tpu" else ((), ())
        return cls(
            chip=chip,
            devices=devices,
            domain=min(sizes.pop(), devices),
            shape=tuple(shape or ()),
            wrap=tuple(wrap or ()),
            memory_bytes=min(memory, default=None),
            measured=measured or Measurements(),
        )

    @cached_property
    def replaced(self) -> Replaced:
        """What was measured, in the place of what the tables say."""
        return Replaced(self.chip, self.measured, self._lay_published)

    def build_machine(self, dtype: Dtype) -> Machine:
        """Returns the figures of one device in a compute dtype."""
        return self.replaced.build_machine(dtype)

    def read(self, plan: Plan, names: Mapping[str, str]) -> Spans:
        """Returns what a plan's axes run over in its own order; `names`: what it calls each axis that it has."""
        return self.replaced.replace_wires(read_spans(plan, names, domain=self.domain))

    def lay(self, layout: Layout) -> Spans:
        """Returns what the axes of each candidate run over."""
        return self.replaced.replace_wires(self._lay_published(layout, self.domain))

    def _lay_published(self, layout: Layout, domain: int) -> Spans:
        """Returns the same at published rates; `domain`: devices that a fast network joins."""
        parts = self.chip.jax_devices_per_chip
        across = (self.chip.scaleout_bytes_per_s or NETWORK_BYTES_PER_S) / parts
        if self.platform == "tpu":
            link = self.chip.link_bytes_per_s or 0.0
            return lay_on_torus(layout, self.chip.family, self.shape, self.wrap, link / parts, across, parts)
        inside = self.chip.scaleup_bytes_per_s or self.chip.pcie_bytes_per_s or across
        return lay_on_hosts(layout, self.chip.family, domain, inside, across)


def _refuse(reason: str) -> PlanInfeasibleError:
    hint = 'name the hardware, as in "target": "v5p:4x4x4", or give a mesh, which is planned without prices'
    return PlanInfeasibleError.of("target", f"no mesh can be chosen for a model here: {reason}", hint, reason)
