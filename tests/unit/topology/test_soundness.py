"""Descriptions that contradict themselves are refused in words, by the model and by the join, and at once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from meshwright.errors import PlanInfeasibleError
from meshwright.topology.join import join_devices
from meshwright.topology.model import MAX_DEVICE_COUNT, Topology, check_granules
from meshwright.topology.targets import build_target
from meshwright.wire.devices import Devices
from tests.fakes.fleets import build_host, build_slice
from tests.fakes.topologies import drop_devices

REFUSAL_S_MAX = 0.5
"""None of them takes a millisecond; a list of all places of the smallest of the large slices takes seconds."""


def say(*, devices: Mapping[int, Mapping[str, Any]] | None = None, **granule: Any) -> Devices:
    """The reply of a v5p:2x2x1 host, its slice and some of its devices described otherwise."""
    (reply,) = build_slice((2, 2, 1), (2, 2, 1))
    changes = devices or {}
    granules = tuple(one.model_copy(update=granule) for one in reply.granules)
    changed = tuple(one.model_copy(update=changes.get(i, {})) for i, one in enumerate(reply.devices))
    return reply.model_copy(update={"granules": granules, "devices": changed})


def place(*coords: tuple[int, ...], **granule: Any) -> Devices:
    return say(devices={index: {"coords": one} for index, one in enumerate(coords)}, **granule)


HOST = build_host("a")
NOT_SAID = {"shape": None, "wrap": None}
OPEN = (True, True, False)

REFUSED: dict[str, tuple[Devices, str]] = {
    "an ordinal twice": (HOST.model_copy(update={"granules": HOST.granules * 2}), "granule 0 stands 2 times among 2"),
    "a platform of its own": (say(devices={0: {"platform": "cpu"}}), "its 4 devices are of 2 platforms, 1 of cpu, 3"),
    "fewer devices than are listed": (say(device_count=3), "has 3 devices, and 4 of it are listed; device_count is at"),
    "none": (say(device_count=0), "has 0 devices, and 4 of it are listed"),
    "less than none": (say(device_count=-1), "has -1 devices, and 4 of it are listed"),
    "more than can be planned": (say(device_count=MAX_DEVICE_COUNT + 1), "and at most 131,072"),
    "no dimension": (say(shape=()), "has the shape []; a slice has 1 to 3 dimensions of 1 chip or more, such as 2x2x1"),
    "a dimension of none": (say(shape=(2, 0, 1)), "has the shape 2x0x1"),
    "a negative dimension": (say(shape=(-2, -2, 1)), "has the shape -2x-2x1"),
    "many dimensions": (say(shape=(2, 2, *(1,) * 1000)), "1 to 3 dimensions"),
    "rings of other dimensions": (say(wrap=(True, False)), "has the shape 2x2x1 and says of 2 dimensions whether"),
    "rings of no dimensions": (say(shape=None, wrap=(True,) * 3), "and no shape; wrap and twisted are those of a"),
    "a twist of no shape": (say(**NOT_SAID, twisted=True), "and no shape"),
    "a twist that cannot be": (say(twisted=True), "a twisted torus of 2x2x1 with wrap not said; only a closed k×k×2k"),
    "a twist of a large slice": (say(shape=(100, 100, 201), twisted=True), "a twisted torus of 100x100x201"),
    "a twist that is not closed": (
        say(shape=(2, 2, 4), wrap=OPEN, twisted=True),
        "with wrap (True, True, False); only",
    ),
    "a slice that is too large": (say(shape=(10_000,) * 3), "has the shape 10000x10000x10000, and with it there are"),
    "a large twisted slice": (say(shape=(100, 100, 200), wrap=(True,) * 3, twisted=True), "more than 131,072 places"),
    "a chip far away": (place((300, 300, 300), **NOT_SAID), "has chips that are far apart, and with it"),
    "a chip very far away": (place((10**9, 0, 0), **NOT_SAID), "has chips that are far apart"),
    "a core far away": (say(devices={0: {"core_on_chip": 10**9}}), "more than 131,072 places"),
    "a chip outside": (place((5, 1, 0)), "has the shape 2x2x1; host w-0 has a chip at (5,1,0) core 0; a chip stands"),
    "a chip before the first": (place((0, -1, 0), **NOT_SAID), "has chips with 3 coordinates; host w-0 has a chip at"),
    "a core before the first": (say(devices={2: {"core_on_chip": -1}}), "has a chip at (0,1,0) core -1"),
    "fewer coordinates than dimensions": (place((0, 0)), "has the shape 2x2x1; host w-0 has a chip with 2"),
    "fewer coordinates than others": (
        say(**NOT_SAID, devices={3: {"coords": (1, 1)}}),
        "w-0 has a chip with 2 coordinates",
    ),
    "more dimensions than others": (place((0, 0), (0, 1), (1, 0), (1, 1)), "has the shape 2x2x1; host w-0 has a chip"),
    "no coordinate": (place((), (), (), (), **NOT_SAID), "has chips with 0 coordinates; a chip has 1 to 3, such as"),
    "many coordinates": (
        place(*((0,) * 999 + (i,) for i in range(4)), **NOT_SAID),
        "1000 coordinates; a chip has 1 to 3",
    ),
    "a chip twice": (place((1, 1, 0)), "has two devices at (1,1,0) core 0, w-0/0 and w-0/3; at one place of a slice"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_description_that_contradicts_itself_is_refused_in_words_and_at_once(case: str) -> None:
    reply, words = REFUSED[case]
    start = time.thread_time()
    with pytest.raises(ValueError, match="; ") as raised:
        Topology.of(reply)
    with pytest.raises(PlanInfeasibleError) as refused:
        join_devices([reply])
    assert time.thread_time() - start < REFUSAL_S_MAX
    assert words in str(raised.value)
    assert str(raised.value) in refused.value.detail
    assert refused.value.errors[0]["field"] == "topology"
    assert refused.value.hint


def test_the_places_of_all_granules_count_together() -> None:
    reply = say(shape=(64, 64, 16))
    more = [reply.granules[0].model_copy(update={"ordinal": ordinal}) for ordinal in range(1, 3)]
    join_devices([reply.model_copy(update={"granules": (*reply.granules, more[0])})])
    with pytest.raises(PlanInfeasibleError, match="more than 131,072 places"):
        join_devices([reply.model_copy(update={"granules": (*reply.granules, *more)})])


@pytest.mark.parametrize("target", ["v5p:16x20x28", "3*v4:4x4x8_twisted", "tpu7x:4x4x4", "2*gb200:72", "cpu:8"])
def test_hardware_that_is_known_is_sound_also_where_some_of_it_failed(target: str) -> None:
    whole = build_target(target)
    part = drop_devices(whole, {0, 2, len(whole.devices) - 1})
    for topology in (whole, part):
        check_granules(topology.devices, topology.granules)
    assert part.granules == whole.granules


def test_chips_of_which_nobody_says_where_they_stand_are_sound() -> None:
    blind = {index: {"coords": None, "core_on_chip": None} for index in range(4)}
    for said in ({}, NOT_SAID):
        assert len(Topology.of(say(devices=blind, **said)).devices) == 4
    assert len(Topology.of(say(devices={1: {"coords": None}})).devices) == 4
