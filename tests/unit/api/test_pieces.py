from __future__ import annotations

import asyncio

import pytest

from meshwright.wire.bench import LatestBench
from meshwright.wire.runs import RunList
from meshwright_agent.api import pieces
from meshwright_agent.api.pieces import TURN_S, write_list
from tests.fakes.stored import build_record, build_run


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_in_pieces_is_the_text_of_the_whole_reply(count: int) -> None:
    runs = tuple(build_run(number, request={"a": '"runs":[]'}) for number in range(count))
    records = tuple(build_record(size_bytes=number) for number in range(count))
    latest = LatestBench(records=records, runs=("run-1",))
    bare = latest.model_copy(update={"records": ()})
    assert asyncio.run(write_list(RunList(runs=()), "runs", runs)) == RunList(runs=runs).model_dump_json().encode()
    assert asyncio.run(write_list(bare, "records", records)) == latest.model_dump_json().encode()


def test_others_go_on_while_a_long_list_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 runs of 1 MB took half a second in one go."""
    monkeypatch.setattr(pieces, "TURN_S", 0.0)  # else it depends on the machine how often
    runs = [build_run(number) for number in range(50)]

    async def main() -> int:
        writing = asyncio.ensure_future(pieces.write_list(RunList(runs=()), "runs", runs))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(asyncio.wait_for(main(), 60)) >= len(runs)
    assert 0 < TURN_S < 0.02
