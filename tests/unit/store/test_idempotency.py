from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from meshwright_agent.store.database import Store
from meshwright_agent.store.idempotency import KeyUse
from tests.fakes.stored import build_run
from tests.unit.store.opening import run_with_store

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.text(max_size=3), JSON, max_size=5)


@given(request=REQUESTS, order=st.randoms(use_true_random=False))
def test_the_order_of_fields_does_not_make_another_request(request: dict[str, Any], order: Random) -> None:
    items = list(request.items())
    order.shuffle(items)
    assert KeyUse.of("k", "bench", dict(items)) == KeyUse.of("k", "bench", request)


@given(first=REQUESTS, second=REQUESTS)
def test_different_requests_have_different_uses(first: dict[str, Any], second: dict[str, Any]) -> None:
    if first != second:
        assert KeyUse.of("k", "bench", first) != KeyUse.of("k", "bench", second)


def test_a_key_is_recalled_after_a_restart_with_the_run_it_made(tmp_path: Path) -> None:
    use = KeyUse.of("key", "bench", {"suite": "quick"})

    async def write(store: Store) -> None:
        await store.save_run(build_run(), key=use)

    async def read(store: Store) -> None:
        assert await store.recall_key("key") == (use, "run-0001")
        assert await store.recall_key("other") is None

    run_with_store(tmp_path / "s.sqlite3", write)
    run_with_store(tmp_path / "s.sqlite3", read)


def test_a_key_goes_with_its_run(tmp_path: Path) -> None:
    async def main(store: Store) -> None:
        await store.save_run(build_run(1, state="succeeded"), key=KeyUse.of("key", "bench", {}))
        await store.save_run(build_run(2, state="succeeded"))
        assert await store.recall_key("key") is None

    run_with_store(tmp_path / "s.sqlite3", main, keep_runs=1)
