"""The last sight of a host: recalled as it was, under the same key alone, and ended by what disagrees with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent.facts.model import HolderFacts
from meshwright_agent.settings import Settings
from meshwright_agent.sight import Sight, SightKeeper, build_sight_key, dump_sight, parse_sight
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
