"""What is refused before it is queued: too large, not there, busy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import DeviceBusyError, InvalidRequestError
from meshwright.wire.base import Notice
from meshwright.wire.bench import MAX_SIZE_BYTES, BenchRequest
from meshwright.wire.devices import DeviceProcess, Devices, Memory
from meshwright_agent.bench.limits import check_bench
from meshwright_agent.bench.scope import CASES
from meshwright_agent.facts.model import IDLE_BYTES
from tests.fakes.codes import has_code
from tests.fakes.topologies import EVIDENCE
from tests.unit.bench.hosts import GIB, build_host


def check(host: Devices, **fields: Any) -> None:
    check_bench(BenchRequest.model_validate(fields), host)


def too_large(words: str) -> Any:
    return pytest.raises(InvalidRequestError, match=words, check=has_code("bench_too_large"))


@pytest.mark.parametrize("case", [case for case in CASES if case != "matmul"])
def test_an_absurd_size_is_refused_for_every_case(case: str) -> None:
    with too_large(rf"{case} with S = {MAX_SIZE_BYTES} bytes on .* it has {16 * GIB} bytes"):
        check(build_host(), cases=[case], sizes_bytes=[MAX_SIZE_BYTES])


def test_an_absurd_matmul_is_refused_with_the_largest_n_that_fits() -> None:
    with too_large("matmul") as caught:
        check(build_host(1), cases=["matmul"], matmul_size=131072)
    assert caught.value.errors[0]["field"] == "matmul_size"
    fields = json.loads("{" + str(caught.value.hint).removeprefix("use ") + "}")
    check(build_host(1), cases=["matmul"], **fields)


@given(
    st.sampled_from([case for case in CASES if case != "matmul"]), st.integers(4, MAX_SIZE_BYTES),
    st.integers(2**12, 2**42), st.integers(2, 16), st.sampled_from(["cpu", "gpu"]),
)  # fmt: skip
def test_a_refusal_names_a_size_that_is_accepted(case: str, size: int, room: int, count: int, platform: Any) -> None:
    host = build_host(count, platform, host_bytes=room, device_bytes=room)
    try:
        check(host, cases=[case], sizes_bytes=[size])
    except InvalidRequestError as error:
        found = re.fullmatch(r'use "sizes_bytes": \[(\d+)\]', error.hint)
        assert found
        check(host, cases=[case], sizes_bytes=[int(found[1])])


def test_virtual_devices_share_the_hosts_memory() -> None:
    one, eight = build_host(1, host_bytes=4 * GIB), build_host(8, host_bytes=4 * GIB)
    check(one, cases=["replicate"], sizes_bytes=[GIB // 2])
    with too_large("on the host"):
        check(eight, cases=["replicate"], sizes_bytes=[GIB // 2])


def test_of_an_accelerator_what_others_hold_is_not_there_and_jaxs_limit_counts_first() -> None:
    size = {"cases": ["all_reduce"], "sizes_bytes": [2 * GIB], "devices": [0, 1]}
    used = {1: {"memory": Memory(capacity_bytes=16 * GIB, used_bytes=10 * GIB, **EVIDENCE)}}
    with too_large("on device 1; it has 6442450944 bytes"):
        check(build_host(2, "gpu", changes=used), **size)
    check(build_host(3, "gpu", changes={2: used[1]}), **size)
    limited = {0: {"memory": Memory(capacity_bytes=80 * GIB, limit_bytes=5 * GIB, **EVIDENCE)}}
    with too_large("on device 0; it has 5368709120 bytes"):
        check(build_host(2, "gpu", changes=limited), **size)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_memory_that_nobody_has_told_is_not_assumed(platform: Any) -> None:
    host = build_host(2, platform, host_bytes=None, device_bytes=None)
    check(host, cases=["host_to_device"], sizes_bytes=[2**20])
    with too_large("its memory is not known"):
        check(host, cases=["host_to_device"], sizes_bytes=[GIB])


def hold(*, own: bool = False) -> dict[str, Any]:
    return {"processes": (DeviceProcess(pid=4321, name="train.py", own=own),)}


@pytest.mark.parametrize("suite", ["quick", "full"])
@pytest.mark.parametrize(("platform", "mode"), [("tpu", None), ("gpu", "exclusive_process"), ("gpu", "default")])
def test_a_device_that_another_process_holds_is_refused_by_name(platform: Any, mode: str | None, suite: str) -> None:
    changes = {1: {**hold(), "compute_mode": mode}}
    with pytest.raises(DeviceBusyError, match=r"device 1 .* is held by process 4321 \(train.py\); .* idle") as caught:
        check(build_host(4, platform, changes=changes), suite=suite)
    assert "wait for process 4321" in caught.value.hint
    check(build_host(4, platform, changes={1: {**hold(own=True), "compute_mode": mode}}), suite=suite)


def test_jax_opens_every_device_that_it_sees_so_naming_others_does_not_help() -> None:
    with pytest.raises(DeviceBusyError, match=r"device 1 ") as caught:
        check(build_host(4, "gpu", changes={1: hold()}), devices=[0, 2])
    assert "JAX opens every device" in caught.value.hint
    assert "CUDA_VISIBLE_DEVICES" in caught.value.hint


def test_who_holds_a_device_is_told_before_there_is_too_little_memory() -> None:
    memory = Memory(capacity_bytes=16 * GIB, used_bytes=16 * GIB, **EVIDENCE)
    with pytest.raises(DeviceBusyError, match="process 4321"):
        check(build_host(1, "gpu", changes={0: {**hold(), "memory": memory}}), cases=["replicate"])


def test_a_device_that_is_hidden_from_jax_is_not_opened() -> None:
    seen = {"jax_id": 0}
    changes = {0: seen, 1: {**hold(), "compute_mode": "exclusive_process"}}
    check(build_host(2, "gpu", changes=changes), devices=[0])


def test_of_devices_that_jax_opens_and_nobody_can_tell_apart_each_counts_as_opened() -> None:
    host = build_host(2, "gpu", changes={0: {"jax_id": 0}, 1: hold()})
    check(host, devices=[0])
    unmatched = Notice(code="jax_device_unmatched", message="1 of JAX's GPUs cannot be told apart from here")
    with pytest.raises(DeviceBusyError, match="device 1 "):
        check(host.model_copy(update={"warnings": (unmatched,)}), devices=[0])


@pytest.mark.parametrize(("where", "words"), [
    ({"job": "slurm 7"}, "in slurm 7"), ({"job": "pod p-1"}, "in pod p-1"),
])  # fmt: skip
def test_who_is_in_the_way_is_named_with_command_and_place(where: dict[str, str], words: str) -> None:
    processes = tuple(DeviceProcess(pid=pid, command=f"python train{pid}.py", **where) for pid in (5, 6))
    with pytest.raises(DeviceBusyError) as caught:
        check(build_host(1, "tpu", changes={0: {"processes": processes}}))
    assert f"process 5 (python train5.py) {words}" in caught.value.detail
    assert "process 6 (python train6.py)" in caught.value.detail


def test_a_device_in_prohibited_mode_is_refused() -> None:
    with pytest.raises(DeviceBusyError, match=r"device 1 .* compute mode prohibited") as caught:
        check(build_host(2, "gpu", changes={1: {"compute_mode": "prohibited", "pci_bus_id": "0000:1b:00.0"}}))
    assert "nvidia-smi -i 0000:1b:00.0 -c DEFAULT" in caught.value.hint


def test_memory_of_our_own_worker_is_ours_and_that_of_a_display_is_not_there() -> None:
    size = {"cases": ["replicate"], "sizes_bytes": [GIB], "devices": [0]}

    def host(*processes: DeviceProcess) -> Devices:
        memory = Memory(capacity_bytes=16 * GIB, used_bytes=15 * GIB, **EVIDENCE)
        return build_host(1, "gpu", changes={0: {"memory": memory, "processes": processes}})

    check(host(DeviceProcess(pid=7, used_bytes=15 * GIB, own=True)), **size)
    with too_large(f"it has {GIB} bytes"):
        check(host(), **size)
    check(host(), **{**size, "sizes_bytes": [2**20]})  # which makes the device no less idle


# ---- processes that cannot be seen -----------------------------------------------------------------------------------


def build_unseen(platform: Any = "gpu", used_bytes: Any = GIB, basis: Any = "passive", state: Any = "stopped") -> Any:
    """Returns a host whose device 1 has holders that cannot be seen."""
    memory = Memory(capacity_bytes=80 * GIB, used_bytes=used_bytes, **{**EVIDENCE, "basis": basis})
    host = build_host(2, platform, changes={1: {"processes": None, "memory": memory}})
    return host.model_copy(update={"worker": host.worker.model_copy(update={"state": state})})


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_a_device_whose_processes_cannot_be_seen_may_be_in_use(platform: Any) -> None:
    with pytest.raises(DeviceBusyError, match=r"device 1 \(.*\), which may be in use") as caught:
        check(build_unseen(platform), cases=["matmul"], devices=[0])
    for word in ("owners.conf", "features.hostPID", "JAX opens every device"):
        assert word in caught.value.hint


def test_a_gpu_with_less_memory_in_use_than_any_context_takes_is_idle() -> None:
    check(build_unseen(used_bytes=IDLE_BYTES - 1))
    for busy in (
        build_unseen(used_bytes=IDLE_BYTES),
        build_unseen(used_bytes=None),
        build_unseen(used_bytes=0, basis="live"),  # JAX tells of its own arrays only
        build_unseen("tpu", used_bytes=0),
    ):
        with pytest.raises(DeviceBusyError):
            check(busy)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
@pytest.mark.parametrize("state", ["stopped", "starting", "ready", "busy", "stopping", "backoff", "failed"])
def test_our_own_worker_was_started_on_idle_devices_and_hides_their_processes(platform: Any, state: Any) -> None:
    host = build_unseen(platform, state=state)
    if state in {"starting", "ready", "busy", "stopping"}:
        check(host)
    else:
        with pytest.raises(DeviceBusyError):
            check(host)
