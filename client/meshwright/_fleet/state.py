"""What became of asking a fleet: the state of each host, and those that answered as one topology.

Rule: a host that did not answer is named wherever the fleet is spoken of, never left out silently. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from meshwright.errors import FleetIncompleteError
from meshwright.topology.join import Joined, join_devices
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Device, Devices
from meshwright.wire.health import WORST_FIRST, Health, State

HostState = Literal["ok", "not_ready", "error", "unreachable"]
"""The agent answered · it does not know its devices yet, or shuts down · it answered with an error, or in an unknown
format · no answer in time."""

NAMES_SHOWN: Final = 8
_UNCHECKED: Final[frozenset[State]] = frozenset({"unknown", "initializing"})


@dataclass(frozen=True)
class FleetHost:
    """One host of a fleet, with its state.

    Attributes:
        url: its agent's address.
        state: "ok", "not_ready", "error" or "unreachable".
        name: its own name; "" where it did not answer.
        detail: why it is not ok, and what to do.
        duration_s: duration of the requests in seconds.
        devices: its `GET /devices`; None where it is not ok.
        health: its `GET /health`; None where there was no answer.
    """

    url: str
    state: HostState
    name: str = ""
    detail: str = ""
    duration_s: float = 0.0
    devices: Devices | None = None
    health: Health | None = None

    @cached_property
    def device_states(self) -> tuple[State, ...]:
        """The state of each of its devices, in their order; "unknown" where its health was not answered."""
        known = {component.name: component.state for component in self.health.components} if self.health else {}
        return tuple(_find_state(device, known) for device in (self.devices.devices if self.devices else ()))

    @property
    def worst(self) -> State | None:
        """The worst state of its devices; None where it has no devices, or no state is known."""
        return next((state for state in WORST_FIRST if state in self.device_states), None)

    def __str__(self) -> str:
        why = f": {self.detail}" if self.detail else ""
        return f"{self.name or self.url} ({self.state}{why})"


def _find_state(device: Device, known: Mapping[str, State]) -> State:
    """Returns the state of a device's component: the component of its most specific listed name."""
    names = (f"device:{name}" for name in (device.uuid, device.pci_bus_id, device.local_index) if name is not None)
    return next((known[name] for name in names if name in known), "unknown")


@dataclass(frozen=True)
class FleetState:
    """A fleet at one moment.

    Attributes:
        hosts: every requested host, in the order of their addresses.
    """

    hosts: tuple[FleetHost, ...]

    @property
    def ok(self) -> tuple[FleetHost, ...]:
        """The hosts that answered."""
        return tuple(host for host in self.hosts if host.state == "ok")

    @property
    def failed(self) -> tuple[FleetHost, ...]:
        """The hosts that did not, each with the reason."""
        return tuple(host for host in self.hosts if host.state != "ok")

    @property
    def topology(self) -> Topology:
        """The hosts that answered, as one topology.

        Raises:
            FleetIncompleteError: no host answered.
            PlanInfeasibleError: the hosts do not form a topology.
        """
        return self.joined.topology

    @cached_property
    def joined(self) -> Joined:
        """The topology with its warnings, and the indices of each host's devices in it.

        Raises:
            FleetIncompleteError, PlanInfeasibleError: as `topology`.
        """
        if not self.ok:
            raise _refuse(self)
        replies = [host.devices for host in self.ok if host.devices is not None]
        return join_devices(replies, labels=[host.url.rpartition("//")[2] for host in self.ok])

    @property
    def health(self) -> Mapping[int, State]:
        """The state of each device, by its place in `topology.devices`; "unknown" where it was not reported.

        Raises:
            FleetIncompleteError, PlanInfeasibleError: there is no topology.
        """
        told = zip(self.ok, self.joined.places, strict=True)
        seen = [
            (place, state) for host, places in told for place, state in zip(places, host.device_states, strict=True)
        ]
        return dict(seen)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The warnings of a plan on this fleet: missing hosts, and the warnings of joining the others.

        Raises:
            FleetIncompleteError, PlanInfeasibleError: there is no topology.
        """
        return (*_describe_missing(self), *_describe_unchecked(self), *self.joined.notices)

    @property
    def missing(self) -> str:
        """One sentence on the hosts that did not answer; "" where all did."""
        if not self.failed:
            return ""
        return f"{len(self.failed)} of {len(self.hosts)} hosts of the fleet did not answer: {_list(self.failed)}"

    def require_all(self) -> None:
        """Returns where every host answered.

        Raises:
            FleetIncompleteError: naming those that did not.
        """
        if self.failed:
            raise _refuse(self)


def _refuse(state: FleetState) -> FleetIncompleteError:
    hint = "start their agents, give a longer timeout_s, or leave these addresses out"
    return FleetIncompleteError(
        state.missing,
        hint=hint,
        hosts={host.url: host.detail for host in state.failed},
    )


def _describe_missing(state: FleetState) -> list[Notice]:
    if not state.failed:
        return []
    message = f"{len(state.failed)} of {len(state.hosts)} hosts are not in the plan: {_list(state.failed)}"
    return [Notice(code="hosts_missing", message=message, hint="require_all=True refuses to plan without them")]


def _describe_unchecked(state: FleetState) -> list[Notice]:
    unchecked = [host for host in state.ok if _UNCHECKED & set(host.device_states)]
    if not unchecked:
        return []
    names = _shorten([host.name if host.health else f"{host.name} (no answer to GET /health)" for host in unchecked])
    message = f"{names}: of some devices nobody knows that they are well; they are planned with all the same"
    return [Notice(code="health_unknown", message=message, hint="ask again, or look at their agents")]


def _list(hosts: tuple[FleetHost, ...]) -> str:
    return _shorten([str(host) for host in hosts], separator="; ")


def _shorten(names: list[str], separator: str = ", ") -> str:
    more = f"{separator}and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return separator.join(names[:NAMES_SHOWN]) + more
