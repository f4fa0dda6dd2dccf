from __future__ import annotations

import asyncio
import time

import pytest

from meshwright.wire.bench import LatestBench
from meshwright.wire.runs import RunList
from meshwright_agent.api.pieces import write_list
from tests.fakes.stored import build_record, build_run


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_in_pieces_is_the_text_of_the_whole_reply(count: int) -> None:
    runs = tuple(build_run(number, request={"a": '"runs":[]'}) for number in range(count))
    records = tuple(build_record(size_bytes=number) for number in range(count))
    latest = LatestBench(records=records, runs=("run-1",))
    bare = latest.model_copy(update={"records": ()})
    assert asyncio.run(write_list(RunList(runs=()), "runs", runs)) == RunList(runs=runs).model_dump_json().encode()
    assert asyncio.run(write_list(bare, "records", records)) == latest.model_dump_json().encode()


def test_others_go_on_while_a_long_list_is_written() -> None:
    """200 runs of 1 MB took half a second in one go."""
    runs = [build_run(number, request={"text": ["x" * 100] * 10_000}) for number in range(200)]

    async def main() -> float:
        writing = asyncio.ensure_future(write_list(RunList(runs=()), "runs", runs))
        longest_s, turns = 0.0, 0
        while not writing.done():
            began_s = time.perf_counter()
            await asyncio.sleep(0)
            longest_s, turns = max(longest_s, time.perf_counter() - began_s), turns + 1
        assert len(await writing) > 200 * 10**6
        return turns

    assert asyncio.run(asyncio.wait_for(main(), 60)) > 20
