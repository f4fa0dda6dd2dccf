from __future__ import annotations

from typing import Any

import pytest

from meshwright.cli.devices import describe_processes
from meshwright.testing import FakeAgent
from meshwright.wire.devices import DeviceProcess, Devices, Release
from tests.fakes.hosts import build_devices
from tests.unit.cli.conftest import CommandLine
from tests.unit.leases.scene import build_lease


def _change_first(devices: Devices, **changes: Any) -> Devices:
    first, *others = devices.devices
    return devices.model_copy(update={"devices": (first.model_copy(update=changes), *others)})


def _show_first(meshwright: CommandLine, **changes: Any) -> str:
    meshwright.fake = FakeAgent(_change_first(build_devices("h100:2"), **changes))
    return next(line for line in meshwright("devices").out.splitlines() if line.startswith("0 "))


def test_the_last_error_of_the_worker_is_shown(meshwright: CommandLine) -> None:
    devices = build_devices("cpu:2")
    worker = devices.worker.model_copy(update={"state": "failed", "pid": None, "last_error": "no libtpu"})
    meshwright.fake = FakeAgent(devices.model_copy(update={"worker": worker}))
    assert "worker failed, generation 1\n  last error: no libtpu\n" in meshwright("devices").out


def test_a_tpu_stands_at_its_coordinates(meshwright: CommandLine) -> None:
    meshwright.fake = FakeAgent("v5e:2x2")
    lines = [line for line in meshwright("devices").out.splitlines() if "TPU v5 lite" in line]
    assert ["(0,0,0)" in lines[0], "(1,1,0)" in lines[3]] == [True, True]


def test_holders_are_named_and_the_agents_own_worker_is_marked() -> None:
    own = DeviceProcess(pid=7, name="python", own=True)
    assert describe_processes([own, DeviceProcess(pid=8)]) == "7 python (agent), 8"
    assert (describe_processes([]), describe_processes(None)) == ("free", "?")


def test_a_leased_device_is_not_called_free(meshwright: CommandLine) -> None:
    lease = build_lease(devices=(), expires_in_s=3500)
    assert "  leased, 58 min left: job 7  " in _show_first(meshwright, lease=lease)
    processes = (DeviceProcess(pid=8, name="python"),)
    assert "  8 python; leased, 58 min left: job 7  " in _show_first(meshwright, lease=lease, processes=processes)
    assert "  ?; leased, 58 min left: job 7  " in _show_first(meshwright, lease=lease, processes=None)


def test_links_are_the_matrix_alone_with_its_legend(meshwright: CommandLine) -> None:
    meshwright.fake = FakeAgent("v5e:2x2")
    printed = meshwright("devices", "--topology")
    matrix, legend, granule = printed.out.split("\n\n")
    assert matrix.splitlines()[:2] == ["     TPU0 TPU1 TPU2 TPU3", "TPU0  X   ICI  ICI   2"]
    assert legend == "ICI   TPU chips side by side\n2, 3… hops over ICI links, the shortest way"
    assert (granule, printed.code, printed.err) == ("slice of 2×2×1 chips, no rings\n", 0, "")


def test_a_host_without_known_links_says_so(meshwright: CommandLine) -> None:
    meshwright.fake = FakeAgent("cpu:1")
    assert meshwright("devices", "--topology").out == "links: none known\n"


def test_what_an_agent_sent_cannot_steer_the_terminal_by_the_matrix(meshwright: CommandLine) -> None:
    devices = build_devices("h100:2")
    link = devices.links[0].model_copy(update={"kind": "NV\x1b[2J", "bandwidth_bytes_per_s": None})
    meshwright.fake = FakeAgent(devices.model_copy(update={"links": (link,)}))
    assert "\x1b" not in meshwright("devices", "--topology").out


def test_a_release_says_so_in_a_word(meshwright: CommandLine) -> None:
    printed = meshwright("devices", "release")
    assert (printed.code, printed.out) == (0, "released\n")


def test_what_is_still_held_is_exit_code_1_and_the_holder_is_named(meshwright: CommandLine) -> None:
    holder = DeviceProcess(pid=99, name="train", devices=("GPU-1",), own=True)
    reply = Release(released=False, worker_killed=True, cancelled_runs=("run-1",), holders=(holder,))
    meshwright.fake.answer("POST", "/devices/release", reply)
    printed = meshwright("devices", "release")
    assert printed.code == 1
    assert printed.out.startswith(
        "not released: a process of the agent still holds a device; the agent's worker had to be killed\ncancelled"
    )
    assert printed.out.splitlines()[-1].split() == ["99", "(agent)", "train", "GPU-1"]


@pytest.mark.parametrize(("unknown", "words"), [
    ("driver_timeout", "did not answer in time"), ("no_permission", "may not look into all processes"),
    (None, "the agent did not look"),
])  # fmt: skip
def test_holders_that_nobody_could_look_up_are_not_called_none_and_the_reason_is_told(
    meshwright: CommandLine, unknown: Any, words: str
) -> None:
    reply = Release(released=True, worker_killed=False, holders=None, holders_unknown=unknown)
    meshwright.fake.answer("POST", "/devices/release", reply)
    assert words in meshwright("devices", "release").err
