"""The probe: reads drivers, sysfs and /proc. Runs in a child, as `python -m meshwright_agent.children.probe`.

Rule: nothing is held open between calls. If the probe hangs, the agent abandons the process and continues. It does not
import jax, and imports a driver's library only for a call.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from meshwright_agent.children.child import CallContext, serve
from meshwright_agent.facts.model import HostFacts, build_json
from meshwright_agent.facts.nvml import find_nvml
from meshwright_agent.facts.probe import LogPlace, read_holders, read_host_facts
from meshwright_agent.facts.sysfs import Roots


def parse_roots(arguments: dict[str, Any]) -> Roots:
    """Returns the roots to read, with the probe's own environment."""
    return Roots(Path(arguments.get("root", "/")), environ=dict(os.environ))


def parse_log(arguments: dict[str, Any]) -> LogPlace | None:
    """Returns the place of the kernel log and the last record read; None: do not read it."""
    path = arguments.get("kernel_log")
    if not path:
        return None
    return LogPlace(Path(path), arguments.get("kernel_log_after"), arguments.get("boot_id"))


def facts(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
    """Returns `HostFacts` as JSON. The progress has the kernel log, in case that the driver hangs."""

    def send(early: HostFacts) -> None:
        context.progress(build_json(early))

    found = read_host_facts(parse_roots(arguments), nvml=find_nvml(), log=parse_log(arguments), on_log=send)
    return build_json(found)


def holders(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns the current holders of devices, as {"holders": […]}; null if they are unknown."""
    found = read_holders(parse_roots(arguments), nvml=find_nvml())
    return {"holders": None if found is None else [holder.model_dump(mode="json") for holder in found]}


if __name__ == "__main__":
    serve("probe", lambda: None, {"facts": facts, "holders": holders})
