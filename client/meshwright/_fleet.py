"""The parts of a fleet that load no HTTP library: its addresses, and the state of its hosts.

Rule: an entry without an address is refused, and a host that did not answer is named wherever the fleet is described.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from meshwright._client.settings import parse_address
from meshwright.errors import FleetIncompleteError, SettingsError
from meshwright.topology.identity import shorten
from meshwright.topology.join import Joined, join_devices
from meshwright.topology.model import Topology
from meshwright.wire.base import Notice
from meshwright.wire.devices import Devices
from meshwright.wire.health import WORST_FIRST, Health, State

DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_PORT: Final = 8790
VARIABLE: Final = "MESHWRIGHT_FLEET"
_FORMS: Final = 'such as "node7,node8:8790", "@/etc/meshwright/fleet" or "dns:agents.default.svc"'
_NO_HOST: Final = frozenset("/?#@\\[]")

HostState = Literal["ok", "not_ready", "error", "unreachable"]
"""The agent answered · it does not know its devices yet, or shuts down · it answered with an error, or in an unknown
format · no answer in time."""

_UNCHECKED: Final[frozenset[State]] = frozenset({"unknown", "initializing"})


def resolve_name(host: str, port: int) -> set[str]:
    """Returns every A and AAAA record of a name.

    Raises:
        OSError: the resolver knows no such name.
    """
    return {str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}


def read_addresses(given: str | Sequence[str] | None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the URLs of a fleet's agents.

    Args:
        given: URLs, hosts, "@file", "dns:name[:port]", as a list or in one text; None: MESHWRIGHT_FLEET.
        environ: the environment with MESHWRIGHT_FLEET.

    Raises:
        SettingsError: no agent is named, one is named twice, or an entry is not valid.
    """
    asked = environ.get(VARIABLE, "") if given is None else given
    texts = [asked] if isinstance(asked, str) else list(asked)
    urls = [url for text in texts for entry in _split(text) for url in _read_entry(entry)]
    if not urls:
        where = f"{VARIABLE} is empty or not set" if given is None else "no address is given"
        raise SettingsError(f"a fleet needs addresses, and {where}; name the agents, {_FORMS}")
    twice = next((url for url, times in Counter(urls).items() if times > 1), None)
    if twice is not None:
        raise SettingsError(f"the fleet names {twice} twice; name each host once")
    return tuple(urls)


def _split(text: str) -> list[str]:
    """Returns the entries between commas and white space."""
    return text.replace(",", " ").split()


def _read_entry(entry: str) -> Iterable[str]:
    if entry.startswith("@"):
        return _read_file(entry.removeprefix("@"))
    if entry.startswith("dns:") and not entry.startswith("dns://"):
        return _read_dns(entry.removeprefix("dns:"))
    return (parse_address(entry).shown if "://" in entry else _build_url(entry),)


def _read_file(path: str) -> Iterable[str]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SettingsError(
            f"@{path}: the fleet's file cannot be read ({error}); name a file with one address a line"
        ) from error
    entries = [entry for line in lines for entry in _split(line.partition("#")[0])]
    nested = next((entry for entry in entries if entry.startswith("@")), None)
    if nested is not None:
        raise SettingsError(f"@{path}: the fleet's file names another file, {nested}; write its addresses instead")
    return [url for entry in entries for url in _read_entry(entry)]


def _read_dns(name: str) -> Iterable[str]:
    host, port = _split_port(name, f"dns:{name}")
    try:
        found = sorted(map(ipaddress.ip_address, resolve_name(host, port)), key=lambda ip: (ip.version, ip))
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"dns:{name}: the name {host!r} has no address ({error}); name a headless service, {_FORMS}"
        ) from error
    return [f"http://{_quote(str(ip))}:{port}" for ip in found]


def _build_url(entry: str) -> str:
    host, port = _split_port(entry, entry)
    return parse_address(f"http://{_quote(host)}:{port}").shown


def _split_port(entry: str, shown: str) -> tuple[str, int]:
    """Returns host and port of "host", "host:port", "[::1]:port" and "::1"."""
    if _is_ipv6(entry):
        return entry, DEFAULT_PORT
    host, colon, port = entry.rpartition(":") if not entry.endswith("]") else (entry, "", "")
    if not colon:
        host, port = entry, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or set(host) & _NO_HOST or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        hint = "; list hosts one by one (in Slurm: scontrol show hostnames)" if "[" in entry else ""
        raise SettingsError(
            f"{shown!r} is not a host, nor a host and a port from 1 to 65535; write node7 or node7:8790{hint}"
        )
    return host, int(port)


def _quote(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


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
        return tuple(known.get(each.component, "unknown") for each in (self.devices.devices if self.devices else ()))

    @property
    def worst(self) -> State | None:
        """The worst state of its devices; None where it has none."""
        return next((state for state in WORST_FIRST if state in self.device_states), None)

    def __str__(self) -> str:
        why = f": {self.detail}" if self.detail else ""
        return f"{self.name or self.url} ({self.state}{why})"


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
        seen = (zip(places, host.device_states, strict=True) for host, places in told)
        return dict(itertools.chain.from_iterable(seen))

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The warnings of a plan on this fleet: missing hosts, and the warnings of joining the others.

        Raises:
            FleetIncompleteError, PlanInfeasibleError: there is no topology.
        """
        found: list[Notice] = []
        if self.failed:
            message = f"{len(self.failed)} of {len(self.hosts)} hosts are not in the plan: {_list(self.failed)}"
            found.append(Notice(code="hosts_missing", message=message, hint="start their agents, and plan again"))
        if unchecked := [host for host in self.ok if _UNCHECKED & set(host.device_states)]:
            names = [host.name if host.health else f"{host.name} (no answer to GET /health)" for host in unchecked]
            message = f"{shorten(names)}: the health of some devices is unknown; they are planned with all the same"
            found.append(Notice(code="health_unknown", message=message, hint="ask again, or look at their agents"))
        return (*found, *self.joined.notices)

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
    return FleetIncompleteError(state.missing, hint=hint, hosts={host.url: host.detail for host in state.failed})


def _list(hosts: tuple[FleetHost, ...]) -> str:
    return shorten([str(host) for host in hosts], separator="; ")
