from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.errors import StoreUnavailableError
from meshwright_agent.store.database import Store
from meshwright_agent.store.file import KEPT_ASIDE, is_damage, move_aside
from meshwright_agent.store.migrations import SCHEMA
from tests.fakes.stored import EPOCH, ManualClock, build_run
from tests.unit.store.opening import held, opened, recover, run_with_store


async def _nothing(store: Store) -> None:
    await store.check()


async def _save_one(store: Store) -> None:
    await store.save_run(build_run())


async def _save_many(store: Store) -> None:
    for number in range(1, 40):
        await store.save_run(build_run(number, result={"text": "x" * 1000}))


def _open_error(path: Path) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        run_with_store(path, _nothing)
    return caught.value


def test_a_new_store_makes_its_directory_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "agent.sqlite3"
    run_with_store(path, _nothing)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0


def test_the_file_is_in_wal_mode_and_carries_the_schema_number(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    run_with_store(path, _nothing)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA


def test_a_sound_file_is_not_set_aside_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    run_with_store(path, _save_one)

    async def read(store: Store) -> None:
        assert store.set_aside is None
        assert await store.get_run("run-0001") == build_run()

    run_with_store(path, read)


def test_a_newer_schema_is_refused_by_number_and_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    run_with_store(path, _save_one)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
        connection.execute("ALTER TABLE runs ADD COLUMN future TEXT")
    before = path.read_bytes()
    error = _open_error(path)
    assert f"schema {SCHEMA + 1}" in error.detail
    assert f"up to {SCHEMA}" in error.detail
    assert "--state-dir" in error.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["text", "first pages", "a later page", "truncated"])
def test_a_damaged_file_is_kept_under_a_name_that_says_so_and_a_fresh_one_works(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.sqlite3"
    run_with_store(path, _save_many)
    content = bytearray(path.read_bytes())
    match damage:
        case "text":
            content = bytearray(b"this is no database\n" * 1000)
        case "first pages":
            content[100:8192] = os.urandom(8092)
        case "a later page":
            content[-8192:-4096] = os.urandom(4096)
        case "truncated":
            del content[len(content) // 2 :]
    path.write_bytes(content)

    async def use(store: Store) -> None:
        assert store.set_aside == path.with_name("agent.sqlite3.damaged-20261121T070000Z")
        assert store.set_aside.read_bytes() == bytes(content)
        assert await store.get_run("run-0001") is None
        await store.save_run(build_run())
        await store.check()

    run_with_store(path, use)
    assert "damaged" in caplog.text


def test_the_journal_of_a_damaged_file_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    for side in ("", "-wal", "-shm"):
        path.with_name(path.name + side).write_text(side)
    target = move_aside(path, EPOCH)
    assert {file.name for file in tmp_path.iterdir()} == {target.name + side for side in ("", "-wal", "-shm")}
    assert target.with_name(target.name + "-wal").read_text() == "-wal"


def test_a_second_damaged_file_does_not_replace_the_first(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    for content in (b"first" * 1000, b"second" * 1000):
        path.write_bytes(content)
        run_with_store(path, _nothing)
    kept = sorted(tmp_path.glob("*.damaged-*"))
    assert [file.read_bytes()[:5] for file in kept] == [b"first", b"secon"]


def test_of_damaged_files_the_last_are_kept_with_their_journals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "agent.sqlite3"
    stranger = tmp_path / "other.sqlite3.damaged-20200101T000000Z"
    stranger.touch()
    for number in range(KEPT_ASIDE + 2):
        path.write_bytes(b"%d" % number * 4096)
        path.with_name(path.name + "-wal").write_bytes(b"%d" % number)
        run_with_store(path, _nothing)
        time.sleep(0.02)  # a file's ctime is that of the kernel's last tick: two must not share one
    journals = {file.read_bytes() for file in tmp_path.glob("agent.sqlite3.damaged-*-wal")}
    kept = {file.read_bytes()[:1] for file in tmp_path.glob("agent.sqlite3.damaged-*Z*") if file.suffix[-4:] != "-wal"}
    assert kept == journals == {b"%d" % number for number in range(2, KEPT_ASIDE + 2)}
    assert caplog.text.count("is deleted") == 2
    assert stranger.exists()


def test_a_second_agent_on_the_same_directory_is_refused_and_told_the_process(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"

    async def second(_: Store) -> None:
        with pytest.raises(StoreUnavailableError, match=f"process {os.getpid()}"):
            await Store.open(path, clock=ManualClock())

    run_with_store(path, second)
    run_with_store(path, _nothing)  # and the lock went with the first


def test_the_lock_of_a_killed_agent_does_not_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"
    script = (
        "import asyncio, os, sys, signal; from pathlib import Path\n"
        "from meshwright_agent.store.database import Store\n"
        "from meshwright_agent.clock import SystemClock\n"
        "async def main():\n"
        "    await Store.open(Path(sys.argv[1]), clock=SystemClock())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert ended.returncode == -9
    run_with_store(path, _nothing)


def test_a_state_directory_that_cannot_be_one_is_refused_with_the_setting_to_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory.sqlite3").mkdir()
    for path in (tmp_path / "file" / "agent.sqlite3", tmp_path / "directory.sqlite3"):
        error = _open_error(path)
        assert str(path) in error.detail
        assert "MESHWRIGHT_STATE_DIR" in error.hint


@pytest.mark.parametrize("replace", [False, True])
def test_check_notices_that_the_file_was_removed_or_replaced(tmp_path: Path, replace: bool) -> None:
    path = tmp_path / "agent.sqlite3"

    async def lose(store: Store) -> None:
        await store.check()
        path.unlink()
        if replace:
            path.write_bytes(b"")
        with pytest.raises(StoreUnavailableError, match="removed or replaced"):
            await store.check()

    run_with_store(path, lose)


def test_check_fails_while_another_program_holds_the_file_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "agent.sqlite3"

    async def hold(store: Store) -> None:
        with held(path), pytest.raises(StoreUnavailableError, match=r"within 0\.5 s"):
            await store.check()
        await recover(store)

    run_with_store(path, hold, timeout_s=0.5)


def test_a_closed_store_says_so_and_may_be_closed_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "agent.sqlite3") as store:
            await store.close()
            with pytest.raises(StoreUnavailableError, match="closed"):
                await store.get_run("run-0001")

    asyncio.run(main())


def test_only_sqlite_verdicts_on_the_file_count_as_damage() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection, pytest.raises(sqlite3.Error) as caught:
        connection.execute("SELECT * FROM nowhere")
    with pytest.raises(sqlite3.Error) as closed:
        connection.execute("SELECT 1")
    assert not is_damage(caught.value)
    assert not is_damage(closed.value)
    assert not is_damage(OSError("no space left"))
