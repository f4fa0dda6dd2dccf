"""What is refused before it is queued: too large, not there, busy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import BenchTooLargeError, DeviceBusyError, InvalidRequestError
from meshwright.wire.bench import MAX_SIZE_BYTES, BenchRequest
from meshwright.wire.devices import DeviceProcess, Devices, JaxView, Memory, WorkerState
from meshwright_agent.bench.limits import (
    APPETITES,
    CONTEXT_BYTES,
    check_bench,
    check_holders,
    find_closed,
    is_hidden,
    list_demands,
    resolve_tier,
)
from meshwright_agent.bench.scope import CASES, build_host_scope, build_scope
from tests.fakes.topologies import EVIDENCE
from tests.unit.bench.hosts import GIB, build_host


def check(host: Devices, **fields: Any) -> None:
    check_bench(BenchRequest.model_validate(fields), host)


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
@pytest.mark.parametrize("suite", ["quick", "full"])
def test_both_suites_fit_on_usual_hosts(platform: Any, suite: str) -> None:
    check(build_host(platform=platform, device_bytes=16 * GIB), suite=suite)


def test_every_case_states_its_appetite() -> None:
    assert set(APPETITES) == set(CASES)
    scope = build_scope(BenchRequest(), platform="cpu", indices=range(8))
    assert [demand.case for demand in list_demands(scope)] == list(CASES)


@pytest.mark.parametrize("case", [case for case in CASES if case != "matmul"])
def test_an_absurd_size_is_refused_for_every_case(case: str) -> None:
    with pytest.raises(
        BenchTooLargeError, match=rf"{case} with S = {MAX_SIZE_BYTES} bytes on .* it has {16 * GIB} bytes"
    ):
        check(build_host(), cases=[case], sizes_bytes=[MAX_SIZE_BYTES])


def test_an_absurd_matmul_is_refused_with_the_largest_n_that_fits() -> None:
    with pytest.raises(BenchTooLargeError, match="matmul") as caught:
        check(build_host(1), cases=["matmul"], matmul_size=131072)
    assert caught.value.errors[0]["field"] == "matmul_size"
    fields = json.loads("{" + str(caught.value.hint).removeprefix("use ") + "}")
    check(build_host(1), cases=["matmul"], **fields)


@given(
    case=st.sampled_from([case for case in CASES if case != "matmul"]),
    size=st.integers(4, MAX_SIZE_BYTES),
    room=st.integers(2**12, 2**42),
    count=st.integers(2, 16),
    platform=st.sampled_from(["cpu", "gpu"]),
)
def test_a_refusal_names_a_size_that_is_then_accepted(
    case: str, size: int, room: int, count: int, platform: Any
) -> None:
    host = build_host(count, platform, host_bytes=room, device_bytes=room)
    try:
        check(host, cases=[case], sizes_bytes=[size])
    except BenchTooLargeError as error:
        found = re.fullmatch(r'use "sizes_bytes": \[(\d+)\]', error.hint)
        assert found
        check(host, cases=[case], sizes_bytes=[int(found[1])])


@given(st.integers(4, 2**36), st.integers(2**20, 2**38), st.sampled_from(CASES))
def test_more_memory_never_fits_less(size: int, room: int, case: str) -> None:
    def fits(host_bytes: int) -> bool:
        try:
            check(build_host(2, host_bytes=host_bytes), cases=[case], sizes_bytes=[size], matmul_size=256)
        except BenchTooLargeError:
            return False
        return True

    assert fits(room) <= fits(2 * room)


def test_virtual_devices_share_the_hosts_memory() -> None:
    one, eight = build_host(1, host_bytes=4 * GIB), build_host(8, host_bytes=4 * GIB)
    check(one, cases=["replicate"], sizes_bytes=[GIB // 2])
    with pytest.raises(BenchTooLargeError, match="on the host"):
        check(eight, cases=["replicate"], sizes_bytes=[GIB // 2])


def test_of_an_accelerator_what_others_hold_is_not_there_and_jaxs_limit_counts_first() -> None:
    size = {"cases": ["all_reduce"], "sizes_bytes": [2 * GIB], "devices": [0, 1]}
    used = {1: {"memory": Memory(capacity_bytes=16 * GIB, used_bytes=10 * GIB, **EVIDENCE)}}
    with pytest.raises(BenchTooLargeError, match="on device 1; it has 6442450944 bytes"):
        check(build_host(2, "gpu", changes=used), **size)
    check(build_host(3, "gpu", changes={2: used[1]}), **size)
    limited = {0: {"memory": Memory(capacity_bytes=80 * GIB, limit_bytes=5 * GIB, **EVIDENCE)}}
    with pytest.raises(BenchTooLargeError, match="on device 0; it has 5368709120 bytes"):
        check(build_host(2, "gpu", changes=limited), **size)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_memory_that_nobody_has_told_is_not_assumed(platform: Any) -> None:
    host = build_host(2, platform, host_bytes=None, device_bytes=None)
    check(host, cases=["host_to_device"], sizes_bytes=[2**20])
    with pytest.raises(BenchTooLargeError, match="its memory is not known"):
        check(host, cases=["host_to_device"], sizes_bytes=[GIB])


def test_what_the_scope_refuses_is_refused_here() -> None:
    with pytest.raises(InvalidRequestError, match="device 8 is not there"):
        check(build_host(8), devices=[8])


def hold(*, own: bool = False) -> dict[str, Any]:
    return {"processes": (DeviceProcess(pid=4321, name="train.py", own=own),)}


@pytest.mark.parametrize(
    ("platform", "mode", "suite"),
    [("tpu", None, "quick"), ("gpu", "exclusive_process", "quick"), ("gpu", "default", "full")],
)
def test_a_device_that_another_process_needs_for_itself_is_refused_with_its_name(
    platform: Any, mode: str | None, suite: str
) -> None:
    changes = {1: {**hold(), "compute_mode": mode}}
    with pytest.raises(DeviceBusyError, match=r"device 1 .* process 4321 \(train.py\) holds") as caught:
        check(build_host(4, platform, changes=changes), suite=suite)
    assert "4321" in caught.value.hint
    check(build_host(4, platform, changes={1: {**hold(own=True), "compute_mode": mode}}), suite=suite)


def test_a_shared_gpu_may_be_measured_by_the_quick_suite() -> None:
    check(build_host(2, "gpu", changes={0: {**hold(), "compute_mode": "default"}}))


@pytest.mark.parametrize(("platform", "mode"), [("tpu", None), ("gpu", "exclusive_process")])
def test_jax_opens_every_device_that_it_sees_so_naming_others_does_not_help(platform: Any, mode: str | None) -> None:
    changes = {1: {**hold(), "compute_mode": mode}}
    with pytest.raises(DeviceBusyError, match=r"device 1 .* one process at a time") as caught:
        check(build_host(4, platform, changes=changes), devices=[0, 2])
    assert "JAX opens all devices" in caught.value.hint


def test_a_device_that_is_hidden_from_jax_is_not_opened() -> None:
    seen = {"jax": JaxView(id=0, kind="H100", platform="gpu", generation=1, **EVIDENCE)}
    changes = {0: seen, 1: {**hold(), "compute_mode": "exclusive_process"}}
    check(build_host(2, "gpu", changes=changes), devices=[0])


def test_the_full_tier_needs_only_the_devices_idle_that_it_measures() -> None:
    host = build_host(4, "gpu", changes={1: {**hold(), "compute_mode": "default"}})
    check(host, suite="full", devices=[0, 2])
    with pytest.raises(DeviceBusyError, match=r"full tier .* device 1 .* idle") as caught:
        check(host, tier="full", devices=[1])
    assert '"tier": "light"' in caught.value.hint


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"container": "c" * 64, "pod_uid": "p-1", "job": "slurm 7"}, "in slurm 7"),
        ({"container": "c" * 64, "pod_uid": "p-1"}, "in pod p-1"),
        ({"container": "c" * 64}, f"in container {'c' * 12}, "),
    ],
)
def test_who_is_in_the_way_is_named_with_command_and_place(where: dict[str, str], words: str) -> None:
    processes = tuple(DeviceProcess(pid=pid, command=f"python train{pid}.py", **where) for pid in (5, 6))
    with pytest.raises(DeviceBusyError) as caught:
        check(build_host(1, "tpu", changes={0: {"processes": processes}}))
    assert f"process 5 (python train5.py) {words}" in caught.value.detail
    assert "process 6 (python train6.py)" in caught.value.detail


# ---- tiers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, "light"),
        ({"suite": "full"}, "full"),
        ({"sizes_bytes": [2**20]}, "light"),
        ({"sizes_bytes": [256 * 2**20]}, "full"),
        ({"max_s": 600}, "full"),
        ({"suite": "full", "tier": "light"}, "light"),
        ({"tier": "full"}, "full"),
        ({"tier": "passive"}, "passive"),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_without_a_tier_a_bench_is_light_as_long_as_it_keeps_to_the_bounds(
    platform: Any, fields: dict[str, Any], tier: str
) -> None:
    request = BenchRequest.model_validate(fields)
    assert resolve_tier(request, build_host_scope(request, build_host(4, platform))) == tier


def test_a_light_bench_that_is_too_large_is_told_what_is_not() -> None:
    host = build_host(2, "gpu")
    with pytest.raises(BenchTooLargeError, match="light tier takes at most 536870912") as caught:
        check(host, tier="light", cases=["all_reduce"], sizes_bytes=[GIB])
    found = re.match(r'use "sizes_bytes": \[(\d+)\], or "tier": "full"', caught.value.hint)
    assert found
    check(host, tier="light", cases=["all_reduce"], sizes_bytes=[int(found[1])])
    with pytest.raises(InvalidRequestError, match="max_s is 100; the light tier"):
        check(host, tier="light", max_s=100)


def test_a_device_in_prohibited_mode_is_no_refusal_but_a_reason_to_skip() -> None:
    host = build_host(2, "gpu", changes={1: {"compute_mode": "prohibited"}})
    assert "device 1 " in find_closed(BenchRequest(), host)
    assert find_closed(BenchRequest(tier="passive"), host) == ""
    assert find_closed(BenchRequest(), build_host(2, "gpu")) == ""


def test_beside_another_process_a_cuda_context_is_reserved_and_our_own_memory_is_ours() -> None:
    size = {"cases": ["replicate"], "sizes_bytes": [64 * 2**20], "devices": [0]}

    def host(used: int, **process: Any) -> Devices:
        memory = Memory(capacity_bytes=16 * GIB, used_bytes=used, **EVIDENCE)
        holder = DeviceProcess(pid=7, used_bytes=used, **process)
        return build_host(1, "gpu", changes={0: {"memory": memory, "processes": (holder,), "compute_mode": "default"}})

    check(host(16 * GIB, own=True), **size)
    with pytest.raises(BenchTooLargeError):
        check(host(16 * GIB - 500 * 2**20), **size)
    check(host(16 * GIB - 600 * 2**20), **size)


# ---- holders that could not be looked at -----------------------------------------------------------------------------

UNSEEN: dict[str, Any] = {"processes": None}


def with_worker(host: Devices, state: WorkerState) -> Devices:
    return host.model_copy(update={"worker": host.worker.model_copy(update={"state": state})})


@pytest.mark.parametrize(
    ("platform", "mode", "tier"),
    [
        ("tpu", None, "light"),
        ("tpu", None, "full"),
        ("gpu", "exclusive_process", "light"),
        ("gpu", "exclusive_process", "full"),
        ("gpu", "default", "full"),
    ],
)
def test_who_could_not_be_looked_at_may_be_in_the_way(platform: Any, mode: str | None, tier: str) -> None:
    host = build_host(2, platform, changes={1: {**UNSEEN, "compute_mode": mode}})
    with pytest.raises(DeviceBusyError, match=r"who holds device 1 \(.*\) could not be looked at") as caught:
        check(host, tier=tier, cases=["matmul"], devices=[1])
    for word in ("owners.conf", "features.hostPID", '"tier": "passive"'):
        assert word in caught.value.hint
    assert ('"tier": "light"' in caught.value.hint) is (mode == "default")
    check(host, tier="passive")


def test_a_shared_gpu_has_room_for_a_light_bench_beside_whoever_may_be_there() -> None:
    check(build_host(2, "gpu", changes={1: {**UNSEEN, "compute_mode": "default"}}), tier="light")


@pytest.mark.parametrize(("platform", "mode"), [("tpu", None), ("gpu", "exclusive_process")])
def test_nobody_else_is_on_a_device_for_one_process_that_our_own_has_open(platform: Any, mode: str | None) -> None:
    host = build_host(2, platform, changes={0: {**UNSEEN, "compute_mode": mode}})
    for state in ("ready", "busy"):
        check_holders(BenchRequest(), with_worker(host, state))  # type: ignore[arg-type]
        assert not is_hidden(BenchRequest(), with_worker(host, state))  # type: ignore[arg-type]
    with pytest.raises(DeviceBusyError):
        check_holders(BenchRequest(), with_worker(host, "starting"))


@pytest.mark.parametrize("state", ["stopped", "starting", "ready", "busy", "stopping", "backoff", "failed"])
def test_our_own_worker_hides_who_else_is_on_a_shared_gpu_and_is_no_reason_to_refuse(state: Any) -> None:
    request = BenchRequest(tier="full")
    host = with_worker(build_host(2, "gpu", changes={1: {**UNSEEN, "compute_mode": "default"}}), state)
    is_there = state in {"starting", "ready", "busy", "stopping"}
    assert is_hidden(request, host) is is_there
    assert not is_hidden(BenchRequest(tier="light"), host)
    if is_there:
        check_bench(request, host)
    else:
        with pytest.raises(DeviceBusyError):
            check_bench(request, host)
    with pytest.raises(DeviceBusyError):  # before it begins: the worker is let go first
        check_holders(request, host)
    check_holders(request, host, minds_unseen=False)


# ---- room for a context ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [None, (DeviceProcess(pid=7, name="train.py"),)])
def test_every_gpu_that_jax_opens_beside_others_has_room_for_a_context(processes: Any) -> None:
    def host(left_bytes: int, **more: Any) -> Devices:
        memory = Memory(capacity_bytes=16 * GIB, used_bytes=16 * GIB - left_bytes, **EVIDENCE)
        return build_host(
            2, "gpu", changes={1: {"memory": memory, "processes": processes, "compute_mode": "default", **more}}
        )

    asked: dict[str, Any] = {"tier": "light", "devices": [0], "cases": ["matmul"]}
    check(host(CONTEXT_BYTES), **asked)
    with pytest.raises(DeviceBusyError, match=rf"device 1 .* too.*{CONTEXT_BYTES - 1} bytes") as caught:
        check(host(CONTEXT_BYTES - 1), **asked)
    assert ("process 7 (train.py) leaves" in caught.value.detail) is bool(processes)
    assert "CUDA_VISIBLE_DEVICES" in caught.value.hint
    check_bench(BenchRequest.model_validate(asked), with_worker(host(0), "ready"))  # its context is there
    check(host(0, processes=()), **asked)  # memory that nobody's context takes: JAX says what it thinks of it


def test_beside_who_could_not_be_looked_at_a_context_is_reserved_too() -> None:
    memory = Memory(capacity_bytes=16 * GIB, used_bytes=16 * GIB - 500 * 2**20, **EVIDENCE)
    host = build_host(1, "gpu", changes={0: {"memory": memory, "compute_mode": "default", **UNSEEN}})
    with pytest.raises(BenchTooLargeError):
        check(host, cases=["replicate"], sizes_bytes=[64 * 2**20], devices=[0])
