from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.topology.identity import (
    HostGpu,
    VisibleGpu,
    parse_information,
    parse_visible,
    read_gpus_from_proc,
    read_visible_gpus,
)

UUIDS = [f"GPU-{i}1111111-2222-3333-4444-555555555555" for i in range(4)]
GPUS = [HostGpu(f"0000:{i}0:00.0", uuid, "NVIDIA H100") for i, uuid in enumerate(UUIDS)]
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 64
GPU UUID: \t {uuid}
Bus Location: \t 0000:10:00.0
"""
"""Laid out as the driver's README shows /proc/driver/nvidia/gpus/…/information."""


def see(environ: dict[str, str], gpus: list[HostGpu] = GPUS) -> list[str] | None:
    visible = parse_visible(environ, gpus)
    return None if visible is None else [gpu.uuid for gpu in visible]


def test_without_a_variable_all_gpus_are_seen_in_pci_order() -> None:
    assert parse_visible({}, GPUS) == tuple(VisibleGpu(uuid, rank) for rank, uuid in enumerate(UUIDS))


@pytest.mark.parametrize(("text", "ranks"), [
    ("2,0", [2, 0]), (" 1 , 3 ", [1, 3]), ("0,9,1", [0]), ("0,-1,1", [0]), (f"{UUIDS[3]},{UUIDS[1]}", [3, 1]),
    ("GPU-2,GPU-0", [2, 0]), ("GPU-", None), ("", None), ("nonsense", None),
])  # fmt: skip
def test_the_variable_chooses_and_orders_until_its_first_wrong_entry(text: str, ranks: list[int] | None) -> None:
    assert see({"CUDA_VISIBLE_DEVICES": text}) == (None if ranks is None else [UUIDS[rank] for rank in ranks])


def test_numbers_say_nothing_where_cuda_orders_different_gpus_by_speed() -> None:
    mixed = [*GPUS[:3], HostGpu("0000:30:00.0", UUIDS[3], "NVIDIA T400")]
    assert see({}, mixed) is None
    assert see({"CUDA_VISIBLE_DEVICES": "0"}, mixed) is None
    assert see({"CUDA_VISIBLE_DEVICES": UUIDS[2]}, mixed) == [UUIDS[2]]
    assert see({"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, mixed) == [UUIDS[3]]


def test_uuids_name_gpus_and_mig_instances_also_where_no_driver_can_be_asked() -> None:
    assert see({"CUDA_VISIBLE_DEVICES": "MIG-abc,MIG-def"}, []) == ["MIG-abc", "MIG-def"]
    assert see({"CUDA_VISIBLE_DEVICES": UUIDS[0]}, []) == [UUIDS[0]]
    assert see({"CUDA_VISIBLE_DEVICES": "0"}, []) is None
    assert see({}, []) is None


def test_the_kernel_modules_files_are_read_in_pci_order(tmp_path: Path) -> None:
    for folder, uuid in (("0000:b0:00.0", UUIDS[1]), ("0000:10:00.0", UUIDS[0])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "information").write_text(INFORMATION.format(uuid=uuid))
    (tmp_path / "0000:c0:00.0").mkdir()
    assert [gpu.uuid for gpu in read_gpus_from_proc(tmp_path)] == UUIDS[:2]
    assert read_gpus_from_proc(tmp_path)[0].model == "NVIDIA H100 80GB HBM3"
    seen = read_visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}, proc=tmp_path)
    assert seen == (VisibleGpu(UUIDS[1], 1),)


def test_a_gpu_that_has_no_uuid_yet_is_not_listed() -> None:
    assert parse_information("x", INFORMATION.format(uuid="GPU-????????-????-????-????-????????????")) is None
    assert parse_information("x", "") is None
