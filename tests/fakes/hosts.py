"""Hosts as their agents would show them, with made-up identities: those of `FakeAgent`."""

from __future__ import annotations

from datetime import UTC, datetime

from meshwright.testing import FakeAgent
from meshwright.wire.devices import Devices


def build_devices(target: str, *, host: str = "fake-host", at: datetime | None = None) -> Devices:
    """Returns the reply of `GET /devices`; hosts of different names have different identities."""
    return FakeAgent(target, host=host, clock=lambda: at or datetime.now(UTC)).devices
