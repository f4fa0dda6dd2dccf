"""The examination of a host: what is here is gathered, then each check says what it finds, most basic first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from meshwright_agent.doctor.checks import CHECKS, SIMULATED_CHECKS
from meshwright_agent.doctor.findings import Finding
from meshwright_agent.doctor.surroundings import Surroundings, gather
from meshwright_agent.settings import Settings


def examine(settings: Settings, environ: Mapping[str, str] | None = None, *, owner: str = "") -> list[Finding]:
    """Returns the findings for this host, most basic first.

    Args:
        settings, environ: what an agent would have.
        owner: the agent that runs on this host, in words; JAX is not started beside it.
    """
    return judge(asyncio.run(gather(settings, os.environ if environ is None else environ, owner)))


def judge(here: Surroundings) -> list[Finding]:
    """Returns what all checks say of the surroundings; of an agent that simulates, those that concern it."""
    checks = SIMULATED_CHECKS if here.settings.simulate else CHECKS
    return [finding for check in checks if (finding := check(here)) is not None]
