"""HealthMonitor over several looks: parts and devices, faults of the kernel log, who is missing, an operator's word."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pynvml
import pytest

from meshwright.topology.chips import parse_chip_count
from meshwright.wire.devices import Worker
from meshwright.wire.health import Component, HealthEvent
from meshwright_agent.facts.model import HostFacts, KernelLog, PciHealth, SliceFacts, Xid
from meshwright_agent.health.events import History
from meshwright_agent.health.monitor import HealthMonitor
from meshwright_agent.health.registry import HealthRegistry
from meshwright_agent.host.snapshot import HostSnapshot, JaxReport
from tests.fakes.machines import RECORDED, Machine, plant_machine
from tests.fakes.nvml import FakeNvml
from tests.fakes.stored import ManualClock
from tests.fakes.well import WELL
from tests.unit.store.opening import build_closed_store

UUID = "GPU-6a3f10d0-5b1e-4c0a-9d6f-00000020c1a0"
ADDRESS = "0000:1b:00.0"
UNCHECKED = {"kernel_log", "nic:mlx5_2:1", "nic:mlx5_8:1"}
"""What is left alone: no log is read, and these ports have no cable."""


class Scene:
    """A host of eight cards that are well, looked at when told; `restart` is an agent that begins anew."""

    cpu_devices: int | None = None
    jax: JaxReport | None = None

    def __init__(self, folder: Path, expect: str = "", machine: str = "dgx-h100") -> None:
        self.machine: Machine = plant_machine(machine, folder)
        document = json.loads((RECORDED / machine / "nvml.json").read_text())
        self.nvml = FakeNvml(copy.deepcopy(document))
        for index in range(len(document["gpus"])):
            self.nvml.change_gpu(index, **WELL)
        self.clock = ManualClock()
        self.expect = expect
        self.dump: str | None = None
        self.start()

    def start(self) -> None:
        history = self.history = History(build_closed_store(), clock=self.clock)
        if self.dump is not None:
            history.memory.load(self.dump)
        self.registry = HealthRegistry(stale_after_s=120, on_change=history.record_change, memory=history.memory)
        expected = parse_chip_count(self.expect) if self.expect else None
        self.monitor = HealthMonitor(self.registry, history, expected)
        self.monitor.recall(self.clock.now())
        self.before: HostFacts | None = None

    def restart(self) -> None:
        self.dump = self.history.memory.dump()
        self.start()

    def read(self) -> HostFacts:
        return Machine(self.machine.roots, self.nvml).read()

    def look(self, facts: HostFacts | None = None, *xids: Xid, **changes: Any) -> HostFacts:
        self.clock.advance(30)
        facts = replace(facts or self.read(), **{"kernel_log": KernelLog(xids, len(xids)), **changes})
        self.monitor.report_facts(facts, self.before, self.devices(facts), self.clock.now())
        self.before = facts
        return facts

    def devices(self, facts: HostFacts) -> Any:
        now = self.clock.now()
        worker = Worker(state="stopped", generation=0, since=now)
        view = HostSnapshot(worker, facts=facts, facts_at=now, cpu_devices=self.cpu_devices, jax=self.jax)
        return view.devices(now)

    def bench(self, *indices: int, correct: bool, case: str = "matmul") -> None:
        """Tells of a bench on these cards; without any, on the first."""
        chosen = list(indices) or [0]
        record = {"case": case, "correct": correct, "wrong_elements": 0 if correct else 3, "device_indices": chosen}
        record |= {"axis": None, "axis_size": None, "dtype": "bfloat16", "size_bytes": 1024}
        devices = [self.devices(self.before or self.read()).devices[index] for index in chosen]
        self.monitor.report_record(record, devices, self.clock.now())

    def acknowledge(self, name: str) -> None:
        facts = self.before
        devices = self.devices(facts) if facts else None
        self.monitor.acknowledge(name, self.clock.now(), facts=facts, facts_at=self.clock.now(), devices=devices)

    def state(self, name: str) -> str:
        return self.registry.state(name, self.clock.now())

    def component(self, name: str) -> Component:
        return self.registry.component(name, self.clock.now())

    def ill(self) -> set[str]:
        return {name for name in self.registry.names() if self.state(name) not in ("healthy", "initializing")}

    def events(self, name: str) -> list[HealthEvent]:
        return [event for event in self.history._waiting if event.component == name]


def without(facts: HostFacts, *places: int) -> HostFacts:
    return replace(facts, gpus=tuple(gpu for place, gpu in enumerate(facts.gpus) if place not in places))


def with_fatal(scene: Scene, count: int) -> HostFacts:
    """Returns facts in which the bus has counted so many fatal errors of the first card."""
    found = scene.read()
    return replace(found, gpus=(replace(found.gpus[0], pci=PciHealth(fatal_count=count)), *found.gpus[1:]))


def hit(code: int, text: str = "") -> Xid:
    return Xid(code, ADDRESS, age_s=5.0, text=text)


# ---- parts and devices ----------------------------------------------------------------------------------------------


def test_a_host_that_is_well_has_each_part_of_each_card_and_all_are_healthy(scene: Scene) -> None:
    scene.look()
    assert scene.ill() == set()
    for part in ("device", "thermal", "memory", "link"):
        assert scene.state(f"{part}:{UUID}") == "healthy"
    assert len(scene.registry.names()) == 8 * 4 + 12 + 4  # network ports; worker, driver, inventory, kernel_log
    assert scene.state("inventory") == "healthy"


@pytest.mark.parametrize(("fields", "part", "state", "device"), [
    ({"temperature": 88}, "thermal", "degraded", "healthy"), ({"temperature": 92}, "thermal", "unhealthy", "unhealthy"),
    ({"clocks": 0x40}, "thermal", "degraded", "healthy"), ({"clocks": 0x80}, "thermal", "degraded", "healthy"),
    ({"ecc": [1, 1]}, "memory", "unhealthy", "unhealthy"),
    ({"remapped": [0, 1, 1, 0]}, "memory", "degraded", "healthy"),
    ({"remapped": [0, 1, 0, 1]}, "memory", "unhealthy", "unhealthy"),
    ({"pcie": [8, 16, 5, 5]}, "link", "degraded", "healthy"),
    ({"nvlinks": ["switch"] * 17 + [None]}, "link", "degraded", "healthy"),
])  # fmt: skip
def test_an_unhealthy_part_makes_its_device_so_and_no_other(
    scene: Scene, fields: dict[str, Any], part: str, state: str, device: str
) -> None:
    scene.look()
    scene.nvml.change_gpu(0, **fields)
    scene.look()
    assert scene.state(f"{part}:{UUID}") == state
    assert scene.state(f"device:{UUID}") == device
    assert scene.ill() == {f"{part}:{UUID}"} | ({f"device:{UUID}"} if device != "healthy" else set())
    scene.nvml.change_gpu(0, **{**WELL, "nvlinks": ["switch"] * 18})
    scene.look()
    assert scene.ill() == set()
    assert [event.state for event in scene.events(f"{part}:{UUID}")] == ["healthy", state, "healthy"]


@pytest.mark.parametrize(("recovery", "state", "words"), [
    (1, "unhealthy", "drain the host; reset the GPU"), (3, "unhealthy", "disable UVM persistence mode"),
    (4, "degraded", "take no new work on the GPU, and reset it"), (99, "unhealthy", "NVIDIA's documentation"),
])  # fmt: skip
def test_a_card_that_the_driver_wants_reset_says_so(scene: Scene, recovery: int, state: str, words: str) -> None:
    scene.nvml.change_gpu(0, recovery=recovery)
    scene.look()
    seen = scene.component(f"device:{UUID}")
    assert (seen.state, words in seen.action) == (state, True)


def test_a_bench_that_came_out_right_does_not_outvote_the_driver(scene: Scene) -> None:
    scene.nvml.change_gpu(0, ecc=[1, 1])
    scene.look()
    scene.bench(0, 1, correct=True)
    assert scene.ill() == {f"memory:{UUID}", f"device:{UUID}"}


def test_what_a_card_stops_telling_is_unknown_until_it_tells_again_or_is_gone(scene: Scene) -> None:
    scene.look()
    scene.nvml.change_gpu(0, temperature=None, thresholds=None, clocks=None)
    for _ in range(2):
        scene.look()
        assert scene.ill() == {f"thermal:{UUID}", f"device:{UUID}"}
        seen = scene.component(f"thermal:{UUID}")
        assert (seen.state, "on another card of its kind" in seen.reason) == ("unknown", True)
    scene.nvml.change_gpu(0, **WELL)
    facts = scene.look()
    assert scene.ill() == set()
    scene.look(without(facts, 0))
    assert f"thermal:{UUID}" not in scene.registry.names()
    assert scene.state(f"device:{UUID}") == "unhealthy"


def test_the_parts_of_a_divided_card_are_its_instances(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine="mig-a100")
    scene.nvml.change_gpu(0, ecc=[1, 1])
    scene.look()
    instances = {f"device:{gpu.key}" for gpu in scene.read().gpus if gpu.mig}
    assert len(instances) == 3
    assert scene.ill() >= instances
    assert sum(name.startswith("memory:") for name in scene.registry.names()) == 3  # one a card


def test_fatal_errors_on_the_bus_stand_until_acknowledged_but_old_ones_are_no_news(scene: Scene) -> None:
    scene.look(with_fatal(scene, 3))
    assert scene.ill() == set()
    scene.look(with_fatal(scene, 4))
    assert scene.ill() == {f"link:{UUID}", f"device:{UUID}"}
    scene.restart()
    scene.look(with_fatal(scene, 4))
    assert scene.state(f"link:{UUID}") == "unhealthy"
    scene.acknowledge(f"link:{UUID}")
    assert scene.ill() == set()


# ---- a driver that hangs --------------------------------------------------------------------------------------------


def test_a_driver_that_falls_silent_makes_all_that_only_it_knows_unknown_at_once(scene: Scene) -> None:
    scene.look()
    scene.monitor.report_silence("no answer within 10 s", scene.clock.now())
    assert scene.ill() == set(scene.registry.names()) - {"worker", "kernel_log"}
    seen = scene.component(f"device:{UUID}")
    assert (seen.state, "driver does not answer" in seen.reason) == ("unknown", True)
    scene.look()
    assert scene.ill() == set()


def test_an_operators_word_makes_nothing_healthy_that_was_not_looked_at_since_the_start(scene: Scene) -> None:
    scene.look(None, hit(79))
    scene.restart()
    scene.acknowledge(f"device:{UUID}")
    assert {scene.state(name) for name in scene.registry.names()} == {"initializing"}
    scene.monitor.report_silence("no answer", scene.clock.now())
    scene.acknowledge(f"device:{UUID}")
    assert scene.state(f"device:{UUID}") == "unknown"
    scene.look()
    assert scene.ill() == set()


# ---- the kernel log -------------------------------------------------------------------------------------------------


def test_a_hardware_xid_stands_through_looks_and_restarts_until_a_word(scene: Scene) -> None:
    scene.look(None, hit(48))
    scene.look()
    assert scene.ill() == {f"device:{UUID}"}
    scene.restart()
    assert scene.state(f"device:{UUID}") == "unhealthy"
    scene.look()
    seen = scene.component(f"device:{UUID}")
    assert (seen.state, seen.permanence) == ("unhealthy", "permanent")
    assert "XID 48" in seen.reason
    scene.acknowledge(f"device:{UUID}")
    assert scene.ill() == set()
    scene.restart()
    scene.look()
    assert scene.ill() == set()


def test_equal_xids_of_one_look_are_one_event_with_their_number(scene: Scene) -> None:
    scene.look(None, hit(63), hit(63), hit(31))
    faults = [event for event in scene.events(f"device:{UUID}") if event.kind == "fault"]
    assert [event.code for event in faults] == ["xid_63", "xid_31"]
    assert "2 times" in faults[0].reason
    assert faults[0].at == scene.clock.now() - timedelta(seconds=5)
    assert scene.state(f"device:{UUID}") == "degraded"
    assert "2 times" in scene.component(f"device:{UUID}").reason


def test_an_xid_of_a_card_that_is_gone_is_that_cards(scene: Scene) -> None:
    scene.look()
    scene.look(without(scene.read(), 0), hit(79))
    assert "XID 79" in scene.component(f"device:{UUID}").reason
    assert f"device:{ADDRESS}" not in scene.registry.names()


@pytest.mark.parametrize(("hidden", "cpu_devices"), [(False, None), (True, None), (False, 4)])
@pytest.mark.parametrize("is_boot", [False, True])
def test_an_address_that_only_had_a_fault_goes_with_it(
    scene: Scene, hidden: bool, cpu_devices: int | None, is_boot: bool
) -> None:
    """The card was hidden from this agent, is not listed, or is not what `/devices` shows."""
    scene.cpu_devices = cpu_devices
    name = f"device:{UUID if cpu_devices else ADDRESS if hidden else '0000:99:00.0'}"
    facts = scene.look(
        without(scene.read(), 0) if hidden else None,
        replace(hit(79), pci_bus_id=ADDRESS if hidden or cpu_devices else "0000:99:00.0"),
    )
    assert scene.state(name) == "unhealthy"
    scene.restart() if is_boot else scene.acknowledge(name)
    scene.look(boot(scene.read()) if is_boot else facts)
    assert (name in scene.registry.names(), scene.ill()) == (False, set())


def test_a_log_that_cannot_be_read_is_degraded_and_forgets_no_fault(scene: Scene) -> None:
    scene.look(None, hit(48))
    scene.look(kernel_log=KernelLog(error="/dev/kmsg: Permission denied"))
    assert "Permission denied" in scene.component("kernel_log").reason
    assert scene.ill() == {"kernel_log", f"device:{UUID}"}
    assert scene.monitor.log_place["kernel_log_after"] == 1  # where the look that read it ended


# ---- who is missing -------------------------------------------------------------------------------------------------


def test_a_missing_card_is_named_and_stays_so_after_a_restart(scene: Scene) -> None:
    scene.look()
    scene.look(without(scene.read(), 0))
    for _ in range(2):
        assert scene.state(f"device:{UUID}") == "unhealthy"
        assert "7 of 8 devices" in scene.component("inventory").reason
        assert ADDRESS in scene.component("inventory").reason
        scene.restart()
        scene.look(without(scene.read(), 0))
    scene.look()
    assert scene.ill() == set()


def test_a_card_that_was_taken_out_is_forgotten_on_an_operators_word(scene: Scene) -> None:
    scene.look()
    scene.look(without(scene.read(), 0, 1))
    scene.acknowledge(f"device:{UUID}")
    assert f"device:{UUID}" not in scene.registry.names()
    assert scene.state("inventory") == "unhealthy"
    scene.acknowledge("inventory")
    assert scene.ill() == set()
    scene.restart()
    scene.look(without(scene.read(), 0, 1))
    assert scene.ill() == set()


@pytest.mark.parametrize("name", [f"device:{UUID}", "inventory"])
def test_a_missing_card_does_not_come_back_after_a_word_while_the_driver_is_silent(scene: Scene, name: str) -> None:
    scene.look()
    scene.look(without(scene.read(), 0))
    scene.monitor.report_silence("no answer", scene.clock.now())
    assert scene.state(f"device:{UUID}") == "unknown"
    scene.acknowledge(name)
    scene.monitor.report_silence("no answer", scene.clock.now())
    assert f"device:{UUID}" not in scene.registry.names()


def test_another_card_in_the_same_slot_is_no_missing_one(scene: Scene) -> None:
    facts = scene.look()
    first, *rest = facts.gpus
    scene.look(replace(facts, gpus=(replace(first, uuid="GPU-new"), *rest)))
    assert scene.ill() == set()
    assert f"device:{UUID}" not in scene.registry.names()
    assert scene.state("device:GPU-new") == "healthy"


NAMELESS = {f"nvmlDeviceGetUUID:{UUID}": 15}


@pytest.mark.parametrize("expect", ["", "h100:8"])
def test_a_card_that_does_not_tell_its_uuid_in_one_look_keeps_its_faults(tmp_path: Path, expect: str) -> None:
    scene = Scene(tmp_path, expect)
    scene.look(None, hit(79))
    scene.nvml.fail(NAMELESS)
    for _ in range(2):
        scene.look()
        assert scene.ill() == {f"device:{UUID}", f"device:{ADDRESS}", "driver"}  # plans know it by its address now
        assert scene.state("inventory") == "healthy"
        scene.restart()
    scene.nvml.fail({})
    scene.look()
    assert scene.ill() == {f"device:{UUID}"}
    assert f"device:{ADDRESS}" not in scene.registry.names()
    assert [fault.count for faults in scene.history.memory.faults.values() for fault in faults.values()] == [1]


def test_a_card_that_told_its_uuid_late_has_the_faults_that_it_had_by_its_address(scene: Scene) -> None:
    scene.nvml.fail(NAMELESS)
    scene.look(None, hit(79))
    assert f"device:{ADDRESS}" in scene.ill()
    scene.nvml.fail({})
    scene.look()
    assert scene.ill() == {f"device:{UUID}"}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_fault_of_an_address_is_that_of_the_card_that_has_it_again(scene: Scene, is_known: bool) -> None:
    if is_known:
        scene.look()
    scene.nvml.fail({f"nvmlDeviceGetPciInfo:{UUID}": 999})
    for xids in ((), (hit(79),)):
        scene.look(None, *xids)
    scene.nvml.fail({})
    scene.look()
    assert scene.ill() == {f"device:{UUID}"}


def test_a_fault_outlives_another_layout_of_its_cards_instances(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine="mig-a100")
    card = scene.look().gpus[0]
    assert card.mig is not None
    scene.look(None, replace(hit(48), pci_bus_id=card.pci_bus_id or ""))
    instances = {f"device:{gpu.key}" for gpu in scene.read().gpus if gpu.mig}
    assert scene.ill() == instances
    scene.nvml.change_gpu(0, mig_mode=[0, 0])
    scene.look()
    assert scene.ill() == {f"device:{card.mig.parent_uuid}"}
    scene.nvml.change_gpu(0, mig_mode=[1, 1])
    scene.look()
    assert scene.ill() == instances
    for instance in instances:
        scene.acknowledge(instance)
    assert scene.ill() == set()


def test_a_card_that_enters_mig_mode_without_instances_is_not_missing_and_keeps_its_faults(scene: Scene) -> None:
    scene.look(None, hit(79))
    for mode, ill in ((1, {"driver", f"device:{ADDRESS}"}), (0, {f"device:{UUID}"})):
        scene.nvml.change_gpu(0, mig_mode=[mode, mode], instances=[None])
        scene.look()
        assert scene.ill() == ill


MIG = "each MIG instance counted"


@pytest.mark.parametrize(("machine", "expect", "words", "state"), [
    ("dgx-h100", "8", "", "healthy"), ("dgx-h100", "h100:8", "", "healthy"), ("dgx-h100", "H100:7", "", "healthy"),
    ("dgx-h100", "9", "", "unhealthy"), ("dgx-h100", "a100:1", "", "unhealthy"),
    ("mig-a100", "5", f"5 of 5 devices are here, {MIG}", "healthy"),
    ("mig-a100", "6", f"5 of 6 devices are here, {MIG}", "unhealthy"),
    ("mig-a100", "a100-40gb:3", "3 of 3 a100-40gb devices are here, a card in MIG mode counted once", "healthy"),
    ("mig-a100", "a100-40gb:4", "3 of 4 a100-40gb devices are here, a card in MIG mode counted once", "unhealthy"),
])  # fmt: skip
def test_what_is_declared_is_counted_a_number_by_devices_and_a_chip_by_cards(
    tmp_path: Path, machine: str, expect: str, words: str, state: str
) -> None:
    """The second host has three instances of one card, and two whole cards."""
    scene = Scene(tmp_path, expect, machine)
    scene.look()
    inventory = scene.component("inventory")
    assert (inventory.state, words or inventory.reason) == (state, inventory.reason)
    assert ("correct MESHWRIGHT_EXPECT" in inventory.action) is (state == "unhealthy")


def test_a_card_of_instances_that_goes_is_counted_as_them_where_nothing_is_declared(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine="mig-a100")
    facts = scene.look()
    assert "5 devices are here, each MIG instance counted" in scene.component("inventory").reason
    scene.look(replace(facts, gpus=tuple(gpu for gpu in facts.gpus if gpu.mig is None)))
    assert "2 of 5 devices are here; missing: " in scene.component("inventory").reason


def test_with_as_many_as_are_declared_nobody_is_missing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "7")
    scene.look()
    scene.look(without(scene.read(), 0))
    assert scene.ill() == set()


def stage_tpus(folder: Path) -> Scene:
    scene = Scene.__new__(Scene)
    scene.machine, scene.nvml = plant_machine("tpu-v5e-8", folder), None  # type: ignore[assignment]
    scene.clock, scene.expect, scene.dump = ManualClock(), "", None
    scene.start()
    return scene


def test_a_chip_whose_device_file_went_is_unhealthy_also_for_the_next_agent_until_a_word(tmp_path: Path) -> None:
    scene = stage_tpus(tmp_path)
    facts = scene.look()
    assert scene.ill() == set()  # none that never had a file
    chips = tuple(replace(chip, has_file=True) for chip in facts.tpus)
    scene.look(replace(facts, tpus=chips))
    gone = replace(facts, tpus=(replace(chips[0], has_file=False), *chips[1:]))
    name = f"device:{chips[0].key}"
    for _ in range(2):
        scene.look(gone)
        device = scene.component(name)
        assert (scene.ill(), device.state, device.permanence) == ({name}, "unhealthy", "permanent")
        assert "device file" in device.reason
        scene.restart()
    scene.look(gone)
    scene.acknowledge(name)
    scene.restart()
    scene.look(gone)
    assert scene.state(name) == "healthy"


@pytest.mark.parametrize(("part", "state"), [
    (SliceFacts(topology=(2, 2, 1)), "unhealthy"),
    (SliceFacts(topology=(4, 4, 1), chips_per_host=(2, 2, 1)), "unhealthy"),
    (SliceFacts(topology=(4, 4, 1)), "healthy"),  # of several hosts, and each one's share is not told
    (SliceFacts(topology=(3, 1, 1)), "healthy"),
])  # fmt: skip
def test_a_chip_that_the_slice_should_have_is_missing_though_no_probe_saw_it(
    tmp_path: Path, part: SliceFacts, state: str
) -> None:
    scene = stage_tpus(tmp_path)
    facts = scene.read()
    scene.look(replace(facts, tpus=facts.tpus[:3]), slice=part)
    assert scene.state("inventory") == state
    assert ("3 of 4 devices are here" in scene.component("inventory").reason) == (state == "unhealthy")


def test_a_card_that_once_gave_no_name_is_not_missing_for_ever(scene: Scene) -> None:
    facts = scene.look()
    first, *others = facts.gpus
    nameless = replace(first, uuid=None, pci_bus_id=None)
    for seen in ((nameless, *others), facts.gpus):
        scene.look(replace(facts, gpus=seen))
        assert scene.state("inventory") == "healthy", scene.component("inventory").reason


def test_a_host_without_accelerators_has_no_inventory(scene: Scene) -> None:
    scene.look(replace(scene.read(), gpus=(), links=()))
    assert "inventory" not in scene.registry.names()


def test_devices_that_only_jax_lists_are_left_alone_also_after_a_bench(scene: Scene) -> None:
    """As AMD's. No probe tells their health, so nothing of it becomes old."""
    facts = replace(scene.read(), gpus=(), links=(), nics=())
    jax = {"platform": "gpu", "devices": [{"id": 0, "kind": "AMD Instinct MI300X", "local_index": 0}]}
    scene.jax = JaxReport(jax, scene.clock.now())
    scene.look(facts)
    scene.bench(correct=True)
    seen = scene.component("device:0")
    assert (seen.state, seen.reason) == ("initializing", "no source here reports its health")
    assert scene.component("driver").reason == "sysfs and /proc answer"
    scene.clock.advance(300)
    scene.look(facts)
    assert scene.ill() == set()
    assert scene.registry.view(scene.clock.now()).state == "initializing"  # no device was checked


# ---- over restarts --------------------------------------------------------------------------------------------------


def boot(facts: HostFacts) -> HostFacts:
    return replace(facts, machine=replace(facts.machine, boot_id="another"))


def sinces(scene: Scene) -> dict[str, Any]:
    return {name: scene.component(name).since for name in scene.registry.names() if name != "worker"}


@pytest.mark.parametrize("is_boot", [False, True])
def test_a_restart_and_a_boot_after_which_all_is_as_before_are_no_events(scene: Scene, is_boot: bool) -> None:
    scene.nvml.change_gpu(0, temperature=92)
    facts = scene.look()
    before, ill = sinces(scene), scene.ill()
    scene.clock.advance(7200)
    scene.restart()
    assert set(scene.registry.names()) == {*before, "worker"} - UNCHECKED  # listed before anybody has looked
    scene.look(boot(facts) if is_boot else facts)
    assert (sinces(scene), scene.ill()) == (before, ill)
    assert list(scene.history._waiting) == []
    assert f"thermal:{UUID}" in ill


def test_what_has_changed_while_no_agent_was_there_is_an_event_with_the_state_of_before(scene: Scene) -> None:
    scene.look()
    scene.restart()
    scene.look(without(scene.read(), 0))
    (event,) = scene.events(f"device:{UUID}")
    assert (event.before, event.state, event.at) == ("healthy", "unhealthy", scene.clock.now())
    assert {event.component for event in scene.history._waiting} == {f"device:{UUID}", "inventory"}
    assert not [name for name in scene.registry.names() if name.endswith(UUID) and not name.startswith("device:")]
    assert f"thermal:{UUID}" not in scene.history.memory.states


def test_a_fault_stands_over_a_restart_since_it_came_and_a_boot_ends_it(scene: Scene) -> None:
    scene.look(None, hit(79))
    came = scene.clock.now()
    scene.restart()
    assert scene.component(f"device:{UUID}").since == came  # before anybody has looked again
    facts = scene.look()
    assert (scene.component(f"device:{UUID}").since, scene.events(f"device:{UUID}")) == (came, [])
    assert scene.monitor.log_place["boot_id"] == facts.machine.boot_id
    scene.restart()
    scene.look(boot(facts))
    assert [event.state for event in scene.events(f"device:{UUID}")] == ["initializing", "healthy"]
    assert scene.component(f"device:{UUID}").since == scene.clock.now()
    assert (scene.ill(), scene.history.memory.faults) == (set(), {})


def test_after_a_restart_with_a_driver_that_hangs_the_parts_of_before_are_unknown_and_come_back(scene: Scene) -> None:
    scene.look()
    scene.restart()
    scene.monitor.report_silence("no answer", scene.clock.now())
    assert scene.state(f"memory:{UUID}") == "unknown"
    scene.look()
    assert [event.before for event in scene.events(f"memory:{UUID}")] == ["healthy", "unknown"]


def test_a_part_that_is_silent_since_a_restart_is_unknown_until_a_word_or_another_boot(scene: Scene) -> None:
    part = f"memory:{UUID}"
    scene.look()
    parts = {name for name in scene.registry.names() if name.startswith("memory:")}
    for index in range(len(parts)):  # such as with another driver
        scene.nvml.change_gpu(index, ecc=None, remapped=None)
    scene.restart()
    facts = scene.look()
    assert scene.ill() == parts
    scene.restart()
    scene.look()
    assert (scene.ill(), scene.events(part)) == (parts, [])
    kept = scene.dump
    scene.acknowledge(part)
    scene.look()
    assert part not in scene.registry.names()
    scene.dump = kept
    scene.start()
    scene.look(boot(facts))  # another driver, as likely as not
    assert (scene.ill(), part in scene.registry.names()) == (set(), False)


def test_a_wrong_result_is_remembered_over_restarts_until_a_right_one_or_a_word(scene: Scene) -> None:
    name = f"device:{UUID}"
    scene.look()
    scene.bench(correct=False)
    since = scene.component(name).since
    scene.restart()
    scene.look()
    seen = scene.component(name)
    assert (seen.state, seen.since, scene.events(name)) == ("degraded", since, [])
    assert "3 elements" in seen.reason
    scene.bench(correct=True, case="memory_bandwidth")
    assert scene.ill() == {name}
    scene.bench(0, 1, correct=True)
    assert scene.ill() == {name}
    scene.bench(correct=True)
    scene.restart()
    scene.look()
    assert scene.ill() == set()
    scene.bench(correct=False)
    assert scene.ill() == {name}
    scene.acknowledge(name)
    assert scene.ill() == set()


def test_a_right_transfer_back_does_not_end_a_wrong_one_there(scene: Scene) -> None:
    scene.look()
    scene.bench(0, 1, correct=False, case="device_to_device")
    ill = scene.ill()
    assert len(ill) == 2
    scene.bench(1, 0, correct=True, case="device_to_device")
    assert scene.ill() == ill
    scene.bench(0, 1, correct=True, case="device_to_device")
    assert scene.ill() == set()


# ---- a driver or a card that is broken before the first look --------------------------------------------------------


def test_a_driver_that_serves_no_card_makes_a_fresh_agents_host_unhealthy(scene: Scene) -> None:
    scene.nvml._fail = {"nvmlInit": 9}
    scene.look()
    driver = scene.component("driver")
    assert (driver.state, driver.permanence) == ("unhealthy", "permanent")
    assert "reboot" in driver.action
    scene.nvml._fail = {}
    scene.look()
    assert scene.ill() == set()


def test_a_card_that_was_lost_before_the_agent_came_is_missing(scene: Scene) -> None:
    gpu = scene.read().gpus[3]
    scene.nvml._fail = {f"nvmlDeviceGetHandleByIndex:{gpu.uuid}": 15}
    scene.look()
    inventory = scene.component("inventory")
    assert (inventory.state, inventory.permanence) == ("unhealthy", "permanent")
    assert inventory.reason.startswith(f"7 of 8 devices are here; missing: GPU 3 at {gpu.pci_bus_id} (GPU is lost")
    assert scene.state("driver") == "degraded"
    scene.nvml._fail = {}
    scene.look()
    assert scene.ill() == set()


def test_a_card_that_is_lost_is_counted_once_whether_or_not_it_was_seen_before(scene: Scene) -> None:
    facts = scene.look()
    scene.nvml._fail = {f"nvmlDeviceGetHandleByIndex:{facts.gpus[3].uuid}": 15}
    facts = scene.look()
    assert scene.component("inventory").reason.startswith("7 of 8 devices are here; missing: NVIDIA H100")
    unplaced = tuple(replace(card, pci_bus_id=None) for card in facts.refused)
    scene.look(replace(facts, refused=unplaced))
    assert scene.component("inventory").reason.startswith("7 of 8 devices are here; missing: NVIDIA H100")


@pytest.mark.parametrize("expect", ["", "h100:8"])
def test_cards_that_the_agent_may_no_longer_read_are_unknown_and_not_missing(tmp_path: Path, expect: str) -> None:
    scene = Scene(tmp_path, expect)
    scene.look()
    cards = {name for name in scene.registry.names() if name.split(":")[0] not in ("worker", "nic", "kernel_log")}
    scene.nvml.fail({"nvmlInit": pynvml.NVML_ERROR_NO_PERMISSION})
    for _ in range(2):
        scene.look()
        assert (scene.ill(), {scene.state(name) for name in cards}) == (cards, {"unknown"})
        scene.restart()
    (scene.machine.roots.sysfs / "bus/pci/devices" / ADDRESS).rename(tmp_path / "gone")  # this one has left the bus
    scene.look()
    assert {name for name in cards if scene.state(name) == "unhealthy"} == {f"device:{UUID}", "inventory"}
    scene.dump = None
    scene.start()
    scene.look()
    assert {scene.state(name) for name in scene.ill()} == {"unknown"}


def test_a_fabric_may_start_for_five_minutes_and_a_card_without_nvlinks_needs_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    change_all(scene, fabric={"state": 2})
    states = [(scene.look(), scene.state("driver"))[1] for _ in range(12)]
    assert (states, scene.ill()) == (["unknown"] * 10 + ["unhealthy"] * 2, {"driver"})
    change_all(scene, nvlinks=None)
    scene.start()
    scene.look()
    assert scene.ill() == set()


# ---- what a card had outlives the agent -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_boot", [False, True])
def test_nvlinks_that_went_down_are_down_for_the_next_agent_too(scene: Scene, is_boot: bool) -> None:
    scene.look()
    scene.nvml.change_gpu(0, nvlinks=[None] * 18)
    facts = scene.look()
    scene.restart()
    scene.look(boot(facts) if is_boot else None)
    link = scene.component(f"link:{UUID}")
    assert (link.state, "0 of 18 NVLinks are up" in link.reason) == ("unhealthy", True)
    scene.acknowledge(f"link:{UUID}")
    scene.restart()
    scene.look()
    assert scene.state(f"link:{UUID}") == "healthy"


def change_all(scene: Scene, **fields: Any) -> None:
    for index in range(len(scene.nvml._document["gpus"])):
        scene.nvml.change_gpu(index, **fields)


@pytest.mark.parametrize("is_all", [False, True])
def test_no_nvlink_of_18_is_unhealthy_though_no_earlier_look_saw_one(scene: Scene, is_all: bool) -> None:
    down = [None] * 18
    change_all(scene, nvlinks=down) if is_all else scene.nvml.change_gpu(0, nvlinks=down)
    scene.look()
    link = scene.component(f"link:{UUID}")
    assert (link.state, link.reason.startswith("0 of 18 NVLinks are up")) == ("unhealthy", True)
    assert scene.state(f"device:{UUID}") == "unhealthy"
    assert len([name for name in scene.ill() if name.startswith("device:")]) == (8 if is_all else 1)
    scene.acknowledge(f"link:{UUID}")
    scene.look()
    scene.restart()
    scene.look()
    assert scene.state(f"link:{UUID}") == "healthy"


def test_a_card_alone_and_pcie_cards_without_a_bridge_need_no_nvlink(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "sxm")
    change_all(scene, nvlinks=[None] * 18)
    scene.look(without(scene.read(), *range(1, 8)))
    assert scene.ill() == set()
    scene = Scene(tmp_path / "pcie", machine="pcie-a100")
    for index in (2, 3):
        scene.nvml.change_gpu(index, nvlinks=[None] * 12)
    scene.look()
    assert scene.ill() == set()


def test_a_card_of_a_kind_that_the_chip_table_does_not_have_is_held_against_all_others(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    change_all(scene, name="NVIDIA of tomorrow")
    scene.nvml.change_gpu(0, nvlinks=[None] * 18)
    scene.look()
    assert scene.state(f"link:{UUID}") == "unhealthy"
    scene.start()
    scene.nvml.change_gpu(1, nvlinks=[None] * 18)
    scene.look()
    assert scene.state(f"link:{UUID}") == "healthy"  # some such cards may be without a bridge


@pytest.mark.parametrize("before", [0, 12])
def test_a_divided_card_has_no_nvlinks_to_lose(tmp_path: Path, before: int) -> None:
    scene = Scene(tmp_path, machine="mig-a100")
    scene.history.memory.nvlinks |= {gpu.mig.parent_uuid: before for gpu in scene.read().gpus if gpu.mig and before}
    scene.nvml.change_gpu(0, nvlinks=[None] * 12)
    scene.look()
    assert scene.ill() == set()


# ---- questions that have no answer ----------------------------------------------------------------------------------


def test_a_fault_of_a_part_stands_though_another_question_about_it_has_no_answer(scene: Scene) -> None:
    scene.nvml.change_gpu(0, ecc=[1, 1])
    scene.nvml.fail({f"nvmlDeviceGetRemappedRows:{UUID}": 10})
    scene.look()
    assert scene.state(f"memory:{UUID}") == scene.state(f"device:{UUID}") == "unhealthy"


def test_a_card_whose_instances_cannot_be_listed_is_missing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, machine="mig-a100")
    scene.nvml.fail({"nvmlDeviceGetMaxMigDeviceCount": 999})
    scene.look()
    inventory = scene.component("inventory")
    assert inventory.state == "unhealthy"
    assert "its MIG instances cannot be listed: NVML_ERROR_UNKNOWN" in inventory.reason


# ---- counters that begin anew ---------------------------------------------------------------------------------------


def test_an_error_after_a_reset_is_news_though_as_many_were_acknowledged_before(scene: Scene) -> None:
    scene.look()
    for count, state in ((1, "unhealthy"), (0, "healthy"), (1, "unhealthy")):
        scene.nvml.change_gpu(0, ecc=[count, 1])
        scene.look()
        assert scene.state(f"memory:{UUID}") == state
        scene.acknowledge(f"memory:{UUID}")
        assert scene.state(f"memory:{UUID}") == "healthy"


def test_a_fatal_error_after_the_bus_began_to_count_anew_is_news(scene: Scene) -> None:
    for count, state in ((3, "healthy"), (0, "healthy"), (1, "unhealthy")):
        scene.look(with_fatal(scene, count))
        assert scene.state(f"link:{UUID}") == state


# ---- virtual CPU devices on a host with accelerators ----------------------------------------------------------------


def test_cards_that_devices_does_not_show_are_no_components_after_a_driver_that_hung(scene: Scene) -> None:
    scene.cpu_devices = 2
    scene.look()
    scene.monitor.report_silence("no answer within 10 s", scene.clock.now())
    assert not [name for name in scene.registry.names() if name.startswith("device:")]
    scene.look()
    assert scene.ill() == set()


def test_cards_of_an_earlier_life_are_no_components_where_devices_does_not_show_them(scene: Scene) -> None:
    scene.look()
    scene.restart()
    scene.cpu_devices = 2
    assert scene.state(f"device:{UUID}") == "initializing"
    scene.look(None, hit(79))
    devices = [name for name in scene.registry.names() if name.startswith("device:")]
    assert devices == [f"device:{UUID}"]  # with its fault
    assert scene.state(f"device:{UUID}") == "unhealthy"
