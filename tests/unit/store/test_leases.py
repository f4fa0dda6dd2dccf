"""Leases as rows: how many that have ended are kept, and what a key means after its lease."""

from __future__ import annotations

import pytest

from meshwright_agent.store import leases
from meshwright_agent.store.idempotency import KeyUse
from meshwright_agent.store.leases import (
    KEEP_ENDED,
    StoredLease,
    end_leases,
    find_lease,
    list_held,
    recall_lease_key,
    remember_lease_key,
    save_lease,
)
from meshwright_agent.store.unreadable import UnreadableRows
from tests.fakes.databases import build_lease
from tests.unit.store.opening import migrated

USE = KeyUse("key", leases.ROUTE, "sha")


def build(number: int) -> StoredLease:
    return StoredLease(build_lease(number), "boot-1", 2000.0)


def test_of_those_that_have_ended_exactly_the_last_to_end_are_kept_and_of_those_that_hold_all() -> None:
    with migrated() as connection:
        for number in range(KEEP_ENDED + 20):
            save_lease(connection, build(number))
        held_long, holding = build(0).lease.id, [1, 7, KEEP_ENDED + 15]
        ended = [build(number).lease.id for number in range(2, KEEP_ENDED + 20) if number not in holding]
        end_leases(connection, dict.fromkeys(ended, "by request"))
        end_leases(connection, {held_long: "its job ended after months"})
        assert [held.lease for held in list_held(connection, UnreadableRows())] == list(map(build_lease, holding))
        kept = {row[0] for row in connection.execute("SELECT id FROM leases WHERE ended IS NOT NULL")}
        assert kept == {held_long, *ended[-(KEEP_ENDED - 1) :]}
        save_lease(connection, newest := build(5000))
        assert list_held(connection, UnreadableRows())[-1] == newest


def test_the_first_reason_stays_and_a_lease_that_holds_again_has_none() -> None:
    with migrated() as connection:
        save_lease(connection, held := build(1))
        for reason in ("pre-empted", "not renewed"):
            end_leases(connection, {held.lease.id: reason})
        stored = find_lease(connection, held.lease.id, UnreadableRows())
        assert stored is not None
        assert stored.ended == "pre-empted"
        save_lease(connection, held)
        assert find_lease(connection, held.lease.id, UnreadableRows()) == held


def test_a_key_stays_with_its_lease_after_its_end() -> None:
    with migrated() as connection:
        save_lease(connection, held := build(1))
        remember_lease_key(connection, held.lease.id, USE)
        end_leases(connection, {held.lease.id: "by request"})
        found = recall_lease_key(connection, "key", UnreadableRows())
        assert found is not None
        assert (found[0], found[1].ended) == (USE, "by request")
        assert recall_lease_key(connection, "another", UnreadableRows()) is None


@pytest.mark.parametrize("column", ["body", "until_s", "request_sha256"])
def test_the_key_of_a_lease_that_cannot_be_read_makes_another(column: str) -> None:
    with migrated() as connection:
        for number in (1, 2):
            save_lease(connection, build(number))
        first, second = (build(number).lease.id for number in (1, 2))
        remember_lease_key(connection, first, USE)
        connection.execute(f"UPDATE leases SET {column} = x'ff' WHERE id = ?", (first,))
        unreadable = UnreadableRows()
        assert recall_lease_key(connection, "key", unreadable) is None
        assert unreadable.names == {"leases": (first,)}
        remember_lease_key(connection, second, USE)
        found = recall_lease_key(connection, "key", unreadable)
        assert found == (USE, build(2))
