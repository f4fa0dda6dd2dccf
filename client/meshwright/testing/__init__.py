"""For your own tests: an agent without a process, a network or a device.

    from meshwright.testing import FakeAgent

    fake = FakeAgent("h100:8")
    with fake.client() as client:
        assert client.plan("dp:2,tp:4").mesh_shape == {"dp": 2, "tp": 4}

Plans, batch sizes and environments are the real ones, computed here; hardware and bench figures are made up.
"""

from __future__ import annotations

from meshwright.testing.agent import FakeAgent
from meshwright.testing.hardware import build_devices

__all__ = ["FakeAgent", "build_devices"]
