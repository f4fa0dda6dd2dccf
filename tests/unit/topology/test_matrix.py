from __future__ import annotations

from typing import Any

from meshwright.topology.links import format_links
from meshwright.topology.targets import build_target
from meshwright.wire.devices import Devices
from tests.fakes.hosts import build_devices


def change(seen: Devices, **fields: Any) -> Devices:
    return seen.model_copy(update=fields)


def test_links_of_more_devices_are_counted_by_kind() -> None:
    many = build_target("9*h100:8")
    seen = change(build_devices("h100:8"), devices=many.devices, links=many.links)
    assert format_links(seen) == ["links   252 × NV18 (between 72 devices)"]
    assert format_links(change(seen, links=())) == ["links   none listed (between 72 devices)"]
