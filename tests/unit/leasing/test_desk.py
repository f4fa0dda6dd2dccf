"""Leases by their rules: who gives way to whom, what survives, what ends when, what a disk that is down costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import (
    DeviceBusyError,
    DeviceLeasedError,
    IdempotencyConflictError,
    InvalidRequestError,
    LeaseNotFoundError,
    StoreUnavailableError,
)
from tests.fakes.stored import ManualBoot, ManualClock
from tests.unit.leasing.scene import Scene, opened, run_scene

# ---- who gives way -------------------------------------------------------------------------------------------------


def test_leases_of_different_devices_stand_beside_each_other(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        first, second = await scene.lease([0, 1]), await scene.lease([3])
        assert [each.id for each in scene.desk.list()] == [first.id, second.id]
        assert [device.local_index for device in second.devices] == [3]

    run_scene(tmp_path, test)


@pytest.mark.parametrize(
    ("there", "new", "outcome"),
    [
        (False, False, "refused"),
        (False, True, "refused"),
        (True, True, "refused"),
        (True, False, "taken over"),
    ],
)
def test_a_firm_lease_takes_over_a_preemptible_one_and_nothing_else_does(
    tmp_path: Path, there: bool, new: bool, outcome: str
) -> None:
    async def test(scene: Scene) -> None:
        old = await scene.lease([0, 1], preemptible=there, purpose="old", ttl_s=50, owner="ann")
        beside = await scene.lease([3], preemptible=True)
        if outcome == "refused":
            with pytest.raises(DeviceLeasedError) as caught:
                await scene.lease([1, 2], preemptible=new)
            for word in (old.id, "of ann", "(old)", "device 1 by", "50 s left"):
                assert word in caught.value.detail
            assert old.id in caught.value.hint
            assert [each.id for each in scene.desk.list()] == [old.id, beside.id]
            return
        lease = await scene.lease([1, 2], preemptible=new, purpose="job")
        assert lease.preempted_leases == (old.id,)
        assert [each.id for each in scene.desk.list()] == [beside.id, lease.id]
        with pytest.raises(LeaseNotFoundError, match=rf"pre-empted by {lease.id} \(job\)"):
            await scene.desk.get(old.id)

    run_scene(tmp_path, test)


def test_a_firm_lease_makes_benches_give_way_and_says_which(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.benches.update({"run-a": {0, 1}, "run-b": {3}})
        lease = await scene.lease([1], purpose="job 7")
        assert lease.cancelled_runs == ("run-a",)
        assert scene.stopped == [(("run-a",), f"pre-empted by lease {lease.id} (job 7)")]
        assert (await scene.desk.get(lease.id)).cancelled_runs == ("run-a",)

    run_scene(tmp_path, test)


def test_a_preemptible_lease_pre_empts_no_bench(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.benches["run-a"] = {0}
        with pytest.raises(DeviceBusyError, match=r"run-a \(bench\)") as caught:
            await scene.lease([0], preemptible=True)
        assert "preemptible: false" in caught.value.hint
        assert (await scene.lease([1], preemptible=True)).cancelled_runs == ()
        assert len(scene.desk.list()) == 1

    run_scene(tmp_path, test)


def test_benches_are_refused_from_before_the_lease_is_written(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        covered: list[bool] = []
        make_way = scene.make_way

        async def look(runs: Any, reason: str) -> tuple[str, ...]:
            covered.append(bool(scene.book.active()))
            return await make_way(runs, reason)

        scene.make_way = look  # type: ignore[method-assign]
        await scene.lease()
        assert covered == [True]

    run_scene(tmp_path, test)


def test_a_worker_that_does_not_let_go_costs_the_lease(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        scene.holds_on = True
        with pytest.raises(DeviceBusyError, match="process 7"):
            await scene.lease(key="k")
        assert scene.desk.list() == ()
        with pytest.raises(IdempotencyConflictError, match="not given"):
            await scene.lease(key="k")

    run_scene(tmp_path, test)


def test_of_two_that_ask_at_once_one_has_the_device(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        answers = await asyncio.gather(*(scene.lease([0]) for _ in range(8)), return_exceptions=True)
        assert sum(isinstance(answer, DeviceLeasedError) for answer in answers) == 7
        assert len(scene.desk.list()) == 1

    run_scene(tmp_path, test)


def test_a_caller_who_leaves_stops_nothing(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        asking = asyncio.create_task(scene.lease([0], key="k"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        again = await scene.lease([0], key="k")
        assert [each.id for each in scene.desk.list()] == [again.id]

    run_scene(tmp_path, test)


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        with pytest.raises(InvalidRequestError, match="devices names 4; this host has 4"):
            await scene.lease([0, 4])
        assert scene.desk.list() == ()

    run_scene(tmp_path, test)


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_one_key_reserves_once(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        first = await scene.lease([0], key="k")
        assert (await scene.lease([0], key="k")).id == first.id
        for other in ({"devices": [1]}, {"devices": [0], "owner": "bob"}, {"devices": [0], "ttl_s": 5}):
            with pytest.raises(IdempotencyConflictError, match=first.id):
                await scene.lease(key="k", **other)
        await scene.desk.end(first.id)
        with pytest.raises(IdempotencyConflictError, match="has ended: ended by request"):
            await scene.lease([0], key="k")

    run_scene(tmp_path, test)


def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    async def first(scene: Scene) -> str:
        return (await scene.lease([0], key="k")).id

    async def second(scene: Scene) -> str:
        return (await scene.lease([0], key="k")).id

    assert run_scene(tmp_path, first) == run_scene(tmp_path, second)


# ---- time ------------------------------------------------------------------------------------------------------------


def test_a_lease_ends_by_itself_and_a_renewal_counts_from_now(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        lease = await scene.lease([0], ttl_s=60)
        assert lease.expires_in_s == 60
        scene.boot.now_s += 59
        assert (await scene.desk.renew(lease.id, 60)).expires_in_s == 60
        scene.boot.now_s += 59.5
        assert scene.desk.list()[0].expires_in_s == 0.5
        scene.boot.now_s += 0.5
        assert scene.desk.list() == ()
        for verb in (scene.desk.get, scene.desk.end):
            with pytest.raises(LeaseNotFoundError, match="not renewed in time"):
                await verb(lease.id)
        with pytest.raises(LeaseNotFoundError):
            await scene.desk.renew(lease.id, 60)
        await scene.lease([0])

    run_scene(tmp_path, test)


@pytest.mark.parametrize("jump_s", [-86400.0, 86400.0, 10 * 365 * 86400.0])
def test_a_wall_clock_that_jumps_changes_nothing(tmp_path: Path, jump_s: float) -> None:
    clock, boot = ManualClock(), ManualBoot()

    async def first(scene: Scene) -> str:
        lease = await scene.lease([0], ttl_s=60)
        scene.clock.advance(jump_s)
        scene.boot.now_s += 30
        assert scene.desk.list()[0].expires_in_s == 30
        return lease.id

    async def second(scene: Scene) -> str:
        assert scene.desk.list()[0].expires_in_s == 30
        return scene.desk.list()[0].id

    assert run_scene(tmp_path, first, clock=clock, boot=boot) == run_scene(tmp_path, second, clock=clock, boot=boot)


def test_what_is_told_follows_the_wall_clock(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        await scene.lease([0], ttl_s=60)
        scene.clock.advance(3600)
        (lease,) = scene.desk.list()
        assert (lease.expires_at - scene.clock.now()).total_seconds() == 60

    run_scene(tmp_path, test)


@pytest.mark.parametrize(
    ("boot", "why"),
    [
        (ManualBoot("boot-2", now_s=5000.0), "the host was restarted"),
        (ManualBoot("boot-1", now_s=5000.0), "not renewed in time"),
        (ManualBoot("boot-1", now_s=20.0), "the host was restarted"),
    ],
)
def test_leases_of_before_end_with_the_reason_when_an_agent_is_back(tmp_path: Path, boot: ManualBoot, why: str) -> None:
    async def first(scene: Scene) -> str:
        return (await scene.lease([0], ttl_s=600)).id

    lease_id = run_scene(tmp_path, first)

    async def second(scene: Scene) -> None:
        assert scene.desk.list() == ()
        with pytest.raises(LeaseNotFoundError, match=why):
            await scene.desk.get(lease_id)

    run_scene(tmp_path, second, boot=boot)
    run_scene(tmp_path, second, boot=ManualBoot("boot-1", now_s=1000.0))  # it is written down, and does not come back


def test_a_lease_survives_its_agent_with_what_it_says(tmp_path: Path) -> None:
    async def first(scene: Scene) -> Any:
        made = await scene.lease([0, 2], ttl_s=600, purpose="slurm job 7", owner="slurm", preemptible=True)
        return made.model_dump()

    async def second(scene: Scene) -> Any:
        return scene.desk.list()[0].model_dump()

    boot = ManualBoot()
    assert run_scene(tmp_path, first, boot=boot) == run_scene(tmp_path, second, boot=boot)


# ---- a disk that is down ---------------------------------------------------------------------------------------------


def test_while_the_store_is_down_nothing_new_is_given_and_what_holds_holds(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        old = await scene.lease([0], preemptible=True, ttl_s=60)
        scene.benches["run-a"] = {0}
        scene.store.is_down = True
        with pytest.raises(StoreUnavailableError):
            await scene.lease([0])
        with pytest.raises(StoreUnavailableError):
            await scene.desk.renew(old.id, 600)
        assert [(each.id, each.expires_in_s) for each in scene.desk.list()] == [(old.id, 60)]
        assert scene.benches == {"run-a": {0}}
        scene.store.is_down = False
        assert (await scene.lease([0])).preempted_leases == (old.id,)

    run_scene(tmp_path, test)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_lease_holds_on_while_its_renewal_is_written_and_longer_only_if_it_was(
    tmp_path: Path, is_written: bool
) -> None:
    async def test(scene: Scene) -> None:
        lease = await scene.lease([0], ttl_s=60)
        save, held = scene.store._store.save_leases, []

        async def take_long(*args: Any, **kwargs: Any) -> None:
            scene.boot.now_s += 61  # longer than it had
            held.append(len(scene.book.active()))  # a bench that begins now would be in the way of who renewed
            if not is_written:
                raise StoreUnavailableError("the disk is gone")
            await save(*args, **kwargs)

        scene.store._store.save_leases = take_long  # type: ignore[method-assign]
        if is_written:
            assert (await scene.desk.renew(lease.id, 600)).expires_in_s == 539
        else:
            with pytest.raises(StoreUnavailableError):
                await scene.desk.renew(lease.id, 600)
        assert held == [1]
        assert len(scene.desk.list()) == is_written

    run_scene(tmp_path, test)


def test_an_end_is_never_refused_and_is_written_down_when_the_disk_is_back(tmp_path: Path) -> None:
    boot = ManualBoot()

    async def first(scene: Scene) -> None:
        lease = await scene.lease([0])
        scene.store.is_down = True
        assert (await scene.desk.end(lease.id)).id == lease.id
        with pytest.raises(LeaseNotFoundError, match="ended by request"):
            await scene.desk.get(lease.id)
        scene.store.is_down = False
        await scene.lease([1])

    async def second(scene: Scene) -> list[int]:
        return [device.local_index for each in scene.desk.list() for device in each.devices]

    run_scene(tmp_path, first, boot=boot)
    assert run_scene(tmp_path, second, boot=boot) == [1]


def test_a_lease_that_the_disk_wrote_after_all_does_not_come_back(tmp_path: Path) -> None:
    boot = ManualBoot()

    async def first(scene: Scene) -> None:
        save = scene.store._store.save_leases
        late = True

        async def write_and_time_out(*args: Any, **kwargs: Any) -> None:
            nonlocal late
            await save(*args, **kwargs)
            if late:
                late = False
                raise StoreUnavailableError("no answer from the disk within 10 s")

        scene.store._store.save_leases = write_and_time_out  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailableError):
            await scene.lease([0], key="k")
        assert scene.desk.list() == ()
        assert (await scene.lease([0], key="k")).devices[0].local_index == 0

    async def second(scene: Scene) -> int:
        return len(scene.desk.list())

    run_scene(tmp_path, first, boot=boot)
    assert run_scene(tmp_path, second, boot=boot) == 1


@pytest.mark.parametrize("what", ["a lease over it", "a shorter renewal"])
def test_what_the_disk_wrote_after_all_of_a_change_that_was_refused_is_written_back(tmp_path: Path, what: str) -> None:
    """The next start read a lease as pre-empted, or as ended, that its taker had never been told to have lost."""
    boot = ManualBoot()

    async def first(scene: Scene) -> str:
        old = await scene.lease([0], preemptible=True, ttl_s=600)
        save, late = scene.store._store.save_leases, [True]
        written = asyncio.Event()

        async def write_and_time_out(*args: Any, **kwargs: Any) -> None:
            await save(*args, **kwargs)
            if late:
                late.pop()
                raise StoreUnavailableError("no answer from the disk within 10 s")
            written.set()

        scene.store._store.save_leases = write_and_time_out  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailableError):
            await (scene.desk.renew(old.id, 5) if what == "a shorter renewal" else scene.lease([0]))
        assert [each.id for each in scene.desk.list()] == [old.id]
        await asyncio.wait_for(written.wait(), 30)  # by the sweep
        return old.id

    async def second(scene: Scene) -> list[tuple[str, float]]:
        return [(each.id, each.expires_in_s) for each in scene.desk.list()]

    old_id = run_scene(tmp_path, first, boot=boot)
    boot.now_s += 100
    assert run_scene(tmp_path, second, boot=boot) == [(old_id, 500)]


def test_the_end_of_a_lease_is_seen_without_being_asked_for(tmp_path: Path) -> None:
    boot = ManualBoot()

    async def main() -> None:
        async with opened(tmp_path, boot=boot) as scene:
            lease = await scene.lease([0], ttl_s=60)
            boot.now_s += 61
            seen = asyncio.Event()
            save = scene.store._store.save_leases

            async def note(*args: Any, **kwargs: Any) -> None:
                await save(*args, **kwargs)
                seen.set()

            scene.store._store.save_leases = note  # type: ignore[method-assign]
            await asyncio.wait_for(seen.wait(), 30)
            assert "not renewed" in (await scene.store.find_lease(lease.id)).ended

    asyncio.run(main())


# ---- a lease that could not be given ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_down", [False, True])
def test_what_gave_way_to_a_lease_that_could_not_be_given_holds_on(tmp_path: Path, is_down: bool) -> None:
    boot = ManualBoot()

    async def first(scene: Scene) -> str:
        old = await scene.lease([0, 1], preemptible=True, ttl_s=600)
        scene.holds_on = True
        make_way = scene.make_way

        async def fail(runs: Any, reason: str) -> tuple[str, ...]:
            scene.store.is_down = is_down
            scene.boot.now_s += 100
            return await make_way(runs, reason)

        scene.make_way = fail  # type: ignore[method-assign]
        with pytest.raises(DeviceBusyError, match="process 7"):
            await scene.lease([1, 2])
        assert [(each.id, each.expires_in_s) for each in scene.desk.list()] == [(old.id, 500)]
        assert scene.desk.preempted["lease",] == 0
        scene.store.is_down = scene.holds_on = False
        await scene.lease([3])  # with this, or at the next sweep, what the disk did not take is written
        return old.id

    async def second(scene: Scene) -> list[str]:
        return [each.id for each in scene.desk.list()]

    old_id = run_scene(tmp_path, first, boot=boot)
    assert run_scene(tmp_path, second, boot=boot)[0] == old_id


def test_what_gave_way_does_not_hold_on_beyond_its_time(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        old = await scene.lease([0], preemptible=True, ttl_s=2)
        scene.holds_on = True
        make_way = scene.make_way

        async def take_long(runs: Any, reason: str) -> tuple[str, ...]:
            scene.boot.now_s += 3
            return await make_way(runs, reason)

        scene.make_way = take_long  # type: ignore[method-assign]
        with pytest.raises(DeviceBusyError):
            await scene.lease([0])
        assert scene.desk.list() == ()
        with pytest.raises(LeaseNotFoundError):
            await scene.desk.get(old.id)

    run_scene(tmp_path, test)
