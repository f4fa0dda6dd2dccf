"""Leases by their rules: who yields to whom, whose they are, what survives, what ends when, and a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import DeviceBusyError, DeviceLeasedError, ForbiddenError, NotFoundError, UnavailableError
from meshwright.wire.base import DeviceRef
from meshwright_agent import leases as module
from meshwright_agent.leases import HELD, LEASE, Owner, StoredLease, read_held
from meshwright_agent.store import StoreUnavailableError
from tests.fakes.stored import ManualBoot, ManualClock
from tests.unit.leases.scene import NAME, Scene, build_lease, opened
from tests.unit.store.opening import editing, full_disk


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened(tmp_path) as scene:
        yield scene


# ---- who yields ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there", "new", "outcome"), [
    (False, False, "refused"), (False, True, "refused"), (True, True, "refused"), (True, False, "taken over"),
])  # fmt: skip
async def test_a_firm_lease_takes_over_a_preemptible_one_and_nothing_else_does(
    scene: Scene, there: bool, new: bool, outcome: str
) -> None:
    old = await scene.lease([0, 1], preemptible=there, purpose="old", ttl_s=50, owner="ann")
    beside = await scene.lease([3], preemptible=True)
    if outcome == "refused":
        with pytest.raises(DeviceLeasedError) as caught:
            await scene.lease([1, 2], preemptible=new)
        for word in (old.id, "of ann", "(old)", "device 1 by", "50 s left"):
            assert word in caught.value.detail
        assert caught.value.hint.startswith('use "devices": [2]; or wait for')
        assert old.id in caught.value.hint
        assert scene.held() == [old.id, beside.id]
        return
    lease = await scene.lease([1, 2], preemptible=new, purpose="job")
    assert lease.preempted_leases == (old.id,)
    assert scene.held() == [beside.id, lease.id]
    with pytest.raises(NotFoundError, match=rf"preempted by lease {lease.id} \(job\)"):
        await scene.service.get(old.id)


async def test_a_hint_names_all_leases_in_the_way_and_the_time_of_the_last(scene: Scene) -> None:
    await scene.lease([0], lease_id="a", ttl_s=3)
    await scene.lease([1], lease_id="b", ttl_s=600)
    with pytest.raises(DeviceLeasedError) as caught:
        await scene.lease()
    assert "wait for the end of a and b (600 s at most)" in caught.value.hint
    assert caught.value.hint.endswith("DELETE /leases/a and DELETE /leases/b")


async def test_no_lease_is_made_before_the_devices_are_known(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Any:
        raise UnavailableError("the agent is still looking at its devices")

    monkeypatch.setattr(scene.service, "here", look)
    with pytest.raises(UnavailableError, match="still looking"):
        await scene.lease("all")
    assert scene.held() == []


async def test_a_firm_lease_cancels_benches_and_says_which(scene: Scene) -> None:
    scene.benches.update({"run-a": {0, 1}, "run-b": {3}})
    lease = await scene.lease([1], purpose="job 7")
    assert lease.cancelled_runs == ("run-a",)
    assert scene.stopped == [(("run-a",), f"preempted by lease {lease.id} (job 7)")]
    assert (await scene.service.get(lease.id)).cancelled_runs == ("run-a",)


async def test_a_preemptible_lease_cancels_no_bench(scene: Scene) -> None:
    scene.benches["run-a"] = {0}
    with pytest.raises(DeviceBusyError, match="run-a would open") as caught:
        await scene.lease([0], preemptible=True)
    assert "preemptible: false" in caught.value.hint
    assert (await scene.lease([1], preemptible=True)).cancelled_runs == ()
    assert len(scene.held()) == 1


async def test_a_bench_that_begins_while_the_lease_is_written_is_cancelled_too(scene: Scene, tmp_path: Path) -> None:
    asking = asyncio.create_task(scene.lease([0]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    scene.benches["run-late"] = {0}
    lease = await asking
    assert lease.cancelled_runs == ("run-late",)
    held = read_held(tmp_path / NAME, scene.boot)
    assert held is not None
    assert held[0].lease.cancelled_runs == ("run-late",)


async def test_a_worker_that_does_not_end_costs_the_lease(scene: Scene) -> None:
    await scene.lease([0], lease_id="before", preemptible=True)
    scene.holds_on = True
    with pytest.raises(DeviceBusyError, match="process 7"):
        await scene.lease(lease_id="a")
    assert scene.held() == ["before"]
    with pytest.raises(NotFoundError, match="not given"):
        await scene.service.get("a")


async def test_of_two_that_ask_at_once_one_has_the_device(scene: Scene) -> None:
    answers = await asyncio.gather(*(scene.lease([0]) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(answer, DeviceLeasedError) for answer in answers) == 7
    assert len(scene.held()) == 1


# ---- ids and owners --------------------------------------------------------------------------------------------------


async def test_the_owner_renews_by_the_same_put_and_may_change_time_and_purpose(scene: Scene) -> None:
    first = await scene.lease([0, 1], lease_id="slurm-1", ttl_s=60, owner="slurm")
    scene.boot.now_s += 30
    for devices in ([1, 0], {"count": 2}):
        renewed, is_new = await scene.put(devices, lease_id="slurm-1", ttl_s=90, owner="slurm", purpose="longer")
        assert (is_new, renewed.expires_in_s, renewed.purpose) == (False, 90, "longer")
        assert renewed.devices == first.devices
    whole = await scene.lease([2, 3], lease_id="b", ttl_s=60)
    assert not (await scene.put([2, 3], lease_id="b", ttl_s=5))[1]
    assert [(each.id, each.expires_in_s) for each in scene.service.list_leases()] == [("slurm-1", 90), ("b", 5)]
    assert scene.stopped[-1][1].startswith(f"preempted by lease {whole.id}")  # a renewal frees nothing anew
    for each in (first, whole):
        await scene.end(each.id, "slurm")
    assert [(await scene.put("all", lease_id="c"))[1] for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("asked", "said"), [
    ({"devices": [0, 2]}, "it holds device 0, 1, and device 0, 2 is asked for"),
    ({"devices": [0]}, "device 0 is asked for"), ({"devices": [0, 1, 2]}, "device 0, 1, 2 is asked for"),
    ({"devices": {"count": 1}}, "1 device(s) is asked for"), ({"devices": "all"}, "device 0, 1, 2, 3 is asked for"),
    ({"devices": {"count": 3}}, "3 device(s) is asked for"),
    ({"devices": {"exclude": [1]}}, "a choice without 1 is asked for"),
    ({"devices": {"count": 2, "exclude": [0]}}, "2 device(s) without 0 is asked for"),
    ({"devices": [0, 1], "preemptible": True}, "it has preemptible False, and True is asked for"),
    ({"devices": [0, 1], "preemptible": False}, "it has preemptible True, and False is asked for"),
])  # fmt: skip
async def test_a_put_with_other_devices_is_refused_and_says_what_differs(
    scene: Scene, asked: dict[str, Any], said: str
) -> None:
    await scene.lease([0, 1], lease_id="a", ttl_s=60, preemptible="preemptible True" in said)
    with pytest.raises(DeviceLeasedError) as caught:
        await scene.put(**{"lease_id": "a", "ttl_s": 600, **asked})
    assert said in caught.value.detail
    assert "[0, 1]" in caught.value.hint
    assert scene.service.list_leases()[0].expires_in_s == 60


async def test_another_owner_neither_renews_nor_ends_nor_takes_the_id_also_after_a_restart(tmp_path: Path) -> None:
    boot = ManualBoot()
    async with opened(tmp_path, boot=boot) as scene:
        await scene.lease([0], lease_id="a", owner="ann")
    async with opened(tmp_path, boot=boot) as scene:
        for ask in (scene.put([0], lease_id="a", owner="bob"), scene.end("a", owner="bob")):
            with pytest.raises(ForbiddenError, match="belongs to ann, and bob asks") as caught:
                await ask
            assert "token or certificate of ann" in caught.value.hint
        assert (await scene.put([0], lease_id="a", owner="bob", admin=True))[0].owner == "ann"
        assert (await scene.end("a", owner="ann")).id == "a"
        assert (await scene.lease([0], lease_id="a", owner="bob")).owner == "bob"


@pytest.mark.parametrize(("owner", "who", "may"), [
    ("ann", Owner("ann"), True), ("ann", Owner("bob"), False), ("ann", Owner("bob", is_admin=True), True),
    ("ann", Owner(), True), ("", Owner("bob"), True),
])  # fmt: skip
def test_a_lease_belongs_to_the_token_that_took_it_and_one_without_a_token_to_all(
    owner: str, who: Owner, may: bool
) -> None:
    if may:
        who.check(build_lease(owner=owner))
    else:
        with pytest.raises(ForbiddenError):
            who.check(build_lease(owner=owner))


async def test_the_id_of_a_lease_that_has_ended_may_be_used_again(scene: Scene) -> None:
    await scene.lease([0], lease_id="slurm-1", ttl_s=60)
    await scene.end("slurm-1")
    with pytest.raises(NotFoundError, match="ended by request"):
        await scene.end("slurm-1")
    await scene.lease([1], lease_id="slurm-1", ttl_s=60)
    scene.boot.now_s += 60
    again = await scene.lease([2], lease_id="slurm-1")
    assert [device.local_index for device in again.devices] == [2]
    assert scene.held() == ["slurm-1"]


async def test_a_caller_who_leaves_stops_nothing(scene: Scene) -> None:
    asking = asyncio.create_task(scene.lease([0], lease_id="a"))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not (await scene.put([0], lease_id="a"))[1]
    assert scene.held() == ["a"]


# ---- time ------------------------------------------------------------------------------------------------------------


async def test_a_lease_ends_by_itself_without_being_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    async with opened(tmp_path) as scene:
        lease = await scene.lease([0], ttl_s=60)
        assert lease.expires_in_s == 60
        scene.boot.now_s += 59.5
        assert scene.service.list_leases()[0].expires_in_s == 0.5
        scene.boot.now_s += 0.5
        assert scene.held() == []
        for ask in (scene.service.get(lease.id), scene.end(lease.id)):
            with pytest.raises(NotFoundError, match="not renewed in time"):
                await ask
        await scene.forget_expired()
        await scene.lease([0])


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0, 10 * 365 * 86400.0])
async def test_a_wall_clock_that_jumps_changes_nothing_but_what_is_shown(tmp_path: Path, jump_s: float) -> None:
    clock, boot = ManualClock(), ManualBoot()
    async with opened(tmp_path, clock=clock, boot=boot) as scene:
        await scene.lease([0], ttl_s=60)
        scene.clock.advance(jump_s)
        scene.boot.now_s += 30
    async with opened(tmp_path, clock=clock, boot=boot) as scene:
        (lease,) = scene.service.list_leases()
        assert lease.expires_in_s == 30


@pytest.mark.parametrize(("boot", "why"), [
    (ManualBoot("boot-2", now_s=5000.0), "the host was restarted"),
    (ManualBoot("boot-1", now_s=5000.0), "not renewed in time"),
    (ManualBoot("boot-0", now_s=1010.0), "the host was restarted"),
    (ManualBoot("boot-1", now_s=20.0), "the host was restarted"),
    (ManualBoot("boot-1", now_s=998.5), "the host was restarted"),
])  # fmt: skip
async def test_leases_of_before_end_with_the_reason_when_an_agent_is_back(
    tmp_path: Path, boot: ManualBoot, why: str
) -> None:
    async with opened(tmp_path) as scene:
        lease = await scene.lease([0], ttl_s=600)
    for later in (boot, ManualBoot("boot-1", now_s=1000.0)):  # it is stored, and does not come back
        async with opened(tmp_path, boot=later) as scene:
            assert scene.held() == []
            with pytest.raises(NotFoundError, match=why):
                await scene.service.get(lease.id)
            await scene.forget_expired()


@pytest.mark.parametrize("now_s", [999.0, 999.5, 1599.0])
async def test_a_lease_is_of_this_boot_if_it_began_before_now_but_for_a_second(tmp_path: Path, now_s: float) -> None:
    async with opened(tmp_path) as scene:
        await scene.lease([0], ttl_s=600)
    async with opened(tmp_path, boot=ManualBoot(now_s=now_s)) as scene:
        assert scene.held() == ["lease-1"]


def test_a_lease_that_an_earlier_version_left_has_no_host_and_its_index_as_position() -> None:
    devices = [{"local_index": 3, "uuid": "GPU-a"}]
    lease = build_lease().model_dump(mode="json") | {"devices": devices}
    stored = StoredLease.model_validate({"lease": lease, "boot_id": "boot-1", "until_s": 60.0})
    assert stored.lease.devices == (DeviceRef(host="", local_index=3, position=3, uuid="GPU-a"),)


async def test_a_lease_survives_its_agent_with_what_it_says(tmp_path: Path) -> None:
    boot = ManualBoot()
    async with opened(tmp_path, boot=boot) as scene:
        made = await scene.lease([0, 2], ttl_s=600, purpose="slurm job 7", owner="slurm", preemptible=True)
    async with opened(tmp_path, boot=boot) as scene:
        assert scene.service.list_leases() == (made,)


async def test_what_an_agent_left_is_read_without_one_also_beside_it(scene: Scene, tmp_path: Path) -> None:
    for number in range(3):
        await scene.lease([number], purpose=f"job {number}", ttl_s=100)
    await scene.end("lease-2")
    with editing(tmp_path / NAME) as other:
        other.execute("BEGIN IMMEDIATE")
        held = read_held(tmp_path / NAME, scene.boot)
        other.execute("ROLLBACK")
    assert held is not None
    assert [each.lease.purpose for each in held] == ["job 0", "job 2"]
    assert read_held(tmp_path / NAME, ManualBoot("boot-2")) == ()
    assert read_held(tmp_path / NAME, ManualBoot(now_s=1100.0)) == ()
    (tmp_path / "text").write_text("not a database" * 1000)
    assert read_held(tmp_path / "text", ManualBoot()) is None
    assert read_held(tmp_path / "none", ManualBoot()) == ()
    assert not (tmp_path / "none").exists()


# ---- a disk that is full ---------------------------------------------------------------------------------------------


async def test_while_nothing_can_be_written_nothing_changes(scene: Scene) -> None:
    old = await scene.lease([0], preemptible=True, ttl_s=60, lease_id="a")
    scene.benches["run-a"] = {0}
    with full_disk(scene.store.path, "documents"):
        for ask in (scene.lease([0]), scene.put([0], lease_id="a", preemptible=True, ttl_s=600), scene.end("a")):
            with pytest.raises(StoreUnavailableError):
                await ask
        assert [(each.id, each.expires_in_s) for each in scene.service.list_leases()] == [("a", 60)]
        assert scene.benches == {"run-a": {0}}
    assert (await scene.lease([0])).preempted_leases == (old.id,)


async def test_what_a_write_that_failed_has_kept_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    async with opened(tmp_path) as scene:
        await scene.lease([1], lease_id="kept")
        write = scene.store.write

        async def write_late(*documents: Any, **events: Any) -> None:
            await write(*documents, **events)
            raise StoreUnavailableError("no answer within 2 s")

        with monkeypatch.context() as patch:
            patch.setattr(scene.store, "write", write_late)
            for ask in (scene.lease([0], lease_id="refused"), scene.end("kept")):
                with pytest.raises(StoreUnavailableError):
                    await ask
        await asyncio.sleep(0.1)
        held = await scene.store.list_documents(LEASE, states=[HELD])
        assert [document.key for document in held] == ["kept"]
        with monkeypatch.context() as patch:
            patch.setattr(scene.store, "write", write_late)
            with pytest.raises(StoreUnavailableError):
                await scene.put([1], lease_id="kept")
        await scene.end("kept")
        await asyncio.sleep(0.1)
        with pytest.raises(NotFoundError, match="ended by request"):
            await scene.service.get("kept")


async def test_a_lease_expires_while_nothing_can_be_written(tmp_path: Path) -> None:
    boot = ManualBoot()
    async with opened(tmp_path, boot=boot) as scene:
        await scene.lease([0], ttl_s=60)
        with full_disk(scene.store.path, "documents"):
            scene.boot.now_s += 60
            assert scene.held() == []
            await asyncio.sleep(0.01)
            assert scene.held() == []
    async with opened(tmp_path, boot=boot) as scene:
        assert scene.held() == []
        await scene.lease([0])
