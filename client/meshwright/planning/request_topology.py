"""Which hardware a plan request means: a target, a topology, or this host.

Rule: the request says which, and nothing is guessed; who owns a host hands it in as `here`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meshwright.errors import InvalidRequestError
from meshwright.topology.join import join_devices
from meshwright.topology.model import Topology
from meshwright.topology.targets import build_target, read_target
from meshwright.wire.base import Notice
from meshwright.wire.devices import Devices
from meshwright.wire.mesh import PlanRequest

Here = Callable[[], Topology] | Topology | None
"""This host, or how to look at it; None where there is none, as in a command that asks no agent."""

_WAYS: Final = 'give a target such as "v5p:4x4x4", or a topology: replies of agents\' GET /devices'


@dataclass(frozen=True)
class Found:
    """What a request is planned on.

    Attributes:
        topology: the devices.
        target: the target as it is written canonically; None: no target was named.
        notices: what is to be known of the topology, such as chips that a slice lacks.
        is_here: it is this host's, so that what is known of this host's health holds.
    """

    topology: Topology
    target: str | None = None
    notices: tuple[Notice, ...] = ()
    is_here: bool = False


def find_topology(request: PlanRequest, here: Here = None) -> Found:
    """Returns the hardware that a request means; looks at this host only if it means this host.

    Raises:
        InvalidRequestError: a target and a topology are both given; neither is, and there is no host; or the target
            is none.
        PlanInfeasibleError: no such hardware can be, or the topology contradicts itself.
    """
    match request.target, request.topology:
        case None, None:
            return Found(_look(here), is_here=True)
        case str(text), None:
            return Found(build_target(text), str(read_target(text)))
        case None, Devices() as reply:
            return _join((reply,))
        case None, tuple(replies):
            return _join(replies)
        case _:
            raise _refuse(
                "target",
                f"target {request.target!r} stands beside a topology; a plan is made on one of them",
                "leave out target, or leave out topology",
            )


def _join(replies: tuple[Devices, ...]) -> Found:
    joined = join_devices(replies)
    return Found(joined.topology, notices=joined.notices)


def _look(here: Here) -> Topology:
    if here is None:
        message = "neither target nor topology is given, and there is no host here; a plan needs to know its devices"
        raise _refuse("target", message, _WAYS)
    return here if isinstance(here, Topology) else here()


def _refuse(field: str, detail: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError.of(field, detail, hint, detail.rpartition("; ")[2])
