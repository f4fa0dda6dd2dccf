"""The listener: waits for XIDs as NVML's events. Runs in the child, as `python -m meshwright_agent.worker.listener`.

Rule: the cards are open from the first call until this process ends, or until NVML says an error; whoever wants them
free ends the process, which needs no word of the driver. One that hangs in the driver hangs alone.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from meshwright_agent.facts.nvidia import find_nvml
from meshwright_agent.facts.xid_events import XidEvents
from meshwright_agent.worker.child import CallContext, Handler, serve

KIND: Final = "listener"


def read_hello() -> dict[str, Any]:
    """Returns nothing: the cards are opened when that is asked for."""
    return {}


def build_handlers() -> dict[str, Handler]:
    """Returns the operations, which share one set of events."""
    kept: list[XidEvents] = []

    def events() -> XidEvents:
        if not kept:
            kept.append(XidEvents(find_nvml()))
        return kept[0]

    def listen(_arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
        """Opens the cards; returns {"cards": PCI addresses of those that tell XIDs}."""
        return {"cards": list(events().open())}

    def wait(arguments: dict[str, Any], _context: CallContext) -> dict[str, Any]:
        """Returns {"xids": […]}, those that came within `limit_s`, as soon as there is one."""
        events().open()
        try:
            return {"xids": [asdict(xid) for xid in events().wait(float(arguments["limit_s"]))]}
        except BaseException:
            events().close()
            raise

    return {"listen": listen, "wait": wait}


if __name__ == "__main__":
    serve(KIND, read_hello, build_handlers())
