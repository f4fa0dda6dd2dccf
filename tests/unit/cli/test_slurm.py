from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from meshwright.cli import slurm
from meshwright.errors import NotReadyError, PlanInfeasibleError
from meshwright.wire.devices import Devices, Mig
from tests.fakes.machines import plant_machine
from tests.unit.cli.conftest import CommandLine


def see(folder: Path, name: str, *, host: str = "node01") -> Devices:
    devices = plant_machine(name, folder).view()
    return devices.model_copy(update={"host": devices.host.model_copy(update={"name": host})})


def parse_line(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split())


# ---- gres.conf --------------------------------------------------------------------------------------------------


def test_every_gpu_has_its_line_with_its_links_to_all_in_order(tmp_path: Path) -> None:
    lines = [parse_line(line) for line in slurm.format_gres(see(tmp_path, "dgx-h100"))]
    assert [line["File"] for line in lines] == [f"/dev/nvidia{index}" for index in range(8)]
    assert {line["Type"] for line in lines} == {"nvidia_h100_80gb_hbm3"}
    assert {(line["NodeName"], line["Name"]) for line in lines} == {("node01", "gpu")}
    for index, line in enumerate(lines):
        links = [int(count) for count in line["Links"].split(",")]
        assert links == [-1 if other == index else 18 for other in range(8)]


def test_files_are_numbered_as_the_driver_numbers_them_and_links_follow_their_order(tmp_path: Path) -> None:
    """The link of devices 0 and 3 is that of /dev/nvidia7 and /dev/nvidia4."""
    devices = see(tmp_path, "dgx-1v")
    plain = [parse_line(line)["Links"].split(",") for line in slurm.format_gres(devices)]
    turned = tuple(
        device.model_copy(update={"attributes": {**device.attributes, "minor": 7 - device.local_index}})
        for device in devices.devices
    )
    lines = [parse_line(line) for line in slurm.format_gres(devices.model_copy(update={"devices": turned}))]
    assert [line["File"] for line in lines] == [f"/dev/nvidia{minor}" for minor in range(8)]
    assert [line["Links"].split(",") for line in lines] == [row[::-1] for row in plain[::-1]]
    assert plain[0] != plain[7][::-1]


def test_a_guess_is_told_and_of_all_devices(tmp_path: Path, meshwright: CommandLine) -> None:
    devices = see(tmp_path, "dgx-h100")
    meshwright.fake.devices = devices
    assert "guess" not in meshwright("slurm", "gres").err
    first = devices.devices[0].model_copy(update={"attributes": {}})
    others = (each.model_copy(update={"attributes": {"minor": 7 - each.local_index}}) for each in devices.devices[1:])
    meshwright.fake.devices = devices.model_copy(update={"devices": (first, *others)})
    printed = meshwright("slurm", "gres")
    assert (printed.code, "tells no minor number of device 0; File= is a guess" in printed.err) == (0, True)
    assert [parse_line(line)["File"] for line in printed.out.splitlines()] == [f"/dev/nvidia{n}" for n in range(8)]


def test_pairs_without_nvlink_have_none_and_those_with_more_have_more(tmp_path: Path) -> None:
    rows = [parse_line(line)["Links"].split(",") for line in slurm.format_gres(see(tmp_path, "dgx-1v"))]
    counts = [[int(count) for count in row] for row in rows]
    assert all(counts[a][b] == counts[b][a] for a in range(8) for b in range(8))
    assert {count for row in counts for count in row} == {-1, 0, 1, 2}
    assert [count for count in counts[0] if count > 0] != []


def test_what_slurm_could_not_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanInfeasibleError, match="tpu devices"):
        slurm.format_gres(see(tmp_path / "tpu", "tpu-v5e-8"))
    devices = see(tmp_path / "gpu", "dgx-h100")
    first = devices.devices[0].model_copy(update={"mig": Mig(parent_uuid="GPU-1")})
    with pytest.raises(PlanInfeasibleError, match="MIG instances"):
        slurm.format_gres(devices.model_copy(update={"devices": (first, *devices.devices[1:])}))


def test_the_command_says_no_with_1_on_a_host_of_cpus(meshwright: CommandLine) -> None:
    printed = meshwright("slurm", "gres")
    assert (printed.code, printed.out) == (1, "")
    assert "cpu devices" in printed.err


# ---- topology.yaml ----------------------------------------------------------------------------------------------


def test_hosts_of_one_nvlink_domain_are_one_block(tmp_path: Path) -> None:
    seen = [see(tmp_path / str(index), "gb200-nvl72", host=f"node{index:02}") for index in range(3)]
    other = seen[0].granules[0].model_copy(update={"domain": "another domain"})
    host = seen[0].host.model_copy(update={"name": "node03"})
    seen.append(seen[0].model_copy(update={"granules": (other,), "host": host}))
    (topology,) = yaml.safe_load("\n".join(slurm.format_topology(seen)))
    assert topology["topology"] == "meshwright"
    assert topology["block"]["block_sizes"] == [1]
    first, second = topology["block"]["blocks"]
    assert first["nodes"] == "node00,node01,node02"
    assert second == {"block": "another-domain", "nodes": "node03"}


def test_a_host_of_neither_domain_nor_slice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanInfeasibleError, match="belongs to no NVLink domain"):
        slurm.format_topology([see(tmp_path, "pcie-l40s")])


def test_a_host_that_does_not_answer_makes_no_shorter_file(meshwright: CommandLine) -> None:
    printed = meshwright("slurm", "topology")
    assert printed.code == 2
    assert "--hosts" in printed.err
    meshwright.fake.answer("GET", "/devices", NotReadyError("still looking"))
    printed = meshwright("slurm", "gres", "--hosts", "a,b", "--timeout", "2")
    assert (printed.code, printed.out) == (2, "")
    assert "2 of 2 hosts did not answer" in printed.err
