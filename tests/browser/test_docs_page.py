"""/docs in a real browser without a network, against a real agent."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.agents import RunningAgent
from tests.browser.chromium import Visit, visit


class _Page(HTMLParser):
    """The texts of some elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data


@pytest.fixture(scope="module")
def docs(agent: RunningAgent, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(f"{agent.url}/docs", tmp_path_factory.mktemp("docs"))


def test_the_page_shows_every_operation_of_the_contract(agent: RunningAgent, docs: Visit) -> None:
    document = httpx.get(f"{agent.url}/openapi.json").json()
    expected = {
        f"{method.upper()}{path} {operation['summary']}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert set(_Page(docs.html).texts["summary"]) == expected


def test_the_page_is_headed_by_the_contracts_title_version_and_description(agent: RunningAgent, docs: Visit) -> None:
    info = httpx.get(f"{agent.url}/openapi.json").json()["info"]
    page = _Page(docs.html)
    assert page.texts["h1"] == [f"{info['title']} {info['version']}"]
    assert info["description"] in page.texts["header"][0]


def test_the_page_shows_fields_with_type_bounds_and_description(docs: Visit) -> None:
    cells = _Page(docs.html).texts["td"]
    assert "granules *" in cells
    assert any("≥" in cell for cell in cells)
    assert '"dp:2,tp:4"; one size may be -1' in cells


def test_everything_that_the_page_asked_for_came_from_the_agent_itself(agent: RunningAgent, docs: Visit) -> None:
    paths = {urlsplit(url).path for url in docs.requested if url.startswith(agent.url)}
    assert paths >= {"/docs", "/web/docs.js", "/web/style.css", "/openapi.json"}
    assert [url for url in docs.requested if not url.startswith(agent.url)] == []


def test_neither_the_script_nor_the_policy_had_anything_to_complain_of(docs: Visit) -> None:
    assert docs.console == ()


def test_a_complaint_would_have_been_heard_and_a_request_elsewhere_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<script>console.error("I complain")</script><img src="http://elsewhere.example/x.png">')
    seen = visit(page.as_uri(), tmp_path)
    assert any("I complain" in line for line in seen.console)
    assert "http://elsewhere.example/x.png" in seen.requested
