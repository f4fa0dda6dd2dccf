"""What the health facts of a device mean: one finding for each of its parts. Pure.

Rule: a finding is made from what a source said, with the figures that led to it; where no source said anything there is
none, and nothing is called healthy. A part of which a required question has no answer is unknown. Limits are the card's
own; those that are ours say so. Knows no board and no log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from meshwright.wire.health import WORST_FIRST, Permanence, State
from meshwright_agent.facts.model import GpuHealth, PciHealth
from meshwright_agent.facts.nvidia import POWER_BRAKE
from meshwright_agent.facts.nvml import ABSENT, ANSWERED, QUESTIONS, Part
from meshwright_agent.health.rules import RESET, RMA

PARTS: Final[Mapping[str, str]] = {
    "thermal": "temperature of a card, and clocks held down by heat",
    "power": "power that a card may draw, and clocks held down for want of it",
    "memory": "ECC errors, remapped rows and retired pages of a card",
    "link": "PCIe link of a device, its errors, and a GPU's NVLinks",
}
"""Components beside `device:N` → what they are of; each is named as its device, `thermal:N`."""

FEW_RETRIES: Final = 100
"""Replays and CRC errors of all NVLinks of a card between two looks that are nothing to speak of: our choice."""

_COOLING: Final = "check cooling and airflow of the host"
_SLOWDOWN_ACTIONS: Final[Mapping[str, str]] = {
    "hardware thermal slowdown": _COOLING,
    "software thermal slowdown": _COOLING,
    POWER_BRAKE: "check the power supplies: they tell the card to slow down",
    "hardware slowdown": "check cooling and power supplies",
}
_UNANSWERED: Final = "look for NVRM in the kernel log; see `nvidia-smi -q`; reset the GPU if it stays"
_RESEAT: Final = "reseat the card, check riser and cable, and reboot; RMA if it stays"


@dataclass(frozen=True)
class Finding:
    """What is to be said of a part."""

    state: State
    reason: str
    action: str = ""
    permanence: Permanence | None = None


@dataclass(frozen=True)
class LinkView:
    """What the link of a device is judged by.

    Attributes:
        health, pci: what NVML and sysfs say now.
        before: what NVML said at the last look.
        expected_nvlinks: the most NVLinks that are up on a card of this kind here, or were on this one, or that such a
            card always has; 0: nothing is known.
        baselines: how far AER's counters stood when they were first looked at or acknowledged.
        nonfatal_before: AER's non-fatal errors at the last look.
    """

    health: GpuHealth | None = None
    pci: PciHealth | None = None
    before: GpuHealth | None = None
    expected_nvlinks: int = 0
    baselines: Mapping[str, int] | None = None
    nonfatal_before: int | None = None


def find_worst(findings: Iterable[Finding]) -> Finding | None:
    """Returns one finding with the worst state and the words of all that are not well; None for none."""
    ranked = sorted(findings, key=lambda finding: WORST_FIRST.index(finding.state))
    if not ranked:
        return None
    ill = [finding for finding in ranked if finding.state != "healthy"]
    if not ill:
        return Finding("healthy", "; ".join(finding.reason for finding in ranked))
    actions = dict.fromkeys(finding.action for finding in ill if finding.action)
    return Finding(ill[0].state, "; ".join(finding.reason for finding in ill), "; ".join(actions), ill[0].permanence)


def judge_word(health: GpuHealth) -> Finding | None:
    """Returns what the driver itself says of the card as a whole, where that is no good."""
    if health.error:
        return Finding("unhealthy", f"the driver says: {health.error}", f"{RESET}; {RMA} if it returns", "permanent")
    if health.recovery:
        return Finding(
            "unhealthy", f"the driver asks to {health.recovery}", f"drain the host; {health.recovery}", "permanent"
        )
    return None


def judge_answers(part: Part, health: GpuHealth, siblings: Iterable[GpuHealth]) -> Iterable[Finding]:
    """Yields what is not known of a part: questions without an answer.

    Args:
        part: of the card, or "device" for the card as a whole.
        health: of the card.
        siblings: the health of the other cards of its kind here. What one of them has, this card has too.
    """
    if health.error:
        return
    names = [name for name, question in QUESTIONS.items() if part in question.parts and name in health.answers]
    errors: dict[str, None] = {}
    for name in names:
        function, came = QUESTIONS[name].function, health.answers[name]
        if came == ABSENT:
            if any(sibling.answers.get(name) == ANSWERED for sibling in siblings):
                errors[f"{function} is not supported here, but on another card of its kind"] = None
        elif came != ANSWERED:
            errors[f"{function} failed: {came}"] = None
    if errors:
        yield Finding("unknown", "; ".join(errors), _UNANSWERED)
    elif part == "device" and replace(health, answers={}, is_computing=False, recovery=None) == GpuHealth():
        yield Finding("unknown", "the driver answers no question about its health", _UNANSWERED)


def judge_thermal(health: GpuHealth) -> Finding | None:
    """Returns how hot the card is by its own limits, and whether heat holds its clocks down; None: neither is told.

    A temperature without a limit to compare it with is unknown, whatever the driver says of the clocks.
    """
    heat = None if health.slowdowns is None else [cause for cause in health.slowdowns if cause != POWER_BRAKE]
    slowdowns = _judge_slowdowns(heat, "clocks are not held down by heat")
    temperatures = [*_judge_temperature(health), *_judge_margin(health)]
    if not temperatures and (health.temperature_celsius, health.margin_celsius) != (None, None):
        reason = "the driver gives a temperature, but no limit to compare it with"
        temperatures.append(Finding("unknown", reason, "see `nvidia-smi -q -d TEMPERATURE`; update the driver"))
    return find_worst((*temperatures, *slowdowns))


def judge_power(health: GpuHealth) -> Finding | None:
    """Returns whether want of power holds the card's clocks down, and what it may draw; None: it does not say.

    A limit below the one that it was delivered with is an operator's, and no fault.
    """
    brake = None if health.slowdowns is None else [cause for cause in health.slowdowns if cause == POWER_BRAKE]
    return find_worst((*_judge_slowdowns(brake, "no power brake"), *_tell_power_limit(health)))


def _tell_power_limit(health: GpuHealth) -> Iterable[Finding]:
    limit, default = health.power_limit_watts, health.power_default_watts
    if limit is None or health.slowdowns is None:
        return
    lowered = f", set below its own {default:.0f} W" if default is not None and limit < default else ""
    yield Finding("healthy", f"draws at most {limit:.0f} W{lowered}")


def _judge_temperature(health: GpuHealth) -> Iterable[Finding]:
    now, slow, off = health.temperature_celsius, health.slowdown_celsius, health.shutdown_celsius
    if now is None:
        return
    if off is not None and now >= off:
        yield _tell_shutdown(f"at {off} °C or more")
    elif slow is not None and now >= slow:
        yield Finding("degraded", f"{now} °C; it slows down from {slow} °C", _COOLING, "transient")
    elif slow is not None or off is not None:
        limit = f"slows down from {slow} °C" if slow is not None else f"shuts down at {off} °C"
        yield Finding("healthy", f"{now} °C, {limit}")


def _judge_margin(health: GpuHealth) -> Iterable[Finding]:
    """Yields the same by what is left; at or below 0, only the card's own limits tell what that means."""
    left, slow, off = health.margin_celsius, health.slowdown_margin_celsius, health.shutdown_margin_celsius
    if left is None:
        return
    words = f"{left} °C left to the limit that its clocks are kept by"
    if off is not None and left <= off:
        yield _tell_shutdown(f"{off} °C or less left to the limit that its clocks are kept by")
    elif slow is not None and left <= slow:
        yield Finding("degraded", f"{words}; its hardware slows it down from {slow} °C", _COOLING, "transient")
    elif slow is not None or left > 0:
        yield Finding("healthy", words)


def _tell_shutdown(where: str) -> Finding:
    """Says it without the degrees of now: a node that is drained for a reason is not to have a new one at each look."""
    return Finding("unhealthy", f"{where}: it shuts down there", f"drain the host; {_COOLING}", "transient")


def _judge_slowdowns(causes: Collection[str] | None, none: str) -> Iterable[Finding]:
    if causes is None:
        return
    if not causes:
        yield Finding("healthy", none)
    for cause in causes:
        yield Finding("degraded", f"clocks are held down: {cause}", _SLOWDOWN_ACTIONS.get(cause, ""), "transient")


def judge_memory(health: GpuHealth, *, acknowledged: int = 0) -> Finding | None:
    """Returns what the card's memory has been through; None: it does not say.

    Args:
        health: of the card.
        acknowledged: uncorrectable errors that an operator has dealt with; fewer now: the driver counts anew.
    """
    return find_worst((*_judge_ecc(health, acknowledged), *_judge_retirement(health)))


def _judge_ecc(health: GpuHealth, acknowledged: int) -> Iterable[Finding]:
    count = health.uncorrectable_count
    if count is None:
        return
    lifetime = health.uncorrectable_lifetime_count
    ever = "" if lifetime is None else f", {lifetime} in its life"
    if count > (acknowledged if acknowledged <= count else 0):
        reason = f"{count} uncorrectable ECC errors since the driver was loaded{ever}"
        yield Finding("unhealthy", reason, f"{RESET}; {RMA} if more come", "permanent")
    else:
        yield Finding("healthy", f"no {'new ' if count else ''}uncorrectable ECC errors{ever}")


def _judge_retirement(health: GpuHealth) -> Iterable[Finding]:
    if health.remap_failed:
        yield Finding(
            "unhealthy", "a memory row could not be remapped: no spare is left", f"drain the GPU; {RMA}", "permanent"
        )
    if health.remap_pending:
        yield Finding("degraded", "a memory row waits to be remapped", "reset the GPU at the next chance", "permanent")
    if health.retirement_pending:
        yield Finding("degraded", "memory pages wait to be retired", "reset the GPU at the next chance", "permanent")


def judge_link(view: LinkView) -> Finding | None:
    """Returns how a device is joined to its host and its peers; None: no source says."""
    return find_worst((*_judge_pcie(view), *_judge_errors(view), *_judge_nvlinks(view)))


def _judge_pcie(view: LinkView) -> Iterable[Finding]:
    """Width always counts; the generation only of a card at work: an idle one slows its link to save power."""
    health, pci = view.health or GpuHealth(), view.pci or PciHealth()
    width, most = health.pcie_width or pci.width, health.pcie_most_width or pci.most_width
    generation, highest = health.pcie_generation, health.pcie_most_generation
    if width is not None and most is not None:
        if width < most:
            yield Finding("degraded", f"PCIe link of {width} lanes; card and slot have {most}", _RESEAT, "permanent")
        else:
            yield Finding("healthy", f"PCIe link of {width} lanes")
    is_at_work = health.is_computing and health.performance_state == 0
    if is_at_work and generation and highest and generation < highest:
        reason = f"PCIe link of generation {generation} while at work; card and slot have {highest}"
        yield Finding("degraded", reason, _RESEAT, "permanent")


def _judge_errors(view: LinkView) -> Iterable[Finding]:
    pci, baselines = view.pci or PciHealth(), view.baselines or {}
    if pci.fatal_count is not None:
        new = pci.fatal_count - baselines.get("fatal", 0)
        if new > 0:
            reason = f"{new} fatal PCIe errors (AER), {pci.fatal_count} since boot"
            yield Finding("unhealthy", reason, f"drain the device; {_RESEAT}", "permanent")
        else:
            yield Finding("healthy", "no new fatal PCIe errors")
    if pci.nonfatal_count is not None and view.nonfatal_before is not None:
        more = pci.nonfatal_count - view.nonfatal_before
        if more > 0:
            reason = f"{more} uncorrectable PCIe errors (AER, not fatal) since the last look"
            yield Finding("degraded", reason, f"if it goes on, {_RESEAT}", "transient")


def _judge_nvlinks(view: LinkView) -> Iterable[Finding]:
    health = view.health
    if health is None or health.nvlinks_active is None:
        return
    active, most = health.nvlinks_active, max(health.nvlinks_active, view.expected_nvlinks)
    if active < most:
        action = "check nvidia-fabricmanager and the kernel log; reset the GPUs; reseat bridge or card if it stays"
        state: State = "degraded" if active else "unhealthy"
        yield Finding(state, f"{active} of {most} NVLinks are up", action, "permanent")
    elif active:
        yield Finding("healthy", f"{active} NVLinks are up")
    grown = _count_growth(health.nvlink_errors, view.before.nvlink_errors if view.before else {})
    recoveries, retries = grown.pop("recovery", 0), sum(grown.values())
    action = "watch it; if it goes on, drain the host and have the NVLink bridge, cable or card looked at"
    if recoveries:
        yield Finding("degraded", f"NVLinks recovered {recoveries} times since the last look", action, "transient")
    if retries > FEW_RETRIES:
        reason = f"{retries} replays and CRC errors on NVLinks since the last look"
        yield Finding("degraded", reason, action, "transient")


def _count_growth(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Returns by how much each counter grew; one that was not told before, or fell back, did not."""
    return {name: max(0, count - before[name]) for name, count in now.items() if name in before}
