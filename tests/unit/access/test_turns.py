from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import QueueFullError
from meshwright_agent.access.turns import Turns


async def serve(turns: Turns, caller: str, served: list[str], gate: asyncio.Event | None = None) -> None:
    async with turns.take(caller):
        served.append(caller)
        await (gate.wait() if gate is not None else asyncio.sleep(0))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def order(callers: Sequence[str], turns: Turns) -> list[str]:
    """Returns in which order they are served who all come while the first is."""

    async def main() -> list[str]:
        served: list[str] = []
        gate = asyncio.Event()
        tasks = []
        for number, caller in enumerate(callers):
            tasks.append(asyncio.create_task(serve(turns, caller, served, None if number else gate)))
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*tasks)
        return served

    return asyncio.run(main())


def test_a_caller_waits_for_one_request_of_another_whatever_that_one_has_sent() -> None:
    assert order(["a", "a", "a", "a", "b", "b"], Turns()) == ["a", "b", "a", "b", "a", "a"]
    assert order(["a", "a", "b", "c", "a", "c"], Turns()) == ["a", "b", "c", "a", "c", "a"]


def test_one_caller_alone_is_served_in_the_order_in_which_he_asked() -> None:
    assert order(["a", "a", "a"], Turns()) == ["a", "a", "a"]


@given(callers=st.lists(st.sampled_from("abcd"), min_size=1, max_size=30))
def test_everybody_is_served_and_nobody_twice_while_another_waits(callers: list[str]) -> None:
    served = order(callers, Turns(most=100, most_each=100))
    assert sorted(served) == sorted(callers)
    for place in range(len(served) - 1):
        if served[place] == served[place + 1]:
            assert set(served[place:]) == {served[place]}


def test_more_than_a_few_of_one_caller_are_told_when_to_come_again_and_others_still_wait() -> None:
    async def main() -> None:
        turns, served, gate = Turns(most=4, most_each=2), list[str](), asyncio.Event()
        tasks = [asyncio.create_task(serve(turns, "a", served, gate)) for _ in range(3)]
        await settle()
        with pytest.raises(QueueFullError, match="2 requests of a wait for the planner") as caught:
            await serve(turns, "a", served)
        assert caught.value.retry_after_s == 1.0
        tasks += [asyncio.create_task(serve(turns, caller, served)) for caller in "bc"]
        await settle()
        with pytest.raises(QueueFullError, match="4 of all callers"):
            await serve(turns, "d", served)
        gate.set()
        await asyncio.gather(*tasks)
        assert served == ["a", "b", "c", "a", "a"]
        await serve(turns, "d", served)

    asyncio.run(main())


def test_who_leaves_while_he_waits_costs_nobody_a_turn() -> None:
    async def main() -> None:
        turns, served, gate = Turns(), list[str](), asyncio.Event()
        tasks = [asyncio.create_task(serve(turns, caller, served, gate)) for caller in "abc"]
        await settle()
        tasks[1].cancel()
        await settle()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == ["a", "c"]
        await asyncio.wait_for(serve(turns, "d", served), 1)

    asyncio.run(main())


def test_a_turn_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    async def main() -> None:
        turns, served, gates = Turns(), list[str](), [asyncio.Event() for _ in range(3)]
        first, second, third = (
            asyncio.create_task(serve(turns, caller, served, gate)) for caller, gate in zip("abc", gates, strict=True)
        )
        await settle()
        gates[0].set()
        await asyncio.sleep(0)  # the first ends and passes on; the second has not run yet
        second.cancel()
        gates[2].set()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        await asyncio.wait_for(asyncio.gather(first, third), 1)
        assert served[0] == "a"
        assert served[-1] == "c"

    asyncio.run(main())
