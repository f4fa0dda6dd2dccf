"""What is to be said of the driver, from what could not be read of a host. Pure.

Rule: each kind of problem has its own words on what to do; the driver is `unhealthy` only where it serves no card that
is here, and `unknown` where the agent may be the one that is kept from seeing: no card was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.wire.health import Permanence, State
from meshwright_agent.facts.model import Problem, ProblemKind
from meshwright_agent.health.diagnosis import Finding, find_worst


@dataclass(frozen=True)
class ProblemRule:
    """What one kind of problem means. `permanence`: None where both are usual."""

    state: State
    action: str
    permanence: Permanence | None = None


RULES: Final[Mapping[ProblemKind, ProblemRule]] = {
    "driver_down": ProblemRule(
        "unhealthy",
        "drain the host; look for NVRM in the kernel log, load or reinstall the driver, or reboot",
        "permanent",
    ),
    "unreadable": ProblemRule(
        "unknown", "give the agent NVIDIA's library and the cards' device files, then restart it", "permanent"
    ),
    "no_library": ProblemRule("unknown", "pip install nvidia-ml-py where the agent runs", "permanent"),
    "refused": ProblemRule("degraded", "look for NVRM in the kernel log; reset the GPU or reboot the host"),
    "unanswered": ProblemRule(
        "degraded", "look for NVRM in the kernel log; `meshwright-agent doctor` tells which driver and library are here"
    ),
    "fabric": ProblemRule("degraded", "check nvidia-fabricmanager and the kernel log"),
    "no_instances": ProblemRule(
        "degraded",
        "make MIG instances (nvidia-smi mig -cgi PROFILE -C), or end MIG mode (nvidia-smi -mig 0)",
        "permanent",
    ),
    "no_tpu_driver": ProblemRule("degraded", "load vfio-pci, or the accel driver, and bind it to the TPU", "permanent"),
}


def judge_driver(problems: Iterable[Problem]) -> Finding:
    """Returns how the driver is: what could not be read, in the order in which it was met, and what to do about it."""
    findings = [_judge_problem(problem) for problem in problems]
    return find_worst(findings) or Finding("healthy", "driver, sysfs and /proc answer")


def _judge_problem(problem: Problem) -> Finding:
    rule = RULES[problem.kind]
    return Finding(rule.state, problem.text, rule.action, rule.permanence)
