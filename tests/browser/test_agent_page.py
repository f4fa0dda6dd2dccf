"""/ in a real browser: what the page shows is what the routes say."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.browser.chromium import Visit, visit
from tests.tokens import add_token


@pytest.fixture(scope="module")
def page(agent: RunningAgent, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return visit(f"{agent.url}/?mesh=dp:2,tp:4", tmp_path_factory.mktemp("page"))


def read_section(page: Visit, part: str) -> str:
    """The text of the element with this id, tags replaced by blanks."""
    inner = page.html.split(f'id="{part}"', 1)[1].split(">", 1)[1]
    return html.unescape(re.sub(r"<[^>]+>", " ", inner.split("</section>", 1)[0]))


def read_header(page: Visit) -> str:
    """The text of the page above its sections."""
    inner = page.html.split("<header>", 1)[1].split("</header>", 1)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", inner)).split())


REPLIES = {
    "state": "healthy", "components": [], "leases": [], "records": [], "devices": [], "links": [], "warnings": [],
    "host": {"name": "host"}, "worker": {"state": "ready", "generation": 1}, "id": "run-1",
}  # fmt: skip
"""What the stand-in answers whatever is asked: no rows anywhere."""

STAND_IN = """<script>
window.EventSource = class { addEventListener() {} };
window.told = [];
window.confirm = () => { told.push("question"); return %(is_confirmed)s; };
window.fetch = async (path, options = {}) => {
  if (options.method) told.push(`${options.method} ${path}`);
  return { ok: true, json: async () => (%(replies)s), text: async () => "ready" };
};
</script>"""
HANGS = """<script>
const replies = %(replies)s;
let asked = 0;
AbortSignal.timeout = () => { // the browser's own goes by the clock, which the visit does not wait for
  const control = new AbortController();
  setTimeout(() => control.abort(new Error("late")), 1000);
  return control.signal;
};
window.fetch = async (path, { signal } = {}) => {
  if (asked++ < 5) return { ok: true, json: async () => replies, text: async () => "ready" };
  return new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
};
</script>"""
"""An agent that answers once, and then not even with a refusal."""
PRESS = """<script>
document.getElementById("bench-start").click();
setTimeout(() => { document.title = told.join(" "); }, 500);
</script>"""


def write_stand_in(
    agent: RunningAgent,
    page: str,
    folder: Path,
    *,
    is_confirmed: bool = True,
    auth: tuple[str, str] | None = None,
    script: str = STAND_IN,
    press: str = PRESS,
) -> Path:
    """Writes the page with its scripts and the stand-in for the agent into one file, and returns its path."""
    stand_in = script % {"is_confirmed": json.dumps(is_confirmed), "replies": json.dumps(REPLIES)}
    page = page.replace("<header>", stand_in + "<header>")
    for name in ("dom.js", "page.js"):
        code = httpx.get(f"{agent.url}/web/{name}", auth=auth).text
        page = page.replace(f'<script src="/web/{name}"></script>', f"<script>{code}</script>")
    path = folder / f"page-{is_confirmed}.html"
    path.write_text(page.replace("</html>", press + "</html>"))
    return path


def press_the_button(agent: RunningAgent, folder: Path, *, is_confirmed: bool) -> str:
    """Returns what the page asked its visitor and the agent after a click on the button that starts a bench."""
    path = write_stand_in(agent, httpx.get(agent.url).text, folder, is_confirmed=is_confirmed)
    found = re.search(r"<title>(.*?)</title>", visit(path.as_uri(), folder).html)
    assert found
    return found[1]


def test_a_healthy_host_is_green_in_the_headline_and_every_device_is_listed(agent: RunningAgent, page: Visit) -> None:
    host = httpx.get(f"{agent.url}/devices").json()["host"]["name"]
    assert read_header(page).startswith(f"{host} healthy ready · worker ")
    assert re.search(r'id="state"[^>]*><span class="good">healthy<', page.html)
    assert read_section(page, "devices").count("cpu (virtual)") == 8
    assert "no device is leased" in read_section(page, "leases")


def test_a_degraded_host_is_not_green_and_its_worst_component_comes_first(tmp_path: Path) -> None:
    (tmp_path / "meshwright.sqlite3").write_bytes(b"not a database" * 1000)
    with start_agent(cpu_devices=2, state_dir=tmp_path) as running:
        wait_for(lambda: httpx.get(f"{running.url}/health").json()["state"] == "degraded", running)
        seen = visit(running.url, tmp_path)
        store = next(
            each for each in httpx.get(f"{running.url}/health").json()["components"] if each["name"] == "store"
        )
    assert re.search(r'id="state"[^>]*><span class="warn">degraded<', seen.html)
    assert f"store: {store['reason']}" in read_header(seen)
    assert re.search(
        r"component state reason action checked store degraded", " ".join(read_section(seen, "health").split())
    )


def test_an_agent_that_hangs_is_unknown_and_nothing_of_it_is_left_on_the_page(
    agent: RunningAgent, tmp_path: Path
) -> None:
    again = "<script>setTimeout(() => refresh().catch(showUnreachable), 500);</script>"
    path = write_stand_in(agent, httpx.get(agent.url).text, tmp_path, script=HANGS, press=again)
    seen = visit(path.as_uri(), tmp_path)
    header = read_header(seen)
    assert "unknown: the agent does not answer" in header
    assert "ready" not in header
    assert not read_section(seen, "health").strip()


def test_a_visitor_who_may_only_read_sees_no_button_to_measure(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    secret = add_token(tokens, "visitor", "read")
    with start_agent(cpu_devices=2, ready=False, MESHWRIGHT_TOKENS_FILE=str(tokens)) as running:
        text = httpx.get(running.url, auth=("visitor", secret)).text
        seen = visit(write_stand_in(running, text, tmp_path, auth=("visitor", secret)).as_uri(), tmp_path)
    assert '<html lang="en" data-scope="read">' in text
    assert re.search(r'<p id="bench-controls" hidden', seen.html)


def test_a_bench_starts_only_after_the_visitor_confirms(agent: RunningAgent, page: Visit, tmp_path: Path) -> None:
    """The page's own scripts beside a stand-in for the agent, since a browser without hands clicks nothing."""
    assert re.search(r'<p id="bench-controls"(?! hidden)>', page.html)
    asked = [press_the_button(agent, tmp_path, is_confirmed=is_confirmed) for is_confirmed in (False, True)]
    assert asked == ["question", "question POST /placement/bench"]


def test_the_page_says_for_what_and_how_long_a_device_is_leased_and_which_is_free(
    agent: RunningAgent, tmp_path: Path
) -> None:
    body = {"devices": [2], "purpose": "slurm job 7", "ttl_s": 3600}
    path = f"{agent.url}/leases/slurm-7"
    httpx.put(path, json=body, timeout=30).raise_for_status()
    try:
        shown = read_section(visit(agent.url, tmp_path), "devices")
    finally:
        httpx.delete(path, timeout=30)
    assert re.findall(r"leased, [56]\d min left: slurm job 7", shown) != []
    assert shown.count("slurm job 7") == 1


def test_the_page_shows_every_component_with_its_state(agent: RunningAgent, page: Visit) -> None:
    shown = read_section(page, "health")
    for component in httpx.get(f"{agent.url}/health").json()["components"]:
        assert re.search(rf"{component['name']}\s+{component['state']}\s", shown), component


def test_a_link_to_a_mesh_shows_its_plan_as_a_grid_with_its_code(agent: RunningAgent, page: Visit) -> None:
    plan = httpx.get(f"{agent.url}/mesh/plan?mesh=dp:2,tp:4").json()["plans"][0]
    shown = read_section(page, "plan")
    assert plan["fingerprint"] in shown
    assert re.search(r"tp 0\s+tp 1\s+tp 2\s+tp 3\s+0\s+1\s+2\s+3\s+4\s+5\s+6\s+7", shown)
    assert plan["code"].splitlines()[-1] in shown


def test_each_measurement_is_shown_with_its_devices(agent: RunningAgent, tmp_path: Path) -> None:
    asked = {"cases": ["matmul", "device_to_device", "all_reduce"], "devices": [1, 2, 3], "sizes_bytes": [4096]}
    run = httpx.post(f"{agent.url}/placement/bench", json={**asked, "matmul_size": 64}, timeout=60).json()
    wait_for(lambda: httpx.get(f"{agent.url}/runs/{run['id']}").json()["state"] == "succeeded", agent)
    shown = read_section(visit(f"{agent.url}/", tmp_path), "bench")
    for case, devices in [("matmul", "2"), ("device_to_device", "1→2"), ("all_reduce", "1-3")]:
        assert re.search(rf"{case}\s+{devices}\s", shown), case


def test_a_mesh_that_cannot_be_is_told_in_the_agents_words(agent: RunningAgent, tmp_path: Path) -> None:
    problem = httpx.get(f"{agent.url}/mesh/plan?mesh=dp:3,tp:4").json()
    shown = read_section(visit(f"{agent.url}/?mesh=dp:3,tp:4", tmp_path), "plan")
    assert problem["detail"] in shown
    assert problem["hint"] in shown


def test_a_mesh_name_is_shown_as_text_and_never_run(agent: RunningAgent, tmp_path: Path) -> None:
    seen = visit(f"{agent.url}/?mesh=%3Cimg%20src=x%20onerror=alert(1)%3E:8", tmp_path)
    assert "<img" not in seen.html.split('id="plan"', 1)[1]
    assert [urlsplit(url).path for url in seen.requested if urlsplit(url).path == "/x"] == []


def test_the_page_asks_only_the_agent_and_nothing_complains(agent: RunningAgent, page: Visit) -> None:
    assert [url for url in page.requested if not url.startswith(agent.url)] == []
    assert page.console == ()


def test_a_simulated_host_is_shown_as_one_and_its_devices_with_their_hosts(tmp_path: Path) -> None:
    with start_agent(cpu_devices=None, MESHWRIGHT_SIMULATE="2*h100:2") as simulated:
        seen = visit(f"{simulated.url}/?mesh=dp:2,tp:2", tmp_path)
    assert "ready: simulated 2*h100:2" in read_header(seen)
    assert "this agent simulates 2*h100:2" in read_section(seen, "devices")
    assert re.search(r"host-0/0\s+host-0/1\s+host-1/0\s+host-1/1", read_section(seen, "plan"))
    assert seen.console == ()
