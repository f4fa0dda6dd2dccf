"""The health rules: which fact of a driver or card means which state, and the operator's action. Pure.

To add a rule, add a line to `DRIVER_RULES` or `CARD_RULES`; `docs/reference/health.md` has a table of both, written by
`python -m tests.reference --write`. A finding depends on a reported fact: without a fact a component is not healthy. A
required question without an answer is `unknown`. Limits are the card's own, unless their text says otherwise. The
meaning of NVIDIA's numbers (XID, SXID) is in `xid.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Generic, TypeVar

from meshwright.wire.health import WORST_FIRST, Permanence, State
from meshwright_agent.facts.model import GpuHealth, HostFacts, PciHealth, ProblemKind, SourceProblem
from meshwright_agent.facts.nvidia import DRAIN_AND_RESET, POWER_BRAKE
from meshwright_agent.facts.nvml import ABSENT, ANSWERED, QUESTIONS
from meshwright_agent.health.events import Finding

PARTS: Final[Mapping[str, str]] = {
    "thermal": "temperature and power of a card, and clocks that either holds down",
    "memory": "ECC errors, remapped rows and retired pages of a card",
    "link": "PCIe link of a device, its errors, and a GPU's NVLinks",
}
"""Components other than `device:N` → their subject. Each has the number of its device: `thermal:N`."""

MAX_RETRIES: Final = 100
"""Harmless number of replays and CRC errors of all NVLinks of a card between two probes: our choice."""

RESET: Final = "drain the GPU, then reset it (nvidia-smi --gpu-reset -i N) or reboot the host"
RMA: Final = "RMA the card"
_COOLING: Final = "check cooling and airflow of the host"
_RESEAT: Final = "reseat the card, check riser and cable, and reboot; RMA if it stays"
_SOON: Final = "reset the GPU at the next chance"
_NVLINK: Final = "check nvidia-fabricmanager and the kernel log; reset the GPUs; reseat bridge or card if it stays"
_WATCH_NVLINK: Final = "watch it; if it goes on, drain the host and check the NVLink bridge, cable or card"


@dataclass(frozen=True)
class CardView:
    """The input of a card's rules. A template of a rule accesses it as `v`.

    Attributes:
        health: NVML's report; None: the card is not NVIDIA's.
        pci: sysfs' report.
        before: NVML's report at the last probe.
        nonfatal_before: AER's non-fatal errors at the last probe.
        siblings: reports of the other cards of its kind on this host. A feature of one card is expected of all.
        expected_nvlinks: maximum number of active NVLinks on cards of this kind here, or earlier on this card, or the
            fixed number of its kind; 0: unknown.
        baselines: counter → its value when it was acknowledged, or, of fatal errors of the bus, when it was first read.
        lost_file: the device file that existed and is gone.
    """

    health: GpuHealth | None = None
    pci: PciHealth = field(default_factory=PciHealth)
    before: GpuHealth | None = None
    nonfatal_before: int | None = None
    siblings: tuple[GpuHealth, ...] = ()
    expected_nvlinks: int = 0
    baselines: Mapping[str, int] = field(default_factory=dict)
    lost_file: str | None = None

    @cached_property
    def gpu(self) -> GpuHealth:
        """NVML's report; an empty report for a card that is not NVIDIA's."""
        return self.health or GpuHealth()

    @property
    def temperature_state(self) -> State | None:
        """The state by the temperature and its limits; None if one of them is unknown."""
        now, slow, off = self.gpu.temperature_celsius, self.gpu.slowdown_celsius, self.gpu.shutdown_celsius
        if now is None or (slow is None and off is None):
            return None
        if off is not None and now >= off:
            return "unhealthy"
        return "degraded" if slow is not None and now >= slow else "healthy"

    @property
    def margin_state(self) -> State | None:
        """The state by the margin. At or below 0 only the card's own limits define it; None if they are unknown."""
        left, slow = self.gpu.margin_celsius, self.gpu.slowdown_margin_celsius
        off = self.gpu.shutdown_margin_celsius
        if left is None:
            return None
        if off is not None and left <= off:
            return "unhealthy"
        if slow is not None and left <= slow:
            return "degraded"
        return "healthy" if slow is not None or left > 0 else None

    @property
    def has_bare_temperature(self) -> bool:
        """True with a temperature or margin, but no limit to compare it with."""
        has_one = self.gpu.temperature_celsius is not None or self.gpu.margin_celsius is not None
        return has_one and self.temperature_state is None and self.margin_state is None

    @property
    def limit(self) -> str:
        """The first temperature limit of the card, as text."""
        slow = self.gpu.slowdown_celsius
        return f"shuts down at {self.gpu.shutdown_celsius} °C" if slow is None else f"slows down from {slow} °C"

    @property
    def power(self) -> str:
        """The power limit, as text. A limit below the factory default is an operator's choice, not a fault."""
        limit, default = self.gpu.power_limit_watts, self.gpu.power_default_watts
        if limit is None:
            return ""
        lowered = f", set below its own {default:.0f} W" if default is not None and limit < default else ""
        return f"; draws at most {limit:.0f} W{lowered}"

    @property
    def new_uncorrectable(self) -> int | None:
        """Unacknowledged uncorrectable ECC errors. If the counter is below the acknowledged value, it was reset."""
        count, known = self.gpu.uncorrectable_count, self.baselines.get("uncorrectable", 0)
        return count if count is None or known > count else count - known

    @property
    def lifetime(self) -> str:
        """Uncorrectable ECC errors since the card was made, as text, and whether its repairs are not reported."""
        count, repairs = self.gpu.uncorrectable_lifetime_count, (self.gpu.remap_pending, self.gpu.retirement_pending)
        unread = "; row remapping cannot be read here, as in MIG mode" if repairs == (None, None) else ""
        return ("" if count is None else f", {count} in its life") + unread

    @property
    def width(self) -> int | None:
        """Current lanes of the PCIe link."""
        return self.gpu.pcie_width or self.pci.width

    @property
    def most_width(self) -> int | None:
        """Lanes that card and slot both have."""
        return self.gpu.pcie_most_width or self.pci.most_width

    @property
    def is_slow_link(self) -> bool:
        """True if a busy card has a lower PCIe generation than possible. An idle card slows its link."""
        now, most = self.gpu.pcie_generation, self.gpu.pcie_most_generation
        return self.gpu.is_computing and self.gpu.performance_state == 0 and 0 < (now or 0) < (most or 0)

    @property
    def new_fatal(self) -> int | None:
        """Fatal AER errors since the first probe or an acknowledgement."""
        count = self.pci.fatal_count
        return None if count is None else max(0, count - self.baselines.get("fatal", 0))

    @property
    def new_nonfatal(self) -> int:
        """Non-fatal AER errors since the last probe."""
        now, before = self.pci.nonfatal_count, self.nonfatal_before
        return 0 if now is None or before is None else max(0, now - before)

    @property
    def most_nvlinks(self) -> int:
        """NVLinks that should be up."""
        return max(self.gpu.nvlinks_active or 0, self.expected_nvlinks)

    @cached_property
    def nvlink_growth(self) -> Mapping[str, int]:
        """Growth of each NVLink error counter; 0 for one that has decreased. A link that returns has none at first."""
        before = self.before.nvlink_errors if self.before else {}
        return {name: max(0, n - before[name]) for name, n in self.gpu.nvlink_errors.items() if name in before}

    @property
    def recoveries(self) -> int:
        """Recoveries of NVLinks since the last probe."""
        return sum(count for name, count in self.nvlink_growth.items() if name.startswith("recovery"))

    @property
    def retries(self) -> int:
        """Replays and CRC errors of NVLinks since the last probe."""
        return sum(self.nvlink_growth.values()) - self.recoveries

    @cached_property
    def unanswered(self) -> Mapping[str, str]:
        """Part → its unanswered NVML questions, which make it unknown; "" without such questions."""
        return {part: "; ".join(self._list_unanswered(part)) for part in ("device", *PARTS)}

    def _list_unanswered(self, part: str) -> list[str]:
        if self.health is None or self.health.error:
            return []
        errors: dict[str, None] = {}
        for name, question in QUESTIONS.items():
            came = self.health.answers.get(name)
            if part not in question.parts or came in (None, ANSWERED):
                continue
            if came != ABSENT:
                errors[f"{question.function} failed: {came}"] = None
            elif any(sibling.answers.get(name) == ANSWERED for sibling in self.siblings):
                ecc = "; if ECC is off here: nvidia-smi -e 1, then reboot" if "Ecc" in question.function else ""
                errors[f"{question.function} is not supported here, but on another card of its kind{ecc}"] = None
        is_silent = replace(self.health, answers={}, is_computing=False, recovery=None) == GpuHealth()
        if part == "device" and is_silent and not errors:
            return ["the driver answers no question about its health"]
        return list(errors)


View = TypeVar("View")


@dataclass(frozen=True)
class Rule(Generic[View]):
    """One line of the table.

    Attributes:
        component: kind of the component: "driver", "device", or one of `PARTS`.
        state: state of the component while the rule holds.
        when: the condition as text, for the documentation.
        text: the reason, a template of `str.format` with the view as `v`.
        action: the operator's action, also a template.
        permanence: None if both are usual.
        source: what reports the facts.
    """

    component: str
    state: State
    when: str
    holds: Callable[[View], bool]
    text: str
    action: str = ""
    permanence: Permanence | None = None
    source: str = "NVML"


def _problem(
    kind: ProblemKind, state: State, when: str, action: str, permanence: Permanence | None = None
) -> Rule[SourceProblem]:
    return Rule(
        "driver", state, when, lambda v: v.kind == kind, "{v.text}", action, permanence, "NVML, sysfs, /dev, /proc"
    )


# fmt: off
DRIVER_RULES: Final = (
    _problem("driver_down", "unhealthy", "no card can be read of those that the bus has to compute on",
             "drain the host; look for NVRM in the kernel log, load or reinstall the driver, or reboot", "permanent"),
    _problem("unreadable", "unknown",
             "NVML lists no card or refuses the agent, which may be the agent's own fault: no library, no permission",
             "give the agent NVIDIA's library, the cards' device files (--gpus all) and permission to use both, then "
             "restart it", "permanent"),
    _problem("no_library", "unknown", "nvidia-ml-py is not installed",
             "pip install nvidia-ml-py where the agent runs", "permanent"),
    _problem("refused", "degraded", "NVML gives no handle for a card, or it has no driver and others have one",
             "look for NVRM in the kernel log; reset the GPU or reboot the host"),
    _problem("unanswered", "degraded", "a question failed",
             "look for NVRM in the kernel log; `meshwright-agent doctor` names the driver and library on this host"),
    _problem("fabric_down", "unhealthy", "the NVLink fabric is not ready, so that CUDA does not start (error 802)",
             "drain the host; check nvidia-fabricmanager and the kernel log"),
    _problem("fabric_starting", "unknown", "the NVLink fabric is starting: it is not ready, for less than 5 minutes",
             "wait; check nvidia-fabricmanager and the kernel log if it stays", "transient"),
    _problem("fabric", "degraded", "the driver reports a fault of the NVLink fabric",
             "check nvidia-fabricmanager and the kernel log"),
    _problem("no_instances", "degraded", "a card in MIG mode has no instances",
             "make MIG instances (nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -mig 0)", "permanent"),
    _problem("no_tpu_driver", "unhealthy", "no driver has a TPU, so that JAX cannot open it",
             "drain the host; load vfio-pci, or the accel driver, and bind it to the TPU", "permanent"),
)
# fmt: on


def _slowdown(cause: str, action: str) -> Rule[CardView]:
    text = f"clocks are held down: {cause}"
    return Rule("thermal", "degraded", text, lambda v: cause in (v.gpu.slowdowns or ()), text, action, "transient")


def _unanswered(part: str) -> Rule[CardView]:
    when, text = "a required question to NVML has no answer", f"{{v.unanswered[{part}]}}"
    action = "look for NVRM in the kernel log; see `nvidia-smi -q`; reset the GPU if it stays"
    return Rule(part, "unknown", when, lambda v: bool(v.unanswered[part]), text, action)


# fmt: off
CARD_RULES: Final[tuple[Rule[CardView], ...]] = (
    Rule("device", "unhealthy", "the driver says that the card is lost or must be reset",
         lambda v: v.gpu.error is not None, "the driver says: {v.gpu.error}", f"{RESET}; {RMA} if it returns",
         "permanent"),
    Rule("device", "unhealthy", "the driver asks for a recovery action (field 230)",
         lambda v: not v.gpu.error and v.gpu.recovery not in (None, "", DRAIN_AND_RESET),
         "the driver asks to {v.gpu.recovery}",
         "drain the host; {v.gpu.recovery}", "permanent"),
    Rule("device", "degraded", "the driver asks for a drain and a reset (field 230): running jobs are safe",
         lambda v: not v.gpu.error and v.gpu.recovery == DRAIN_AND_RESET, "the driver asks to {v.gpu.recovery}",
         "{v.gpu.recovery}", "permanent"),
    Rule("device", "unhealthy", "a device file that was here is gone", lambda v: v.lost_file is not None,
         "its device file {v.lost_file} is gone",
         "check its driver (vfio-pci or accel) and the kernel log; reboot the host if it does not return",
         "permanent", "/dev"),
    _unanswered("device"),
    # a drain reason omits the current temperature, so that it stays the same at each probe
    Rule("thermal", "unhealthy", "the temperature has reached the card's shutdown limit",
         lambda v: v.temperature_state == "unhealthy", "at {v.gpu.shutdown_celsius} °C or more: it shuts down there",
         f"drain the host; {_COOLING}", "transient"),
    Rule("thermal", "degraded", "the temperature has reached the card's slowdown limit",
         lambda v: v.temperature_state == "degraded",
         "{v.gpu.temperature_celsius} °C; it slows down from {v.gpu.slowdown_celsius} °C", _COOLING, "transient"),
    Rule("thermal", "healthy", "the temperature is below the card's limits",
         lambda v: v.temperature_state == "healthy", "{v.gpu.temperature_celsius} °C, {v.limit}"),
    Rule("thermal", "unhealthy", "the margin has reached the card's shutdown limit",
         lambda v: v.margin_state == "unhealthy",
         "{v.gpu.shutdown_margin_celsius} °C or less left to the limit that its clocks are kept by: "
         "it shuts down there",
         f"drain the host; {_COOLING}", "transient"),
    Rule("thermal", "degraded", "the margin has reached the card's slowdown limit",
         lambda v: v.margin_state == "degraded",
         "{v.gpu.margin_celsius} °C left to the limit that its clocks are kept by; "
         "its hardware slows it down from {v.gpu.slowdown_margin_celsius} °C",
         _COOLING, "transient"),
    Rule("thermal", "healthy", "the margin is above the card's limits", lambda v: v.margin_state == "healthy",
         "{v.gpu.margin_celsius} °C left to the limit that its clocks are kept by"),
    Rule("thermal", "unknown", "there is a temperature, but no limit to compare it with",
         lambda v: v.has_bare_temperature, "the driver gives a temperature, but no limit to compare it with",
         "see `nvidia-smi -q -d TEMPERATURE`; update the driver"),
    _slowdown("hardware thermal slowdown", _COOLING),
    _slowdown("software thermal slowdown", _COOLING),
    _slowdown(POWER_BRAKE, "check the power supplies: they signal the card to slow down"),
    _slowdown("hardware slowdown", "check cooling and power supplies"),
    Rule("thermal", "healthy", "neither heat nor power holds the clocks down", lambda v: v.gpu.slowdowns == (),
         "clocks are not held down{v.power}"),
    _unanswered("thermal"),
    Rule("memory", "unhealthy", "uncorrectable ECC errors since the driver was loaded, not acknowledged",
         lambda v: bool(v.new_uncorrectable),
         "{v.gpu.uncorrectable_count} uncorrectable ECC errors since the driver was loaded{v.lifetime}",
         f"{RESET}; {RMA} if more come", "permanent"),
    Rule("memory", "healthy", "no new uncorrectable ECC errors", lambda v: v.new_uncorrectable == 0,
         "no new uncorrectable ECC errors{v.lifetime}"),
    Rule("memory", "unhealthy", "a row could not be remapped", lambda v: bool(v.gpu.remap_failed),
         "a memory row could not be remapped: no spare is left", f"drain the GPU; {RMA}", "permanent"),
    Rule("memory", "degraded", "a row waits to be remapped", lambda v: bool(v.gpu.remap_pending),
         "a memory row waits to be remapped", _SOON, "permanent"),
    Rule("memory", "degraded", "pages wait to be retired", lambda v: bool(v.gpu.retirement_pending),
         "memory pages wait to be retired", _SOON, "permanent"),
    _unanswered("memory"),
    Rule("link", "degraded", "fewer PCIe lanes than card and slot have",
         lambda v: (v.width or v.most_width or 0) < (v.most_width or 0),
         "PCIe link of {v.width} lanes; card and slot have {v.most_width}", _RESEAT, "permanent", "NVML, sysfs"),
    Rule("link", "healthy", "all PCIe lanes",
         lambda v: v.width is not None and v.most_width is not None and v.width >= v.most_width,
         "PCIe link of {v.width} lanes", source="NVML, sysfs"),
    Rule("link", "degraded", "a lower PCIe generation while at work", lambda v: v.is_slow_link,
         "PCIe link of generation {v.gpu.pcie_generation} while at work; card and slot have "
         "{v.gpu.pcie_most_generation}",
         _RESEAT, "permanent"),
    Rule("link", "unhealthy", "new fatal PCIe errors", lambda v: bool(v.new_fatal),
         "{v.new_fatal} fatal PCIe errors (AER), {v.pci.fatal_count} since boot", f"drain the device; {_RESEAT}",
         "permanent", "sysfs (AER)"),
    Rule("link", "healthy", "no new fatal PCIe errors", lambda v: v.new_fatal == 0, "no new fatal PCIe errors",
         source="sysfs (AER)"),
    Rule("link", "degraded", "new non-fatal PCIe errors", lambda v: bool(v.new_nonfatal),
         "{v.new_nonfatal} uncorrectable PCIe errors (AER, not fatal) since the last probe",
         f"if it goes on, {_RESEAT}", "transient", "sysfs (AER)"),
    Rule("link", "unhealthy", "no NVLink is up on a card that had some, or whose kind always has them",
         lambda v: v.gpu.nvlinks_active == 0 and v.most_nvlinks > 0, "0 of {v.most_nvlinks} NVLinks are up", _NVLINK,
         "permanent"),
    Rule("link", "degraded", "fewer NVLinks are up than were, or than on its siblings",
         lambda v: 0 < (v.gpu.nvlinks_active or 0) < v.most_nvlinks,
         "{v.gpu.nvlinks_active} of {v.most_nvlinks} NVLinks are up", _NVLINK, "permanent"),
    Rule("link", "healthy", "all NVLinks are up",
         lambda v: bool(v.gpu.nvlinks_active) and v.gpu.nvlinks_active == v.most_nvlinks,
         "{v.gpu.nvlinks_active} NVLinks are up"),
    Rule("link", "degraded", "NVLinks recovered since the last probe", lambda v: v.recoveries > 0,
         "NVLinks recovered {v.recoveries} times since the last probe", _WATCH_NVLINK, "transient"),
    Rule("link", "degraded", f"more than {MAX_RETRIES} replays and CRC errors of NVLinks since the last probe",
         lambda v: v.retries > MAX_RETRIES, "{v.retries} replays and CRC errors on NVLinks since the last probe",
         _WATCH_NVLINK, "transient"),
    _unanswered("link"),
)
# fmt: on


def find_worst(findings: Iterable[Finding]) -> Finding | None:
    """Returns one finding with the worst state and the texts of all that are not healthy; None without findings."""
    ranked = sorted(findings, key=lambda finding: WORST_FIRST.index(finding.state))
    if not ranked:
        return None
    ill = [finding for finding in ranked if finding.state != "healthy"]
    if not ill:
        return Finding("healthy", "; ".join(finding.reason for finding in ranked))
    reasons = dict.fromkeys(finding.reason for finding in ill)
    actions = dict.fromkeys(finding.action for finding in ill if finding.action)
    return Finding(ill[0].state, "; ".join(reasons), "; ".join(actions), ill[0].permanence)


def evaluate_driver(facts: HostFacts, *, is_late: bool = False) -> Finding:
    """Returns the state of the driver from its problems, in order of their occurrence.

    Args:
        facts: the facts of a probe.
        is_late: a fabric that is still starting counts as down.
    """
    problems = [
        replace(p, kind="fabric_down") if is_late and p.kind == "fabric_starting" else p for p in facts.problems
    ]
    findings = [build_finding(rule, each) for each in problems for rule in DRIVER_RULES if rule.holds(each)]
    driver = "driver, " if facts.gpus or facts.tpus else ""
    return find_worst(findings) or Finding("healthy", f"{driver}sysfs and /proc answer")


def evaluate_card(component: str, view: CardView) -> Finding | None:
    """Returns the state of a card ("device") or one of its parts; None: no source reports on it."""
    rules = (rule for rule in CARD_RULES if rule.component == component and rule.holds(view))
    return find_worst(build_finding(rule, view) for rule in rules)


def build_finding(rule: Rule[View], view: View) -> Finding:
    """Returns the finding of a rule that holds."""
    return Finding(rule.state, rule.text.format(v=view), rule.action.format(v=view), rule.permanence)
