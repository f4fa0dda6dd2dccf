"""The last sight of a host: written when there is news, recalled as it was, and ended by what disagrees with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright_agent.facts.health import GpuHealth, KernelLog
from meshwright_agent.facts.model import GpuFacts, HolderFacts, HostFacts, Problem, ProcessFacts
from meshwright_agent.host.sight import (
    KEPT_FOR,
    LAST_LIMIT_S,
    Sight,
    SightKeeper,
    build_sight_key,
    dump_sight,
    hash_lasting,
    parse_sight,
)
from meshwright_agent.settings import Settings
from meshwright_agent.store.database import Store
from tests.fakes.machines import JAX_AT, NAMES, READ_AT, Machine, plant_machine
from tests.fakes.stored import ManualClock

ENVIRON = {"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/root"}


@pytest.fixture
def dgx(tmp_path: Path) -> Machine:
    return plant_machine("dgx-h100", tmp_path / "dgx")


def build_sight(machine: Machine, **changes: Any) -> Sight:
    return Sight(replace(machine.read(), **changes), READ_AT, dict(machine.jax or {"devices": []}), JAX_AT, 3)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_seen_of_any_recorded_machine_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    sight = build_sight(plant_machine(name, tmp_path))
    assert sight.facts is not None
    recalled = parse_sight(dump_sight(sight))
    forgotten = replace(sight.facts, holders=None, kernel_log=None)
    assert recalled == replace(sight, facts=forgotten, jax_generation=0, is_recalled=True)


def test_who_held_a_device_then_is_not_told_as_who_holds_it_now(dgx: Machine) -> None:
    recalled = parse_sight(dump_sight(build_sight(dgx, holders=(HolderFacts(4711, "python", devices=("GPU-0",)),))))
    assert recalled.facts is not None
    assert recalled.facts.holders is None


def test_a_look_that_agrees_keeps_the_recalled_view_until_jax_is_asked(dgx: Machine) -> None:
    recalled = parse_sight(dump_sight(build_sight(dgx)))
    seen = recalled.with_facts(dgx.read(), JAX_AT)
    assert (seen.jax, seen.jax_at, seen.is_recalled, seen.facts_at) == (recalled.jax, JAX_AT, True, JAX_AT)
    asked = seen.with_jax({"devices": []}, JAX_AT, 1)
    assert (asked.jax, asked.jax_generation, asked.is_recalled) == ({"devices": []}, 1, False)


def test_another_driver_or_other_devices_end_the_recalled_view_and_not_one_of_this_life(dgx: Machine) -> None:
    facts = dgx.read()
    others = [
        replace(facts, driver=replace(facts.driver, version="999.1")),
        replace(facts, gpus=facts.gpus[1:]),
    ]
    for other in others:
        recalled = parse_sight(dump_sight(build_sight(dgx)))
        assert recalled.with_facts(other, JAX_AT) == Sight(other, JAX_AT)
        assert build_sight(dgx).with_facts(other, JAX_AT).jax is not None


def test_the_key_is_of_the_boot_the_settings_and_the_variables_that_jax_reads(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path)
    key = build_sight_key(settings, ENVIRON, "boot-1")
    assert key == build_sight_key(settings, {**ENVIRON, "HOME": "/elsewhere"}, "boot-1")
    assert build_sight_key(settings, ENVIRON, "") == ""
    different = {
        build_sight_key(settings, ENVIRON, "boot-2"),
        build_sight_key(settings, {**ENVIRON, "CUDA_VISIBLE_DEVICES": "0"}, "boot-1"),
        build_sight_key(settings.model_copy(update={"cpu_devices": 8}), ENVIRON, "boot-1"),
        build_sight_key(settings.model_copy(update={"sysfs_root": tmp_path}), ENVIRON, "boot-1"),
    }
    assert len({key, *different}) == 5


def look_again(sight: Sight, after: timedelta = timedelta(seconds=30)) -> Sight:
    """Returns what the next look sees where nothing has happened: times, temperatures, memory in use, load."""
    assert sight.facts is not None
    assert sight.jax is not None
    facts = sight.facts
    cards = tuple(
        replace(
            card,
            used_bytes=(card.used_bytes or 0) + 4096,
            processes=tuple(replace(process, used_bytes=1) for process in card.processes or ()),
            health=replace(
                card.health or GpuHealth(),
                temperature_celsius=61,
                slowdowns=("SwPowerCap",),
                pcie_generation=1,
                performance_state=8,
                is_computing=True,
            ),
        )
        for card in facts.gpus
    )
    devices = [{**device, "memory_stats": {"bytes_in_use": 1}} for device in sight.jax["devices"]]
    return replace(
        sight,
        facts=replace(
            facts,
            gpus=cards,
            cpu=replace(facts.cpu, available_bytes=(facts.cpu.available_bytes or 0) - 4096),
            holders=(HolderFacts(4711, "python"),),
            kernel_log=KernelLog(last_sequence=7),
        ),
        facts_at=(sight.facts_at or READ_AT) + after,
        jax={**sight.jax, "devices": devices},
        jax_at=(sight.jax_at or JAX_AT) + after,
    )


class CountingStore:
    """A store that takes sights and counts them; one that fails, or hangs, where that is said."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.is_down = False
        self.hangs = False

    async def put_sight(self, key: str, body: str) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.is_down:
            raise StoreUnavailableError("the disk is full")
        self.bodies.append(body)


def keep_all(store: CountingStore, *sights: Sight) -> SightKeeper:
    keeper = SightKeeper(lambda: store, "key")  # type: ignore[arg-type,return-value]

    async def run() -> None:
        for sight in sights:
            await keeper.keep(sight)

    asyncio.run(run())
    return keeper


@pytest.mark.parametrize("name", NAMES)
def test_on_no_recorded_machine_is_a_look_written_that_sees_nothing_new(name: str, tmp_path: Path) -> None:
    sight = build_sight(plant_machine(name, tmp_path))
    again = look_again(sight)
    assert again != sight
    assert hash_lasting(again) == hash_lasting(sight)
    store = CountingStore()
    keep_all(store, sight, again, look_again(again))
    assert len(store.bodies) == 1


def grown(card: GpuFacts, **counts: Any) -> GpuFacts:
    return replace(card, health=replace(card.health or GpuHealth(), **counts))


NEWS: dict[str, Callable[[HostFacts], HostFacts]] = {
    "a card is gone": lambda facts: replace(facts, gpus=facts.gpus[1:]),
    "another driver": lambda facts: replace(facts, driver=replace(facts.driver, version="999.1")),
    "a process came": lambda facts: replace(
        facts, gpus=(replace(facts.gpus[0], processes=(ProcessFacts(4711),)), *facts.gpus[1:])
    ),
    "a counter that the next life compares with": lambda facts: replace(
        facts, gpus=(grown(facts.gpus[0], nvlink_errors={"recovery": 3}), *facts.gpus[1:])
    ),
    "something cannot be read": lambda facts: replace(facts, problems=(Problem("unanswered", "NVML: Unknown Error"),)),
}


@pytest.mark.parametrize("news", NEWS)
def test_what_is_new_is_written_at_once_with_all_that_was_seen(news: str, dgx: Machine) -> None:
    sight = build_sight(dgx)
    assert sight.facts is not None
    new = replace(look_again(sight), facts=NEWS[news](sight.facts))
    store = CountingStore()
    keep_all(store, sight, new)
    assert store.bodies == [dump_sight(sight), dump_sight(new)]


def test_a_worker_that_was_started_anew_is_news(dgx: Machine) -> None:
    sight, store = build_sight(dgx), CountingStore()
    keep_all(store, sight, replace(look_again(sight), jax_generation=4))
    assert len(store.bodies) == 2


@pytest.mark.parametrize(("after", "writes"), [(KEPT_FOR - timedelta(seconds=1), 1), (KEPT_FOR, 2), (-KEPT_FOR, 2)])
def test_what_is_kept_does_not_become_older_than_an_hour_whatever_the_clock_does(
    after: timedelta, writes: int, dgx: Machine
) -> None:
    sight, store = build_sight(dgx), CountingStore()
    keep_all(store, sight, look_again(sight, after))
    assert len(store.bodies) == writes


def test_what_the_store_did_not_take_is_tried_again_at_the_next_look(dgx: Machine) -> None:
    sight, store = build_sight(dgx), CountingStore()
    store.is_down = True
    keeper = keep_all(store, sight)
    store.is_down = False
    asyncio.run(keeper.keep(look_again(sight)))
    assert len(store.bodies) == 1


def test_the_last_sight_of_a_life_is_written_with_its_times_once_and_a_disk_that_hangs_keeps_nobody(
    dgx: Machine,
) -> None:
    sight, store = build_sight(dgx), CountingStore()
    again = look_again(sight)
    keeper = keep_all(store, sight, again)
    asyncio.run(keeper.keep_last(again))
    asyncio.run(keeper.keep_last(again))
    assert store.bodies == [dump_sight(sight), dump_sight(again)]
    asyncio.run(keeper.keep_last(Sight()))  # nothing was seen
    store.hangs = True
    asyncio.run(asyncio.wait_for(keeper.keep_last(look_again(again)), 10 * LAST_LIMIT_S))
    assert len(store.bodies) == 2


def test_a_new_life_recalls_what_the_last_one_kept_under_the_same_key_alone(dgx: Machine, tmp_path: Path) -> None:
    sight = build_sight(dgx)

    async def live() -> None:
        store = await Store.open(tmp_path / "one.sqlite3", clock=ManualClock())
        await SightKeeper(lambda: store, "key").keep(sight)
        assert await SightKeeper(lambda: store, "key").recall() == parse_sight(dump_sight(sight))
        assert await SightKeeper(lambda: store, "other").recall() is None
        await SightKeeper(lambda: store, "other").keep(replace(sight, is_recalled=True))
        assert await SightKeeper(lambda: store, "other").recall() is None  # what was recalled is no look
        await store.put_sight("key", '{"facts": 3}')
        assert await SightKeeper(lambda: store, "key").recall() is None
        await store.close()
        await SightKeeper(lambda: store, "key").keep(sight)  # a store that does not answer costs nothing

    asyncio.run(live())
