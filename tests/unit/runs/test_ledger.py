"""What a ledger tells of runs whose end the store did not take."""

from __future__ import annotations

from pathlib import Path

from meshwright_agent.runs.ledger import RunLedger
from meshwright_agent.store.database import Store
from tests.fakes.stored import EPOCH, ManualClock, build_run
from tests.unit.store.opening import run_with_store


def test_an_end_that_was_not_written_is_told_whole_by_its_id_and_without_its_result_in_a_list(tmp_path: Path) -> None:
    ended = build_run(1, state="succeeded", result={"records": []}, finished_at=EPOCH)

    async def main(store: Store) -> None:
        await store.save_run(build_run(1, state="running"))
        ledger = RunLedger(store, ManualClock())
        ledger.keep(ended)
        assert await ledger.get(ended.id) == ended
        assert await ledger.list(limit=9, state=None) == (ended.model_copy(update={"result": None}),)
        assert await ledger.list(limit=9, state="failed") == ()

    run_with_store(tmp_path / "s.sqlite3", main)
