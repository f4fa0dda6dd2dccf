"""Hosts of a fleet as fake agents."""

from __future__ import annotations

from meshwright.testing import FakeAgent, build_devices


def build_fakes(*names: str, what: str = "cpu:4") -> dict[str, FakeAgent]:
    """One fake agent a host, by the address that a fleet has for it."""
    return {f"http://{name}:8790": FakeAgent(build_devices(what, host=name)) for name in names}
