"""The agent that runs on a host: processes, facts, routes. `meshwright` (the client) is what people import."""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("meshwright")
