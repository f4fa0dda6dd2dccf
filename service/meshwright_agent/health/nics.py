"""Health of ports with RDMA: each is compared with its siblings, and its error counters with those of a while ago.

Siblings are the ports that serve the accelerators of this host and should be alike: same type of adapter, same link
layer, same position on the card. Another port, such as a storage card's, may be without a cable: it counts as down only
if it was up before, also before a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from meshwright_agent.facts.infiniband import FLAPS
from meshwright_agent.facts.model import HostFacts, NicFacts
from meshwright_agent.health.events import Finding, HealthMemory
from meshwright_agent.health.rules import Rule, build_finding, find_worst

NIC: Final = "nic"

WINDOW_S: Final = 300.0
"""How long a flap or errors count: as long as an alarm of NVIDIA's UFM about a port counter stands by default.
Source: UFM-SDN Appliance User Manual, Supported Traps and Events (TTL)."""
MAX_ERRORS: Final = 12
"""Harmless number of errors of a port in `WINDOW_S`: of a 40 Gb/s link with the bit error rate 1e-12 that InfiniBand
allows. Faster links correct their errors, and count fewer. The bit error rate is of the InfiniBand Architecture
Specification (unverified)."""
_ERRORS: Final = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
_WIDEST: Final = dict(
    zip(("link_error_recovery", "link_downed", *_ERRORS), (255, 255, 65535, 65535, 15, 15), strict=True)
)
"""Counter → its largest value, at which it stays. Source: Linux, drivers/infiniband/core/sysfs.c."""
_LOOK: Final = "see {v.tools}; check cable, transceiver and switch port"
_DRIVER: Final = "look for its driver in the kernel log; see {v.tools}"
_PULLED: Final = "if it was taken out on purpose, POST /health/acknowledge"


@dataclass(frozen=True)
class NicView:
    """The input of a port's rules. A template of a rule accesses it as `v`.

    Attributes:
        siblings: the other ports that should be alike.
        was_up: it was up when a probe read it before.
        growth: counter → growth in `WINDOW_S`.
    """

    nic: NicFacts
    siblings: tuple[NicFacts, ...] = ()
    was_up: bool = False
    growth: Mapping[str, int] = field(default_factory=dict)

    @property
    def tools(self) -> str:
        """The commands that show more of it. Only those of the kernel know other adapters than NVIDIA's."""
        adapter, _, port = self.nic.name.partition(":")
        if self.nic.attributes.get("hca_type", "").startswith("MT"):
            return f"`ibstat {adapter}` and `mlxlink -d {adapter} -m -c`"
        return f"`rdma link show {adapter}{port and f'/{port}'}`"

    @property
    def is_down(self) -> bool:
        """True for a port whose state is known, and not up."""
        return self.nic.state is not None and not self.nic.is_up

    @property
    def up_count(self) -> int:
        """Number of siblings that are up."""
        return sum(sibling.is_up for sibling in self.siblings)

    @property
    def sibling_count(self) -> int:
        """Number of siblings."""
        return len(self.siblings)

    @property
    def is_slow(self) -> bool:
        """True for a port with a lower rate than a sibling."""
        rate = self.nic.rate_bytes_per_s
        return rate is not None and any(rate < (sibling.rate_bytes_per_s or 0) for sibling in self.siblings)

    @property
    def down(self) -> str:
        """The state of a port that is down, as text. Ethernet ports are `Disabled` also without a cable."""
        physical = self.nic.physical_state or "unknown"
        cause = ": no subnet manager has configured it" if physical == "LinkUp" else ""
        return f"down (state {self.nic.state}, physical state {physical}{cause})"

    @property
    def rate(self) -> str:
        """Its rate as text."""
        return _format_rate(self.nic.rate_bytes_per_s)

    @property
    def best_rate(self) -> str:
        """The highest rate of a sibling as text."""
        return _format_rate(max(sibling.rate_bytes_per_s or 0 for sibling in self.siblings))

    @property
    def flaps(self) -> int:
        """How often the link went down in `WINDOW_S`, or recovered from errors."""
        return sum(self.growth.get(name, 0) for name in (*FLAPS, "link_error_recovery"))

    @property
    def errors(self) -> int:
        """Errors in `WINDOW_S`."""
        return sum(self.growth.get(name, 0) for name in _ERRORS)

    @property
    def full(self) -> str:
        """The counters that have reached their largest value, as text."""
        return ", ".join(name for name, most in _WIDEST.items() if self.nic.counters.get(name) == most)

    @property
    def grown(self) -> str:
        """The counters of flaps and errors that grew, as text."""
        names = (*FLAPS, "link_error_recovery", *_ERRORS)
        return ", ".join(f"{name} +{self.growth[name]}" for name in names if self.growth.get(name))


def _format_rate(bytes_per_s: float | None) -> str:
    """Returns a rate as it is printed on cards and cables: "400 Gb/s"."""
    return "an unknown rate" if bytes_per_s is None else f"{bytes_per_s * 8 / 1e9:g} Gb/s"


# fmt: off
NIC_RULES: Final[tuple[Rule[NicView], ...]] = (
    Rule(NIC, "unknown", "its state cannot be read", lambda v: v.nic.state is None,
         "its state cannot be read", _DRIVER, source="sysfs"),
    Rule(NIC, "degraded", "it is down, and a sibling is up", lambda v: v.is_down and v.up_count > 0,
         "{v.down}; {v.up_count} of its {v.sibling_count} siblings are up", _LOOK, source="sysfs"),
    Rule(NIC, "degraded", "it is down, and was up before", lambda v: v.is_down and v.was_up and not v.up_count,
         "{v.down}; it was up before", f"{_LOOK}; {_PULLED}", source="sysfs"),
    Rule(NIC, "initializing", "it is down, was never up here, and no sibling is up",
         lambda v: v.is_down and not v.was_up and not v.up_count, "{v.down}; it was never up here", source="sysfs"),
    Rule(NIC, "degraded", "its rate is below that of a sibling", lambda v: v.is_slow,
         "up at {v.rate}; its siblings at {v.best_rate}", _LOOK, source="sysfs"),
    Rule(NIC, "unknown", "it is up, and its rate cannot be read",
         lambda v: v.nic.is_up and v.nic.rate_bytes_per_s is None, "up; its rate cannot be read",
         _DRIVER, source="sysfs"),
    Rule(NIC, "degraded", "its link went down or recovered in the last 5 minutes", lambda v: v.flaps > 0,
         "its link is not stable: {v.grown} in the last 5 minutes", _LOOK, "transient", "sysfs"),
    Rule(NIC, "degraded", f"more than {MAX_ERRORS} errors in the last 5 minutes",
         lambda v: v.errors > MAX_ERRORS and not v.flaps, "errors: {v.grown} in the last 5 minutes", _LOOK, "transient",
         "sysfs"),
    Rule(NIC, "degraded", "a counter has reached its largest value, so that it hides errors", lambda v: bool(v.full),
         "{v.full} cannot count further errors", "reset the counters (perfquery -R)", "permanent", "sysfs"),
    Rule(NIC, "healthy", "it is up", lambda v: v.nic.is_up, "up at {v.rate}", source="sysfs"),
)
# fmt: on


class NicEvaluator:
    """Evaluates the ports of each probe.

    Attributes:
        places: component of the last evaluation → its place.
    """

    def __init__(self, memory: HealthMemory) -> None:
        self._memory = memory
        self._samples: dict[str, list[tuple[datetime, Mapping[str, int]]]] = {}
        self.places: dict[str, str] = {}

    def evaluate(self, facts: HostFacts, at: datetime) -> dict[str, Finding]:
        """Returns the finding of each port, and of each port that was up and is gone, by component."""
        findings: dict[str, Finding] = {}
        self.places = {f"{NIC}:{nic.name}": nic.place for nic in facts.nics}
        for nic in facts.nics:
            view = NicView(nic, find_siblings(nic, facts), nic.place in self._memory.nics, self._measure(nic, at))
            found = find_worst(build_finding(rule, view) for rule in NIC_RULES if rule.holds(view))
            findings[f"{NIC}:{nic.name}"] = found or Finding("unknown", "no rule knows its state")
        places = {nic.place: nic.name for nic in facts.nics}
        gone = {place: name for place, name in self._memory.nics.items() if place not in places}
        for place, name in gone.items():  # another port may have got its name
            component = f"{NIC}:{name}" if name not in places.values() else f"{NIC}:{place}"
            reason = f"was up before, as {name} at {place}; the kernel no longer lists it"
            action = f"look for its driver in the kernel log; reboot the host; {_PULLED}"
            findings[component], self.places[component] = Finding("degraded", reason, action, "permanent"), place
        self._memory.nics |= {nic.place: nic.name for nic in facts.nics if nic.is_up}
        return findings

    def _measure(self, nic: NicFacts, at: datetime) -> Mapping[str, int]:
        """Returns the growth of a port's counters in `WINDOW_S`, or since the last probe if that is longer ago.

        A counter that has decreased was reset: its growth is unknown until the next probe, as after a clock set back.
        """
        samples = self._samples.setdefault(nic.place, [])
        is_back = bool(samples) and at < samples[-1][0]
        if is_back or any(count < samples[-1][1].get(name, 0) for name, count in nic.counters.items() if samples):
            samples.clear()
        samples.append((at, nic.counters))
        while len(samples) > 2 and (at - samples[1][0]).total_seconds() >= WINDOW_S:
            del samples[0]
        first = samples[0][1]
        return {name: count - first[name] for name, count in nic.counters.items() if name in first}

    def acknowledge(self, component: str) -> None:
        """Forgets that a port was up, and its counters so far."""
        place = self.places.get(component, "")
        self._memory.nics.pop(place, None)
        self._samples.pop(place, None)


def find_siblings(nic: NicFacts, facts: HostFacts) -> tuple[NicFacts, ...]:
    """Returns the other ports that should be as this one; none for a port that does not serve accelerators.

    A port serves those beside it. Where the PCI bus shows none beside any port, as in virtual machines, ports of one
    kind serve them if there is at least one for each.
    """
    alike = [each for each in facts.nics if _get_kind(each) == _get_kind(nic)]
    cards = len({gpu.pci_bus_id for gpu in facts.gpus} | {tpu.pci_bus_id for tpu in facts.tpus})
    if nic.near or (1 < cards <= len(alike) and not any(each.near for each in facts.nics)):
        return tuple(each for each in alike if each is not nic)
    return ()


def _get_kind(nic: NicFacts) -> tuple[object, ...]:
    """Returns what siblings have in common. The second ports of cards are siblings of each other alone."""
    function, port = nic.pci_bus_id.rpartition(".")[2], nic.name.partition(":")[2]
    return nic.link_layer, nic.attributes.get("hca_type"), function, port, bool(nic.near)
