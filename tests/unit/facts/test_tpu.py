from __future__ import annotations

from pathlib import Path

import pytest

from meshwright_agent.facts.model import SliceFacts
from meshwright_agent.facts.tpu import parse_flags, parse_kind, parse_slice, read_chips, read_device_file
from tests.fakes.machines import plant_machine
from tests.fakes.tree import plant

BOUND = "=> sys/x/driver -> ../drivers/{driver}\n=> sys/x/iommu_group -> ../../kernel/iommu_groups/14\n"


def test_who_holds_a_chip_is_told_without_opening_it(tmp_path: Path) -> None:
    facts = plant_machine("tpu-v5e-8", tmp_path).read()
    assert {process.pid for tpu in facts.tpus for process in tpu.processes or ()} == {3110}
    assert facts.holders is not None
    (holder,) = facts.holders
    assert (holder.pid, holder.command, holder.own) == (3110, "python -m maxtext.train", False)
    assert holder.devices == tuple(f"/dev/vfio/{group}" for group in range(8))


@pytest.mark.parametrize(("driver", "file"), [("vfio-pci", "/dev/vfio/14"), ("gasket", None)])
def test_a_group_is_a_device_file_only_where_vfio_is_bound(driver: str, file: str | None, tmp_path: Path) -> None:
    plant(BOUND.format(driver=driver), tmp_path)
    assert read_device_file(tmp_path / "sys/x") == file


def test_the_accel_driver_names_its_own_file(tmp_path: Path) -> None:
    plant(BOUND.format(driver="vfio-pci") + "=/ sys/x/accel/accel3\n", tmp_path)
    assert read_device_file(tmp_path / "sys/x") == "/dev/accel3"


def test_a_chip_without_a_driver_is_a_problem(tmp_path: Path) -> None:
    machine = plant_machine("tpu-v5p-4", tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:85:00.0/driver").unlink()
    facts = machine.read()
    assert [tpu.device_file is None for tpu in facts.tpus] == [False, False, True, False]
    assert facts.tpus[2].processes is None
    assert facts.holders is None
    (problem,) = facts.problems
    assert (problem.kind, "0000:85:00.0" in problem.text) == ("no_tpu_driver", True)


def test_an_id_that_two_generations_share_is_told_by_the_accelerator_type(tmp_path: Path) -> None:
    machine = plant_machine("tpu-v5p-4", tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:05:00.0/device").write_text("0x0027")
    assert machine.read().tpus[0].kind is None
    assert [parse_kind(kind) for kind in ("v2-8", "v3-8", "v5p-8", None)] == ["TPU v2", "TPU v3", None, None]


def test_the_environment_of_a_gke_pod_tells_the_slice(tmp_path: Path) -> None:
    machine = plant_machine("tpu-v5e-8", tmp_path)
    assert parse_slice(machine.roots.environ) == SliceFacts(
        accelerator_type="v5litepod-8", topology=(2, 4, 1), chips_per_host=(2, 4, 1), hosts=(1, 1, 1), host_count=1
    )
    assert len(read_chips(machine.roots.sysfs)) == 8


def test_hosts_are_counted_by_name_else_by_bounds() -> None:
    assert parse_slice({"TPU_WORKER_HOSTNAMES": "a,b, ,c", "TPU_HOST_BOUNDS": "1,1,1"}).host_count == 3
    assert parse_slice({"TPU_PROCESS_BOUNDS": "2,2,1"}).host_count == 4
    assert parse_slice({}) == SliceFacts()


@pytest.mark.parametrize(("text", "flags"), [
    ("true,true,false", (True, True, False)), ("TRUE, false,False", (True, False, False)), ("true,true", None),
    ("true,1,true", None), ("", None), (None, None),
])  # fmt: skip
def test_what_is_no_three_truths_is_unknown(text: str | None, flags: tuple[bool, ...] | None) -> None:
    assert parse_flags(text) == flags
