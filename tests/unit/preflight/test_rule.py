"""The rule of a preflight: who meets whom, who is suspected, and who is blamed."""

from __future__ import annotations

import random

import pytest

from meshwright.preflight.pairs import choose_rounds, pair_with
from meshwright.preflight.rule import HostFigures, choose_figures, confirm, find_laggards, find_suspects
from meshwright.wire.preflight import SlowFigure
from tests.unit.preflight.simulation import Hosts, blame

FIGURES = ("matmul", "memory_bandwidth", "all_reduce", "network", "all")


@pytest.mark.parametrize(("count", "rounds"), [(1, 0), (2, 1), (3, 3), (4, 3), (5, 4), (8, 4), (512, 10), (4096, 13)])
def test_no_two_hosts_meet_twice_and_at_most_one_rests(count: int, rounds: int) -> None:
    chosen = choose_rounds(count)
    assert len(chosen) == rounds
    assert len({pair for pairs in chosen for pair in pairs.items()}) == sum(map(len, chosen))
    for pairs in chosen:
        assert len(pairs) == count - count % 2
        assert set(pairs) <= set(range(count))
        assert all(pairs[partner] == host != partner for host, partner in pairs.items())


def test_suspects_meet_different_good_hosts() -> None:
    assert pair_with((2, 5), (0, 1, 3), 2) == ({2: 0, 0: 2, 5: 1, 1: 5}, {2: 1, 1: 2, 5: 3, 3: 5})
    assert pair_with((2,), (0,), 3) == ({2: 0, 0: 2},) * 3
    assert pair_with((2,), (0, 1, 3), 2) == ({2: 0, 0: 2, 1: 3, 3: 1}, {2: 1, 1: 2, 3: 0, 0: 3})
    assert pair_with((), (0, 1), 3) == pair_with((0, 1), (), 3) == ()


@pytest.mark.parametrize("count", [4, 8, 16, 64, 512])
def test_all_bad_hosts_are_named_and_no_other(count: int) -> None:
    for seed in range(max(4, 100 // count)):
        chance = random.Random(seed)
        slow = {
            host: (chance.choice(FIGURES), chance.uniform(3, 6))
            for host in chance.sample(range(count), chance.randint(0, min(8, count // 2 - 1)))
        }
        assert {each.host for each in blame(Hosts(count, slow, seed))} == set(slow), (seed, slow)


def test_noise_alone_blames_nobody() -> None:
    blamed = [seed for seed in range(60) if blame(Hosts(8, {}, seed))]
    assert not blamed


def test_a_suspect_that_was_fast_once_again_is_not_blamed() -> None:
    rounds = choose_rounds(4)
    device = {"matmul": 1e12, "memory_bandwidth": 1e11}
    hosts = [HostFigures((device,), None, (1e9, 1e9, 1e9)) for _ in range(3)]
    hosts.append(HostFigures((device,), None, (1e8, 1e8, 1e8)))
    suspects = find_suspects(hosts, rounds)
    assert [(slow.host, slow.figure) for slow in suspects] == [(3, "network")]
    for again, blamed in (((1e8, 1e8), [3]), ((1e8, 1e9), []), ((None, None), [])):
        second = [*hosts[:3], HostFigures((device,), None, again)]
        assert [slow.host for slow in confirm(suspects, hosts, rounds, second)] == blamed


def test_a_host_is_not_blamed_for_what_slows_its_peers_too_once_it_is_measured_again() -> None:
    def measured(*rates: float) -> list[HostFigures]:
        device = {"memory_bandwidth": 1e11}
        return [HostFigures(({**device, "matmul": rate},), None, (1e9, 1e9, 1e9)) for rate in rates]

    rounds, hosts = choose_rounds(3), measured(1e12, 1e12, 2e11)
    suspects = find_suspects(hosts, rounds)
    assert [(slow.host, slow.figure) for slow in suspects] == [(2, "matmul")]
    assert confirm(suspects, hosts, rounds, measured(3e11, 2e11, 2e11)) == ()
    assert confirm(suspects, hosts, rounds, measured(3e11, 3e11, 1e11)) == suspects


def test_a_network_is_not_blamed_for_what_slows_its_peers_too_once_it_is_measured_again() -> None:
    def measured(good: float, suspect: float) -> list[HostFigures]:
        device = {"matmul": 1e12, "memory_bandwidth": 1e11}
        return [HostFigures((device,), None, (rate,) * 3) for rate in (good, good, good, suspect)]

    rounds, hosts = choose_rounds(4), measured(1e9, 1e8)
    suspects = find_suspects(hosts, rounds)
    assert confirm(suspects, hosts, rounds, measured(3e8, 2e8)) == ()
    assert confirm(suspects, hosts, rounds, measured(3e8, 1e8)) == suspects


def test_the_peers_of_a_device_on_a_host_alone_are_its_other_devices() -> None:
    slow = SlowFigure(host=0, figure="matmul", device=1, value=1.0, peers=9.0)
    assert choose_figures([slow], 2, 3) == {("matmul", 1)}
    assert choose_figures([slow], 1, 3) == {("matmul", 0), ("matmul", 1), ("matmul", 2)}
    assert choose_figures([slow.model_copy(update={"figure": "network", "device": None})], 2, 3) == set()


WENT_ON = {"start": 0.0, "meet": 2.0, "pairs": 4.0}
LATE = {"start": 1.0}


@pytest.mark.parametrize(("others", "last", "ended_s", "lags"), [
    ((WENT_ON, WENT_ON), LATE, 30.0, True),
    ((WENT_ON, LATE), LATE, 30.0, False),  # most are slow
    ((WENT_ON,), LATE, 30.0, True),
    (({"start": 0.0, "meet": 20.0},) * 2, LATE, 30.0, False),  # by less than twice
    ((WENT_ON, WENT_ON), LATE, 7.0, False),  # by less than 5 s
    ((WENT_ON, WENT_ON), LATE | {"": 4.0}, 30.0, False),  # it ended
    ((WENT_ON, WENT_ON), LATE | {"meet": 3.0}, 30.0, False),  # it waits as well
    ((WENT_ON, WENT_ON), LATE | {"meet": 20.0}, 30.0, True),  # and held the others up until then
    ((WENT_ON, WENT_ON), LATE | {"meet": 9.0}, 30.0, False),  # and held them up for less than a quarter of the time
])  # fmt: skip
def test_a_host_lags_if_it_was_busy_with_itself_for_much_longer_than_its_peers(
    others: tuple[dict[str, float], ...], last: dict[str, float], ended_s: float, lags: bool
) -> None:
    found = [host for host, *_ in find_laggards(dict(enumerate((*others, last))), ended_s)]
    assert found == ([len(others)] if lags else [])
