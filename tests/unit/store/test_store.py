"""The store on real files: what is kept, in which order, and what becomes of a file that cannot be used."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import stat
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from meshwright_agent import store as module
from meshwright_agent.leases import StoredLease
from meshwright_agent.store import HELD, LEASE, PLAN, RUN, Document, Limit, Store, StoredEvent, StoreUnavailableError
from tests.unit.store.opening import editing, full_disk, held, opened, recover

RECORDED = Path(__file__).parents[2] / "recorded" / "leases"


def spoil_bodies(path: Path) -> None:
    with editing(path) as connection:
        connection.execute("UPDATE documents SET body = '{'")


def plan(key: object, body: str = "{}", **fields: Any) -> Document:
    return Document(PLAN, str(key), body, **fields)


def event(seq: int, stream: str = "health", body: str = "{}", at: float = 0.0) -> StoredEvent:
    return StoredEvent(stream, seq, at, body)


async def keys(store: Store, kind: str = PLAN, **query: Any) -> list[str]:
    return [document.key for document in await store.list_documents(kind, **query)]


async def reopen(path: Path) -> None:
    async with opened(path) as store:
        await recover(store)


# ---- documents and events --------------------------------------------------------------------------------------------


async def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    document = Document(RUN, "run-1", '{"kind": "bench"}', "running")
    async with opened(tmp_path / "new" / "db") as store:
        await store.write(document, events=[event(1, "run/run-1", '{"n": 1}', 5.0)])
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "new" / "db").stat().st_mode) == 0o600
    async with opened(tmp_path / "new" / "db") as store:
        assert await store.get(RUN, "run-1") == document
        assert await store.get(PLAN, "run-1") is None
        assert await store.list_events("run/run-1", after=0) == (event(1, "run/run-1", '{"n": 1}', 5.0),)
        assert store.set_aside == ""


async def test_a_document_that_is_written_again_is_the_newest_unless_it_keeps_its_place(store: Store) -> None:
    await store.write(plan(1), plan(2), plan(3))
    await store.write(plan(1, '{"again": 1}'), plan(2, keeps_place=True))
    assert await keys(store) == ["2", "3", "1"]
    assert await keys(store, newest_first=True, limit=2) == ["1", "3"]


async def test_documents_are_listed_by_state_and_field_and_without_a_field(store: Store) -> None:
    rows = [("a", "running", "bench"), ("b", "succeeded", "bench"), ("c", "succeeded", "plan")]
    for key, state, kind in rows:
        await store.write(Document(RUN, key, f'{{"kind": "{kind}", "result": [1]}}', state))
    assert await keys(store, RUN, states=["succeeded", "failed"]) == ["b", "c"]
    assert await keys(store, RUN, where=("kind", "bench")) == ["a", "b"]
    (first,) = await store.list_documents(RUN, without="result", limit=1)
    assert first.body == '{"kind":"bench"}'


async def test_a_write_is_stored_as_a_whole_or_not_at_all(store: Store) -> None:
    with full_disk(store.path, "events"), pytest.raises(StoreUnavailableError, match="no space") as caught:
        await store.write(plan(1), events=[event(1)])
    assert caught.value.retry_after_s
    assert (await keys(store), store.failure_count) == ([], 1)


@pytest.mark.parametrize(("most", "size_bytes", "kept"), [(3, 1000, [8, 9]), (3, 10**6, [7, 8, 9]), (9, 1, [9])])
async def test_the_newest_are_kept_by_count_and_by_bytes_and_the_last_one_always(
    store: Store, monkeypatch: pytest.MonkeyPatch, most: int, size_bytes: int, kept: list[int]
) -> None:
    monkeypatch.setitem(module.LIMITS, ("documents", PLAN), Limit(most, size_bytes))
    monkeypatch.setitem(module.LIMITS, ("events", "health"), Limit(most, size_bytes))
    body = '"' + "ä" * 200 + '"'

    for number in range(10):
        await store.write(plan(number, body), events=[event(number + 1, body=body)])
    assert await keys(store) == [str(number) for number in kept]
    found = await store.list_events("health", after=0)
    assert [each.seq - 1 for each in found] == kept
    assert await store.last_seq("health") == 10


async def test_what_runs_or_is_held_is_never_pruned_and_the_events_of_a_run_go_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.LIMITS, ("documents", RUN), Limit(1, 10**6))

    for number, state in enumerate(["running", "succeeded", "queued", "failed", "failed"]):
        run = Document(RUN, str(number), "{}", state, keeps_place=True)
        await store.write(run, events=[event(1, f"run/{number}")])
    assert await keys(store, RUN) == ["0", "2", "4"]
    assert [await store.last_seq(f"run/{number}") for number in range(5)] == [1, 0, 1, 0, 1]


async def test_events_are_listed_by_number_field_and_time(store: Store) -> None:
    for seq in range(1, 7):
        await store.write(events=[event(seq, body=f'{{"component": "device:{seq % 2}"}}', at=10.0 * seq)])

    async def seqs(**query: Any) -> list[int]:
        return [each.seq for each in await store.list_events("health", **query)]

    assert await seqs(after=2, limit=2) == [3, 4]
    assert await seqs(after=None, limit=2) == [5, 6]
    assert await seqs(after=0, where=("component", "device:1")) == [1, 3, 5]
    assert await seqs(after=0, since=40.0) == [4, 5, 6]


# ---- trouble ---------------------------------------------------------------------------------------------------------


async def test_a_file_that_another_program_writes_is_waited_for_in_time_and_nothing_is_written_late(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path / "db", timeout_s=0.2) as store:
        with held(tmp_path / "db"):
            with pytest.raises(StoreUnavailableError, match=r"locked|within 0\.2 s"):
                await store.write(plan(1))
            assert store.failure
        await recover(store)
        assert store.failure == ""
        assert await keys(store) == []


async def test_a_check_writes_before_the_store_counts_as_well(tmp_path: Path) -> None:
    async with opened(tmp_path / "db", timeout_s=0.2) as store:
        assert await store.check() > 0
        with held(tmp_path / "db"), pytest.raises(StoreUnavailableError):
            await store.check()
        await recover(store)


async def test_a_check_that_waits_behind_a_write_that_fails_does_not_forget_it(store: Store, tmp_path: Path) -> None:
    with held(tmp_path / "db"):
        answers = await asyncio.gather(store.write(plan(1)), store.check(), return_exceptions=True)
        assert isinstance(answers[0], StoreUnavailableError)
        assert "locked" in store.failure
    await recover(store)


@pytest.mark.parametrize("replace", [False, True])
async def test_a_file_that_was_removed_or_replaced_is_noticed(store: Store, tmp_path: Path, replace: bool) -> None:
    (tmp_path / "db").unlink()
    if replace:
        (tmp_path / "db").touch()
    with pytest.raises(StoreUnavailableError) as caught:
        await store.check()
    assert "restart the agent" in caught.value.hint


async def test_a_state_directory_that_cannot_be_one_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError) as caught:
        await reopen(tmp_path / "file" / "db")
    assert "--state-dir" in caught.value.hint


# ---- the file at the start -------------------------------------------------------------------------------------------


def hold(path: Path, is_open: Event, end: Event) -> None:
    async def wait() -> None:
        async with opened(path):
            is_open.set()
            await asyncio.to_thread(end.wait, 60)

    asyncio.run(wait())


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_second_agent_is_refused_with_the_process_of_the_first_until_that_ends(
    tmp_path: Path, is_killed: bool
) -> None:
    context = multiprocessing.get_context("spawn")
    is_open, end = context.Event(), context.Event()
    process = context.Process(target=hold, args=(tmp_path / "db", is_open, end))
    process.start()
    try:
        assert is_open.wait(60)
        with pytest.raises(StoreUnavailableError, match=f"another agent \\(process {process.pid}\\)") as caught:
            await reopen(tmp_path / "db")
        assert "stop that agent" in caught.value.hint
    finally:
        process.kill() if is_killed else end.set()
        process.join()
    await reopen(tmp_path / "db")


async def fill(path: Path) -> None:
    async with opened(path) as store:
        await store.write(*(plan(number, '"' + "x" * 3000 + '"') for number in range(20)))


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b"not a database" * 100),
    lambda path: path.write_bytes(path.read_bytes()[: 4096 * 3 + 17]),
    lambda path: path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 20_000),
    lambda path: path.write_bytes(path.read_bytes().replace(b"CREATE TABLE documents", b"CREATE TABLE documemts")),
    lambda path: path.write_bytes(path.read_bytes()[:18] + b"\x77\x77" + path.read_bytes()[20:]), spoil_bodies,
], ids=["text", "cut", "noise", "schema", "header", "body"])  # fmt: skip
async def test_a_damaged_file_is_set_aside_and_a_new_one_says_that_leases_are_lost(tmp_path: Path, damage: Any) -> None:
    await fill(tmp_path / "db")
    damage(tmp_path / "db")
    (tmp_path / "db-wal").unlink(missing_ok=True)
    async with opened(tmp_path / "db") as store:
        assert f"{tmp_path}/db.set-aside-20261121T070000Z;" in store.set_aside
        assert "leases are lost" in store.set_aside
        await store.write(plan(1))
        assert await keys(store) == ["1"]
    assert (tmp_path / "db.set-aside-20261121T070000Z").exists()
    await reopen(tmp_path / "db")


def test_of_files_that_were_set_aside_the_last_are_kept(tmp_path: Path) -> None:
    for number in range(module.MAX_SET_ASIDE + 2):
        (tmp_path / "db").write_bytes(f"not a database {number}".encode() * 100)
        asyncio.run(reopen(tmp_path / "db"))
    assert len([each for each in tmp_path.iterdir() if "set-aside" in each.name]) == module.MAX_SET_ASIDE


@pytest.mark.parametrize("name", ["this", "later"])
async def test_leases_of_every_version_are_read_and_all_else_of_another_version_is_set_aside(
    tmp_path: Path, name: str
) -> None:
    """The recorded files must never change: they are what an agent of before, and of after, has written."""
    shutil.copy(RECORDED / f"{name}.sqlite3", tmp_path / "db")
    with editing(tmp_path / "db") as connection:
        connection.execute("INSERT INTO events (stream, seq, at, size, body) VALUES ('health', 1, 0.0, 2, '{}')")
    async with opened(tmp_path / "db") as store:
        (held_,) = await store.list_documents(LEASE, states=[HELD])
        lease = StoredLease.model_validate_json(held_.body)
        assert (held_.key, lease.lease.purpose, lease.boot_id) == ("slurm-4711", "slurm job 4711", "boot-1")
        assert (await store.last_seq("health") == 0) is (name == "later")
        assert ("1 lease(s) were taken over" in store.set_aside) is (name == "later")
    await reopen(tmp_path / "db")


async def test_faults_and_acknowledgements_outlive_a_file_of_another_version(tmp_path: Path) -> None:
    async with opened(tmp_path / "db") as store:
        await store.write(Document("health", "memory", '{"faults": {}}'), plan(1))
    with editing(tmp_path / "db") as connection:
        connection.execute("PRAGMA user_version = 99")
    async with opened(tmp_path / "db") as store:
        assert "has the schema 99" in store.set_aside
        found = await store.get("health", "memory")
        assert found is not None
        assert found.body == '{"faults": {}}'
        assert await keys(store) == []


async def test_a_file_of_another_version_without_a_lease_loses_none(tmp_path: Path) -> None:
    shutil.copy(RECORDED / "later.sqlite3", tmp_path / "db")
    with editing(tmp_path / "db") as connection:
        connection.execute("DELETE FROM documents WHERE state = 'held'")

    async with opened(tmp_path / "db") as store:
        assert store.set_aside.endswith("; it had no lease")


async def test_a_file_of_before_leases_had_this_form_is_set_aside(tmp_path: Path) -> None:
    with editing(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE leases (id TEXT)")
        connection.execute("PRAGMA user_version = 5")

    async with opened(tmp_path / "db") as store:
        assert "has the schema 5" in store.set_aside
        assert "leases are lost" in store.set_aside


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused_and_not_set_aside(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "db"))
    (tmp_path / "db").chmod(0o400)
    with pytest.raises(StoreUnavailableError):
        asyncio.run(reopen(tmp_path / "db"))
    assert not list(tmp_path.glob("*set-aside*"))


class KilledError(Exception):
    """The agent ends here."""


async def test_an_agent_that_is_killed_while_it_takes_leases_over_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(RECORDED / "later.sqlite3", tmp_path / "db")
    set_aside = Store._set_aside

    def die(store: Store, *arguments: Any) -> None:
        set_aside(store, *arguments)
        raise KilledError

    monkeypatch.setattr(Store, "_set_aside", die)
    with pytest.raises(KilledError):
        await reopen(tmp_path / "db")
    assert not (tmp_path / "db").exists()
    monkeypatch.undo()
    async with opened(tmp_path / "db") as store:
        assert await keys(store, LEASE, states=[HELD]) == ["slurm-4711"]
