"""The agent that runs on a host: processes, facts, routes. Users import `meshwright`, the client."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("meshwright")
