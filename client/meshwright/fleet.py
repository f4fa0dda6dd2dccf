"""Fleet: requests to many agents at once, and their hosts as one topology to plan on.

Rule: one deadline for all hosts; a host that does not answer within it is named, never left out silently. Plans are
made here, not by an agent; `meshwright.mesh.build_mesh` builds their meshes in each process of the job.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, Self, TypedDict, Unpack

import httpx
from pydantic import ValidationError

from meshwright._client.blocking import Client
from meshwright._client.connection import build_client
from meshwright._client.replies import build_deadline, count_left
from meshwright._client.requests import AxisTypesLike, DevicesLike, MemoryStrategyName, build_request
from meshwright._client.settings import read_settings
from meshwright._fleet import DEFAULT_TIMEOUT_S, FleetHost, FleetState, HostState, read_addresses
from meshwright._threads import run_all
from meshwright.errors import (
    AgentConnectionError,
    DeviceLeasedError,
    InvalidRequestError,
    MeshwrightError,
    RequestError,
    UnavailableError,
)
from meshwright.spec import MeshLike, MeshSpec
from meshwright.wire.devices import Devices
from meshwright.wire.health import Health
from meshwright.wire.mesh import Plan, PlanRequest

__all__ = ["Fleet", "FleetHost", "FleetState"]

MAX_AT_ONCE: Final = 256
"""Hosts that are requested at the same time. The number is large, since some hosts may use the whole deadline without
an answer. It is limited, since a process often has a limit of 1,024 files."""

_Pool = tuple[str | None, bool, bool]
"""(unix socket, is this host, has TLS): hosts that are alike in these share connections and their settings."""


class _PlanOptions(TypedDict, total=False):
    """The options of `plan`."""

    devices: DevicesLike | None
    device_order: Literal["planned", "given"]
    lease: str | None
    axis_types: AxisTypesLike | None
    allow_unused: bool
    memory_strategy: MemoryStrategyName
    dcn: str | Mapping[str, int] | None
    importance: Mapping[str, float] | None
    include_devices: bool
    timeout_s: float
    require_all: bool


class Fleet:
    """Many agents, for blocking code. Threads may share one.

    Args:
        urls: the agents: URLs ("http://host:8790", "unix:///path"), hosts, "@file" with one a line,
            "dns:name:port" for every address of a headless service; a list of these, or one text with commas. None:
            MESHWRIGHT_FLEET. The port of a host without one is 8790.
        token: as for `Client`, sent to every agent.
        connect: opens the client of an address, which is closed with the fleet; None: `Client`, with a connection pool
            shared by all hosts. Tests pass `lambda url: fakes[url].client()`.

    Raises:
        SettingsError: no address is given, or one twice; or an address, the token or the CA file cannot be used.
    """

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        connect: Callable[[str], Client] | None = None,
    ) -> None:
        self._urls = read_addresses(urls, os.environ)
        self._pools: dict[_Pool, httpx.Client] = {}
        self._is_closed = False
        opened = connect or functools.partial(self._open, token=token)
        self._clients = [opened(url) for url in self._urls]

    def _open(self, url: str, *, token: str | None) -> Client:
        settings = read_settings(url, token, os.environ)
        address = settings.address
        name = address.socket, address.is_local, address.url.startswith("https:")
        if name not in self._pools:
            self._pools[name] = build_client(settings, DEFAULT_TIMEOUT_S, max_connections=MAX_AT_ONCE)
        return Client(url, token=token, max_retries=1, http_client=self._pools[name])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._is_closed = True
        for client in self._clients:
            client.close()
        for pool in self._pools.values():
            pool.close()

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the agents, each once."""
        return self._urls

    @property
    def clients(self) -> tuple[Client, ...]:
        """The client of each agent, in the order of `urls`."""
        return tuple(self._clients)

    def devices(self, *, timeout_s: float = DEFAULT_TIMEOUT_S, require_all: bool = False) -> FleetState:
        """Returns the devices of every host and their health, or why the host does not answer.

        Args:
            timeout_s: the time limit for all hosts together, in seconds.
            require_all: raise where a host does not answer.

        Raises:
            AgentConnectionError: the fleet has been closed.
            FleetIncompleteError: with `require_all`, naming the hosts that did not answer.
            ValueError: `timeout_s` is not a finite number of seconds above 0.
        """
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            works = f"it is a finite number of seconds above 0, such as {DEFAULT_TIMEOUT_S:g}"
            raise ValueError(f"timeout_s is {timeout_s}; it limits the time for all hosts; {works}")
        if self._is_closed:
            hint = "make a new fleet, or close this one later"
            raise AgentConnectionError("this fleet has been closed", host=self._urls[0], hint=hint)
        late = f"no answer within {timeout_s:g} s"
        never = f"not asked within {timeout_s:g} s: {MAX_AT_ONCE} others did not answer"
        found = {url: FleetHost(url, "error", detail=never, duration_s=timeout_s) for url in self._urls}
        deadline = build_deadline(timeout_s)

        def ask(url: str, client: Client) -> None:
            found[url] = FleetHost(url, "unreachable", detail=late, duration_s=timeout_s)
            _ask_host(client, deadline, functools.partial(found.__setitem__, url), url)

        asks = [functools.partial(ask, *each) for each in zip(self._urls, self._clients, strict=True)]
        run_all(asks, limit_s=timeout_s, at_once=MAX_AT_ONCE)
        for url, client in zip(self._urls, self._clients, strict=True):
            if found[url].detail == late and client._owns_http:  # what it still sends would hold a thread
                client._http.close()
                client._http = client._build()
        state = FleetState(tuple(found[url] for url in self._urls))
        if require_all:
            state.require_all()
        return state

    def plan(self, mesh: MeshLike | MeshSpec, **options: Unpack[_PlanOptions]) -> Plan:
        """Returns the plan of a mesh such as "dp:2,tp:-1" on the hosts that answer.

        The plan is made here, from the agents' current answers, and the agents do not store it. Pass it to
        `meshwright.mesh.build_mesh` in each process of the job, as a file or by the launcher.

        Args:
            mesh: axes, outermost first: a string, a dict, a list of pairs or a MeshSpec; one size may be -1.
            devices: "host/3" (its local index there), uuids or PCI bus ids, or a selection such as {"count": 4};
                None: all.
            lease: id of the job's lease, which each host may have by the same id: a plan on its devices.
            device_order: "planned" searches the best order, "given" takes the one of `devices`, row-major.
            axis_types: "auto", "explicit" or "manual": one for all, one an axis, or by name; None: auto.
            allow_unused: a mesh smaller than the fleet causes a warning instead of an error.
            include_devices: False leaves the list of devices out of the plan.
            memory_strategy: how much memory the job's JAX may take; written to the plan's environment.
            dcn: how axes are split over granules (slices, or hosts), such as "dp:4"; None: by the score.
            importance: the traffic of each axis; only ratios count; None: by the axes' names.
            timeout_s: the time limit for all hosts together.
            require_all: raise if a host does not answer; otherwise the plan's warnings name it (`hosts_missing`).

        Raises:
            DeviceLeasedError: leases have too many of the devices.
            FleetIncompleteError: no host answered, or, with `require_all`, a host did not answer.
            InvalidMeshError: the mesh is not valid.
            InvalidRequestError: an option does not exist, or has the wrong type.
            PlanInfeasibleError: the mesh does not fit these devices, or the hosts do not form a topology: a host is
                listed twice, platforms differ, or chips of a slice contradict each other.
            PlanInfeasibleError: the mesh would leave devices unused.
        """
        timeout_s, require_all = options.pop("timeout_s", DEFAULT_TIMEOUT_S), options.pop("require_all", False)
        ours, known = _PlanOptions.__annotations__, PlanRequest.model_fields
        given = [name for name, value in options.items() if name in known and value != known[name].default]
        if other := sorted(set(given) - ours.keys()):
            detail = f"a fleet plans a mesh on the hosts that answer, and {other[0]} is not of that"
            hint = "plan on a target, such as 64*h100:8"
            raise InvalidRequestError.of(other[0], detail, hint, "not of a plan on a fleet")
        request = build_request(PlanRequest, None, {"mesh": mesh, **options})
        state = self.devices(timeout_s=timeout_s, require_all=require_all)
        from meshwright.planning.mesh_plan import plan_mesh  # here, so that asking a fleet need not wait for numpy

        try:
            return plan_mesh(request, state.topology, health=state.health, notices=state.notices)
        except (RequestError, DeviceLeasedError) as error:
            if state.failed:
                error.hint = f"{error.hint}; {state.missing}"
            raise


def _ask_host(client: Client, deadline: float | None, note: Callable[[FleetHost], None], url: str) -> None:
    """Records the devices of one host, then their health; or the reason why it does not answer.

    A host that is not ready (it starts, shuts down, or its worker cannot start) counts as not answering. If the time
    ends before all answers are in, the recorded part is used.
    """
    started_s = time.monotonic()
    try:
        devices = client._ask(Devices, "GET", "/devices", deadline=deadline)
    except MeshwrightError as error:
        if count_left(deadline):
            note(FleetHost(url, _evaluate(error), detail=_explain(error), duration_s=time.monotonic() - started_s))
        return
    host = FleetHost(url, "ok", devices.host.name, duration_s=time.monotonic() - started_s, devices=devices)
    with contextlib.suppress(MeshwrightError):
        ready = client._send("GET", "/readyz", statuses=(200, 503), max_retries=0, deadline=deadline)
        if ready.status_code != 200:
            note(replace(host, state="not_ready", detail=ready.text.strip(), devices=None))
            return
    note(host)
    with contextlib.suppress(MeshwrightError):  # a plan reports it: health_unknown
        health = client._ask(Health, "GET", "/health", deadline=deadline)
        note(replace(host, health=health, duration_s=time.monotonic() - started_s))


def _evaluate(error: MeshwrightError) -> HostState:
    if isinstance(error, UnavailableError) and error.code == "not_ready":
        return "not_ready"
    unread = isinstance(error.__cause__, ValidationError)  # something answered, but its reply cannot be read
    return "unreachable" if isinstance(error, AgentConnectionError) and not unread else "error"


def _explain(error: MeshwrightError) -> str:
    """Returns the problem and its solution in one line. Without any answer, only the problem, since a fleet has many
    hosts."""
    return f"{error.detail}; {error.hint}" if error.hint and _evaluate(error) != "unreachable" else error.detail
