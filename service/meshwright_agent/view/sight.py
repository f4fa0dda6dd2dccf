"""What was seen, by whom and when: the input of every builder of the view, and the evidence it puts on facts.

Rule: a fact's evidence is that of its source; `now` is an argument. Knows no platform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from meshwright.wire.base import Basis, Notice
from meshwright.wire.devices import Device, JaxView, Link
from meshwright_agent.facts.model import HostFacts

_JAX_FIELDS = (
    "id",
    "kind",
    "platform",
    "process_index",
    "local_hardware_id",
    "coords",
    "core_on_chip",
    "slice_index",
    "memory_stats",
)


@dataclass(frozen=True)
class JaxSight:
    """What the device worker's `describe` answered.

    Attributes:
        view: its result: "platform", versions, "process_index", and "devices" in `jax.devices()`'s order.
        generation: of the worker that answered.
        basis: "live" while that worker still holds the devices, else "cached".
    """

    view: Mapping[str, Any]
    observed_at: datetime
    generation: int
    basis: Literal["live", "cached"]

    @property
    def platform(self) -> str:
        """What JAX runs on."""
        return str(self.view["platform"])

    @property
    def devices(self) -> tuple[Mapping[str, Any], ...]:
        """The devices of this host, in JAX's order; a job of several hosts would see others as well."""
        own = self.view.get("process_index", 0)
        return tuple(device for device in self.view["devices"] if device.get("process_index", 0) == own)


@dataclass(frozen=True)
class Look:
    """Everything that the view is built from."""

    host: str
    now: datetime
    facts: HostFacts | None = None
    facts_at: datetime | None = None
    jax: JaxSight | None = None

    def stamp(self, basis: Basis, at: datetime | None = None) -> dict[str, Any]:
        """Returns the fields of `Evidence` for something seen at a time; None is now."""
        seen = self.now if at is None else at
        return {"basis": basis, "observed_at": seen, "age_s": max(0.0, (self.now - seen).total_seconds())}

    def passive(self) -> dict[str, Any]:
        """Returns the evidence of what the probe read."""
        return self.stamp("passive", self.facts_at)

    def by_jax(self) -> dict[str, Any]:
        """Returns the evidence of what JAX showed; of nothing yet, what is only declared."""
        return self.stamp(self.jax.basis, self.jax.observed_at) if self.jax else self.stamp("declared")

    def build_jax_view(self, device: Mapping[str, Any] | None) -> JaxView | None:
        """Returns one of JAX's devices with its evidence; None of None."""
        if device is None or self.jax is None:
            return None
        fields = {name: device[name] for name in _JAX_FIELDS if device.get(name) is not None}
        return JaxView(**fields, generation=self.jax.generation, **self.by_jax())


@dataclass(frozen=True)
class Part:
    """What one platform adds to the picture. Links name places in `devices`."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    warnings: tuple[Notice, ...] = ()
