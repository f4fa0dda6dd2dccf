"""The pages as files: nothing in them is fetched from elsewhere, and nothing that their own policy would block."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from meshwright_agent.app import CONTENT_SECURITY_POLICY
from tests.unit.routes.asgi import Heard, ask, build_api_alone, wrap

APP = wrap(build_api_alone())
PATHS = ["/", "/docs", "/web/dom.js", "/web/page.js", "/web/docs.js", "/web/style.css"]
LINKING = {"src", "href", "action", "poster", "data", "srcset"}


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.seen and self.seen[-1][0] in {"script", "style"}:
            self.scripts.append(data.strip())


def _get(path: str) -> Heard:
    return ask(APP, target=path)


def _parse(path: str) -> _Elements:
    elements = _Elements()
    elements.feed(_get(path).body.decode())
    return elements


@pytest.mark.parametrize("path", PATHS)
def test_a_page_comes_with_a_policy_that_lets_it_fetch_from_its_own_agent_only(path: str) -> None:
    heard = _get(path)
    assert heard.status == 200
    assert heard.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert heard.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize(
    ("path", "media_type"), [("docs", "html"), ("web/docs.js", "javascript"), ("web/style.css", "css")]
)
def test_a_page_says_what_it_is(path: str, media_type: str) -> None:
    assert _get(f"/{path}").headers["content-type"] == f"text/{media_type}; charset=utf-8"


@pytest.mark.parametrize("file", sorted(path.name for path in (resources.files("meshwright_agent") / "web").iterdir()))
def test_no_file_names_another_host(file: str) -> None:
    text = (resources.files("meshwright_agent") / "web" / file).read_text()
    assert not re.findall(r"(?:https?|wss?|ftp):|[\"'(=]\s*//|@import|url\(", text)


def test_the_docs_page_links_only_to_what_the_agent_serves() -> None:
    served = {*PATHS, "/openapi.json"}
    links = {value for _, attrs in _parse("/docs").seen for name, value in attrs.items() if name in LINKING}
    assert links
    assert links <= served


def test_the_docs_page_has_nothing_inline_that_the_policy_would_block() -> None:
    elements = _parse("/docs")
    assert not any(elements.scripts)
    names = {name for _, attrs in elements.seen for name in attrs}
    assert not {name for name in names if name == "style" or name.startswith("on")}


def test_the_script_sets_text_as_text() -> None:
    script = _get("/web/docs.js").body.decode()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
