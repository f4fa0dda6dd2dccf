"""The pages as files: nothing in them is fetched from elsewhere, and nothing that their own policy would block."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from meshwright_agent.app import CONTENT_SECURITY_POLICY
from tests.unit.routes.asgi import Heard, ask, build_api_alone, wrap

APP = wrap(build_api_alone())
PATHS = ["/", "/docs", "/web/dom.js", "/web/page.js", "/web/docs.js", "/web/style.css"]


def _get(path: str) -> Heard:
    return ask(APP, target=path)


@pytest.mark.parametrize("path", PATHS)
def test_a_page_comes_with_a_policy_that_lets_it_fetch_from_its_own_agent_only(path: str) -> None:
    heard = _get(path)
    assert heard.status == 200
    assert heard.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert heard.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'self'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


@pytest.mark.parametrize("file", sorted(path.name for path in (resources.files("meshwright_agent") / "web").iterdir()))
def test_no_file_names_another_host(file: str) -> None:
    text = (resources.files("meshwright_agent") / "web" / file).read_text()
    assert not re.findall(r"(?:https?|wss?|ftp):|[\"'(=]\s*//|@import|url\(", text)


def test_the_script_sets_text_as_text() -> None:
    script = _get("/web/docs.js").body.decode()
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)
