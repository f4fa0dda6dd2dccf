from __future__ import annotations

from pathlib import Path
from typing import Any

from meshwright.topology.links import format_links
from meshwright.topology.targets import build_target
from meshwright.wire.devices import Devices
from tests.fakes.hosts import build_devices
from tests.fakes.machines import plant_machine


def change(seen: Devices, **fields: Any) -> Devices:
    return seen.model_copy(update=fields)


def test_links_of_more_devices_are_counted_by_kind() -> None:
    many = build_target("9*h100:8")
    seen = change(build_devices("h100:8"), devices=many.devices, links=many.links)
    assert format_links(seen) == ["links   252 × NV18 (between 72 devices)"]
    assert format_links(change(seen, links=())) == ["links   none listed (between 72 devices)"]


def test_numa_nodes_say_how_far_their_memories_are(tmp_path: Path) -> None:
    seen = plant_machine("pcie-a100", tmp_path).view()
    far = [node.model_copy(update={"distances": (10, 21) if node.node == 0 else None}) for node in seen.numa_nodes[:2]]
    lines = format_links(change(seen, numa_nodes=tuple(far)))
    assert lines[-1] == "NUMA0 to memory of each node: 10 21 (10 is its own)"
    assert not any("NUMA0" in line for line in format_links(change(seen, numa_nodes=tuple(far[:1]))))
