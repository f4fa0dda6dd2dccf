"""Each request is answered as it is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.hosts import Hosts
from tests.golden.replies import FOLDER, Golden, diff, read_requests

REQUESTS = read_requests()


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    chosen = (item.callspec.params.get("golden") for item in request.session.items if hasattr(item, "callspec"))
    hosts = Hosts(each.host for each in chosen if isinstance(each, Golden))
    yield hosts
    hosts.close()


@pytest.mark.parametrize("golden", REQUESTS, ids=str)
def test_a_request_is_answered_as_it_is_recorded(hosts: Hosts, golden: Golden) -> None:
    difference = diff(golden, hosts.answer(golden))
    assert not difference, f"\n{difference}\nif this is meant: python -m tests.golden --write {golden}"


def test_each_recorded_reply_belongs_to_a_request_that_is_understood() -> None:
    replies = set((FOLDER / "replies").rglob("*.json"))
    assert replies == {golden.path for golden in REQUESTS}
    texts = {path.stem: path.read_text(encoding="utf-8") for path in replies}
    assert not [name for name, text in texts.items() if "No such option" in text]
    unknown = {"refused-unknown-field", "refused-search-with-mesh", "422-unknown-query"}
    assert {name for name, text in texts.items() if "unknown field" in text} == unknown
