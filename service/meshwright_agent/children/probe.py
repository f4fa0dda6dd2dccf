"""The probe: asks drivers, sysfs and /proc. Runs in the child, as `python -m meshwright_agent.children.probe`.

Rule: nothing is held open between calls, and whatever hangs here hangs alone: the agent abandons the process
and goes on. Imports neither jax nor a driver's library before it is asked.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from meshwright_agent.children.child import CallContext, serve
from meshwright_agent.facts.model import build_json
from meshwright_agent.facts.nvml import find_nvml
from meshwright_agent.facts.probe import LogPlace, read_holders, read_host_facts
from meshwright_agent.facts.sysfs import Roots

KIND: Final = "probe"


def parse_roots(arguments: dict[str, Any]) -> Roots:
    """Returns where to look, with the probe's own environment."""
    return Roots(Path(arguments.get("root", "/")), environ=dict(os.environ))


def parse_log(arguments: dict[str, Any]) -> LogPlace | None:
    """Returns where the kernel log is and how far it was looked at; None: it is not to be read."""
    path = arguments.get("kernel_log")
    if not path:
        return None
    return LogPlace(Path(path), arguments.get("kernel_log_after"), arguments.get("boot_id"))


def facts(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns `HostFacts` as JSON."""
    found = read_host_facts(parse_roots(arguments), nvml=find_nvml(), log=parse_log(arguments))
    return build_json(found)


def holders(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
    """Returns who holds a device now, as {"holders": […]}; null where that could not be looked at."""
    found = read_holders(parse_roots(arguments), nvml=find_nvml())
    return {"holders": None if found is None else [holder.model_dump(mode="json") for holder in found]}


if __name__ == "__main__":
    serve(KIND, lambda: None, {"facts": facts, "holders": holders})
