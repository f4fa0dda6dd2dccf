"""Hosts of a fleet as fake agents."""

from __future__ import annotations

from meshwright.testing import FakeAgent


def build_fakes(*names: str, what: str = "cpu:4") -> dict[str, FakeAgent]:
    """One fake agent a host, by the address that a fleet has for it."""
    return {f"http://{name}:8790": FakeAgent(what, host=name) for name in names}
