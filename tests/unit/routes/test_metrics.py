"""What /metrics says of an agent in memory: a board, the view of a recorded machine, records, the state of a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from meshwright.errors import UnavailableError
from meshwright.wire.bench import BenchRecord
from meshwright.wire.devices import Devices
from meshwright_agent.health.events import Finding
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.metrics import RELEASE_DURATION, RUN_DURATION
from meshwright_agent.routes.metrics import HEALTH_STATES, MAX_LISTED, build_registry, observe_request
from tests.fakes.machines import plant_machine
from tests.fakes.stored import EPOCH, ManualClock, build_record

INFO = "meshwright_device_info"
Labels = dict[str, str]
Samples = list[tuple[Labels, float]]


def build_child(**parts: Any) -> Any:
    return SimpleNamespace(**{"state": "stopped", "crash_count": 0, "abandoned_pids": ()} | parts)


@dataclass
class MemoryAgent:
    """The parts of an agent that a scrape reads."""

    seen: Devices | None = None
    records: tuple[BenchRecord, ...] = ()
    is_ready: bool = True
    clock: ManualClock = field(default_factory=ManualClock)
    health: HealthRegistry = field(default_factory=lambda: HealthRegistry(stale_after_s=60))
    device: Any = field(default_factory=lambda: build_child(state="ready"))
    probe: Any = field(default_factory=lambda: build_child())
    planner: Any = field(default_factory=lambda: build_child())
    large_planner: Any = field(default_factory=lambda: build_child())
    runs: Any = field(default_factory=lambda: SimpleNamespace(queued_count=2, running=(object(),)))
    store: Any = field(default_factory=lambda: SimpleNamespace(failure_count=0))
    registry: Any = field(default_factory=lambda: SimpleNamespace(active=lambda: ()))

    @property
    def children(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("device", "probe", "planner", "large_planner")}

    def readiness(self) -> tuple[bool, str]:
        return self.is_ready, "because"

    def _see_devices(self) -> Devices:
        if self.seen is None:
            raise UnavailableError("nothing is known yet")
        return self.seen

    @property
    def host(self) -> Any:
        return SimpleNamespace(devices=self._see_devices)

    @property
    def benches(self) -> Any:
        return SimpleNamespace(newest_records=lambda: self.records)


def _scrape(agent: MemoryAgent) -> str:
    return generate_latest(build_registry(agent)).decode()  # type: ignore[arg-type]


def _samples(text: str, name: str) -> Samples:
    families = text_string_to_metric_families(text)
    return [(dict(s.labels), s.value) for family in families for s in family.samples if s.name == name]


def _value(text: str, name: str, **labels: str) -> float | None:
    found = [value for seen, value in _samples(text, name) if labels.items() <= seen.items()]
    assert len(found) <= 1, found
    return found[0] if found else None


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Devices:
    return plant_machine("dgx-h100", tmp_path_factory.mktemp("dgx")).view()


def _build_busy(dgx: Devices) -> MemoryAgent:
    matmul = build_record(case="matmul", name="matmul_jax", axis=None, axis_size=None, flops_per_s=1e12)
    agent = MemoryAgent(seen=dgx, records=(build_record(busbw_bytes_per_s=2e9, algbw_bytes_per_s=1e9), matmul))
    agent.health.report("worker", Finding("healthy", ""), at=EPOCH)
    RUN_DURATION.labels("bench", "succeeded").observe(3.1)
    RELEASE_DURATION.labels("released").observe(0.18)
    observe_request("/devices", "GET", 200, 0.003)
    return agent


def test_a_device_is_named_by_the_labels_that_dcgm_exporter_has(dgx: Devices) -> None:
    text = _scrape(_build_busy(dgx))
    first = dgx.devices[0]
    labels, value = _samples(text, "meshwright_device_info")[0]
    assert (len(_samples(text, "meshwright_device_info")), value) == (8, 1)
    assert labels == {
        "gpu": "0", "UUID": first.uuid, "pci_bus_id": "00000000:1B:00.0", "device": "nvidia0",
        "modelName": first.kind, "Hostname": first.host, "platform": "gpu",
    }  # fmt: skip
    assert first.pci_bus_id == "0000:1b:00.0"


def test_instances_of_a_card_have_its_address_and_device_and_a_uuid_of_their_own(tmp_path: Path) -> None:
    text = _scrape(MemoryAgent(seen=plant_machine("mig-a100", tmp_path).view()))
    labels = [labels for labels, _ in _samples(text, INFO)]
    assert [each["device"] for each in labels] == ["nvidia0", "nvidia0", "nvidia0", "nvidia1", "nvidia2"]
    assert len({each["pci_bus_id"] for each in labels}) == 3
    assert len({each["UUID"] for each in labels}) == 5


def test_a_device_that_dcgm_exporter_does_not_know_has_no_number_of_its(dgx: Devices) -> None:
    declared = dgx.devices[0].model_copy(update={"attributes": {}, "pci_bus_id": None})
    chip = dgx.devices[1].model_copy(update={"platform": "tpu"})
    text = _scrape(MemoryAgent(seen=dgx.model_copy(update={"devices": (declared, chip)})))
    assert [labels["device"] for labels, _ in _samples(text, INFO)] == ["", ""]
    assert _samples(text, INFO)[0][0]["pci_bus_id"] == ""


def test_of_thousands_of_devices_none_is_listed(dgx: Devices) -> None:
    few = _scrape(MemoryAgent(seen=dgx))
    many = dgx.model_copy(update={"devices": dgx.devices * (MAX_LISTED // len(dgx.devices) + 1)})
    assert len(_samples(few, "meshwright_device_info")) == len(dgx.devices)
    assert _samples(_scrape(MemoryAgent(seen=many)), "meshwright_device_info") == []


def test_memory_is_the_devices_own_in_bytes(dgx: Devices) -> None:
    text = _scrape(_build_busy(dgx))
    for device in dgx.devices:
        assert device.memory is not None
        gpu = str(device.local_index)
        assert _value(text, "meshwright_device_memory_capacity_bytes", gpu=gpu) == device.memory.capacity_bytes
        assert _value(text, "meshwright_device_memory_used_bytes", gpu=gpu) == device.memory.used_bytes


def test_what_is_not_known_is_absent_and_not_zero(dgx: Devices) -> None:
    first, second, *others = dgx.devices
    assert second.memory is not None
    unused = second.memory.model_copy(update={"used_bytes": None})
    unknown = (first.model_copy(update={"memory": None}), second.model_copy(update={"memory": unused}), *others)
    text = _scrape(MemoryAgent(seen=dgx.model_copy(update={"devices": unknown})))
    assert [labels["gpu"] for labels, _ in _samples(text, "meshwright_device_memory_capacity_bytes")] == list("1234567")
    assert [labels["gpu"] for labels, _ in _samples(text, "meshwright_device_memory_used_bytes")] == list("234567")
    assert _samples(text, "meshwright_bench_age_seconds") == []


def test_memory_in_use_is_left_out_while_nobody_sees_the_device_or_its_driver_is_silent(tmp_path: Path) -> None:
    seen = plant_machine("dgx-h100", tmp_path).view()
    agent = MemoryAgent(seen=seen)
    used, capacity = "meshwright_device_memory_used_bytes", "meshwright_device_memory_capacity_bytes"
    agent.health.report("driver", Finding("healthy", ""), at=EPOCH)
    agent.health.report(f"device:{seen.devices[2].uuid}", Finding("unknown", ""), at=EPOCH)
    text = _scrape(agent)
    assert [labels["gpu"] for labels, _ in _samples(text, used)] == list("0134567")
    assert len(_samples(text, capacity)) == 8
    agent.health.report(f"device:{seen.devices[2].uuid}", Finding("unhealthy", "XID 79"), at=EPOCH)
    agent.health.report("driver", Finding("unknown", "it does not answer"), at=EPOCH)
    text = _scrape(agent)
    assert _samples(text, used) == []
    assert len(_samples(text, capacity)) == 8
    agent.health.report("driver", Finding("healthy", ""), at=EPOCH)
    assert len(_samples(_scrape(agent), used)) == 8


def test_memory_in_use_that_a_worker_told_before_it_ended_is_left_out(dgx: Devices) -> None:
    first, *others = dgx.devices
    assert first.memory is not None
    cached = first.model_copy(update={"memory": first.memory.model_copy(update={"basis": "cached"})})
    text = _scrape(MemoryAgent(seen=dgx.model_copy(update={"devices": (cached, *others)})))
    used = _samples(text, "meshwright_device_memory_used_bytes")
    assert [labels["gpu"] for labels, _ in used] == list("1234567")
    assert len(_samples(text, "meshwright_device_memory_capacity_bytes")) == 8


def test_a_component_that_was_not_seen_for_too_long_is_unknown_in_the_metrics_as_well() -> None:
    agent = MemoryAgent()
    agent.health.expect(["store"])
    agent.health.report("device:0", Finding("healthy", ""), at=EPOCH)
    _assert_states(_scrape(agent), {"store": "initializing", "device:0": "healthy"})
    agent.clock.advance(61)
    _assert_states(_scrape(agent), {"store": "initializing", "device:0": "unknown"})


def _assert_states(text: str, expected: dict[str, str]) -> None:
    found = _samples(text, "meshwright_component_health")
    assert len(found) == len(expected) * len(HEALTH_STATES)
    assert {s["component"]: s["state"] for s, value in found if value == 1} == expected


def test_records_of_other_devices_are_series_of_their_own(dgx: Devices) -> None:
    """The store keeps the newest record of each set of devices: two of one case must not fall on one series."""
    records = tuple(build_record(device_indices=pair, busbw_bytes_per_s=1e9 + pair[0]) for pair in ((0, 1), (2, 3)))
    text = _scrape(MemoryAgent(records=records))
    found = _samples(text, "meshwright_bench_bus_bandwidth_bytes_per_second")
    assert len(found) == 2
    assert len({tuple(sorted(labels.items())) for labels, _ in found}) == 2


# ---- requests -------------------------------------------------------------------------------------------------------


def test_made_up_methods_fall_on_one_series() -> None:
    for number in range(20):
        observe_request("made-up", f"X{number}", 405, 0.1)
    found = _samples(_scrape(MemoryAgent()), "meshwright_http_requests_total")
    assert [value for labels, value in found if labels["route"] == "made-up"] == [20]
