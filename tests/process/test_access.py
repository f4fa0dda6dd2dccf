"""Who may, on real agents: tokens, scopes, hosts, sites, limits of connections. TLS has a file of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import serve_and_leave
from tests.process.living import list_children
from tests.tokens import add_token, remove_token


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@dataclass(frozen=True)
class Guarded:
    """An agent with tokens, and their secrets by scope."""

    agent: RunningAgent
    token_file: Path
    secrets: dict[str, str]

    def ask(self, method: str, path: str, scope: str | None = "read", **options: Any) -> httpx.Response:
        """Returns the answer to a caller of a scope; None: to one without a token."""
        headers = options.pop("headers", {}) | ({} if scope is None else _bearer(self.secrets[scope]))
        return httpx.request(method, f"{self.agent.url}{path}", headers=headers, timeout=60, **options)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("access") / "tokens"
    secrets = {scope: add_token(path, f"{scope}er", scope) for scope in ("read", "operate", "admin")}
    settings = {"MESHWRIGHT_TOKENS_FILE": str(path), "MESHWRIGHT_UDS_ADMINS": "", "MESHWRIGHT_LOG_LEVEL": "debug"}
    secret = secrets["admin"]
    settings |= {"MESHWRIGHT_TOKEN": secret, "OTEL_EXPORTER_OTLP_LOGS_HEADERS": f"authorization=Bearer {secret}"}
    with start_agent(cpu_devices=2, **settings) as agent:
        yield Guarded(agent, path, secrets)


# ---- at the start ----------------------------------------------------------------------------------------------------


def _refuse_start(tmp_path: Path, *flags: str) -> str:
    """Returns what an agent says that does not start."""
    ended = serve_and_leave(tmp_path / "state", *flags)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state").exists()
    return ended.stderr


def test_beyond_loopback_an_agent_without_tokens_does_not_start_and_says_what_works(tmp_path: Path) -> None:
    said = _refuse_start(tmp_path, "--host", "0.0.0.0")
    assert "meshwright-agent token new" in said
    assert "--insecure" in said


def test_a_malformed_token_file_stops_the_start_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# ours\nprolog operate\n")
    assert f"{path}, line 2" in _refuse_start(tmp_path, "--tokens-file", str(path))


# ---- tokens and scopes -----------------------------------------------------------------------------------------------


def test_a_token_that_the_command_makes_is_taken_by_the_running_agent(guarded: Guarded) -> None:
    command = [sys.executable, "-m", "meshwright_agent", "token", "new", "--scope", "operate"]
    command += ["by-command", "--expires", "1h"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert made.stderr.strip() not in made.stdout, "the token file has no secret"
    assert " expires=" in made.stdout
    with guarded.token_file.open("a") as file:
        file.write(made.stdout)

    def ask(printed: str) -> int:
        headers = _bearer(printed.strip())
        return httpx.post(f"{guarded.agent.url}/devices/release", headers=headers, timeout=60).status_code

    wait_for(lambda: ask(made.stderr) == 200, guarded.agent, limit_s=10)
    assert ask("mw_no_such_token") == 401


def test_everything_but_the_probes_needs_a_token(guarded: Guarded) -> None:
    for path in ("/devices", "/", "/docs", "/metrics", "/openapi.json"):
        refused = guarded.ask("GET", path, None)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized"), path
        assert refused.headers["www-authenticate"] == 'Bearer, Basic realm="meshwright"'
        assert guarded.ask("GET", path).status_code == 200, path
    assert guarded.ask("GET", "/healthz", None).text == "ok\n"
    assert guarded.ask("GET", "/readyz", None).status_code == 200


def test_a_browser_may_send_the_token_as_a_password(guarded: Guarded) -> None:
    page = httpx.get(f"{guarded.agent.url}/", auth=("me", guarded.secrets["read"]))
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert httpx.get(f"{guarded.agent.url}/", auth=("me", "wrong")).status_code == 401


def test_who_is_admin_on_the_unix_socket_is_one_setting(guarded: Guarded) -> None:
    assert guarded.agent.uds.stat().st_mode & 0o777 == 0o666
    with guarded.agent.connect("http://any.name") as client:
        assert client.get("/runs").status_code == 200
        refused = client.post("/devices/release")
        assert refused.status_code == 403
        assert f"uid:{os.geteuid()} has read" in refused.json()["detail"]
        assert client.delete("/runs/x", headers=_bearer(guarded.secrets["operate"])).status_code == 404
        assert client.get("/runs", headers=_bearer("wrong")).status_code == 401


# ---- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_ends_with_the_token_that_opened_it_and_tells_nothing_after(guarded: Guarded) -> None:
    secret = add_token(guarded.token_file, "listener", "read")
    word = {"component": "store", "reason": "a test"}

    def opens() -> bool:
        return httpx.get(f"{guarded.agent.url}/runs", headers=_bearer(secret), timeout=60).status_code == 200

    wait_for(opens, guarded.agent, limit_s=30)
    url = f"{guarded.agent.url}/events/stream"
    with httpx.stream("GET", url, headers=_bearer(secret), timeout=60) as stream:
        heard = stream.iter_text()
        guarded.ask("POST", "/health/acknowledge", "admin", json=word)
        assert "acknowledged" in next(heard)
        remove_token(guarded.token_file, "listener")
        wait_for(lambda: not opens(), guarded.agent, limit_s=30)
        guarded.ask("POST", "/health/acknowledge", "admin", json=word)
        assert "acknowledged" not in "".join(heard)


def test_without_tokens_tcp_may_read_and_the_socket_of_the_agents_user_everything() -> None:
    with start_agent(cpu_devices=1, ready=False, MESHWRIGHT_INSECURE="false") as agent:
        assert httpx.get(f"{agent.url}/leases").status_code == 200
        refused = httpx.post(f"{agent.url}/devices/release")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert refused.json()["hint"] == f"use unix://{agent.uds} as one of MESHWRIGHT_UDS_ADMINS"
        told = httpx.post(f"{agent.url}/devices/release", headers=_bearer("mw_any")).json()
        assert "because it has no token file" in told["detail"]
        assert told["hint"].startswith("give the agent one (MESHWRIGHT_TOKENS_FILE)")
        with agent.connect("http://any.name") as client:
            assert client.post("/devices/release").status_code == 200


# ---- the audit, and what stands nowhere ------------------------------------------------------------------------------


def test_the_audit_names_the_devices_and_what_was_made_and_what_the_agent_opened(guarded: Guarded) -> None:
    def post(path: str, number: int, body: dict[str, Any]) -> httpx.Response:
        return guarded.ask("POST", path, "operate", headers={"X-Request-ID": f"made-{number}"}, json=body)

    lease_id, body = "slurm-4711", {"devices": [0], "purpose": "a test"}
    guarded.ask("PUT", f"/leases/{lease_id}", "operate", headers={"X-Request-ID": "made-1"}, json=body)
    assert post("/placement/bench", 2, {"devices": [0]}).status_code == 409
    run_id = post("/placement/bench", 3, {"lease": lease_id, "cases": ["matmul"]}).json()["id"]
    guarded.ask("DELETE", f"/runs/{run_id}", "operate")
    guarded.ask("DELETE", f"/leases/{lease_id}", "operate", headers={"X-Request-ID": "made-4"})

    def lines() -> list[str]:
        said = guarded.agent.log_text()
        return re.findall(r"meshwright\.audit.*?: caller=token:operateer scope=operate (.*made-\d)", said)

    wait_for(lambda: len(lines()) >= 4, guarded.agent, limit_s=30)
    assert lines() == [
        f"method=PUT path=/leases/{lease_id} devices=0 lease={lease_id} status=201 request_id=made-1",
        "method=POST path=/placement/bench devices=0 status=409 request_id=made-2",
        f"method=POST path=/placement/bench devices=all run={run_id} status=202 request_id=made-3",
        f"method=DELETE path=/leases/{lease_id} devices=0 status=200 request_id=made-4",
    ]


def test_a_token_stands_in_no_log_no_error_and_no_metric(guarded: Guarded) -> None:
    secret = guarded.secrets["admin"]
    said = []
    for given in (f"Bearer {secret}", f"Bearer {secret}x", f"Bearer {secret} {secret}", secret, f"Basic {secret}"):
        for method, path in (("GET", "/devices"), ("POST", "/mesh/plan"), ("GET", "/nowhere")):
            url = f"{guarded.agent.url}{path}"
            headers = {"Authorization": given, "Connection": "upgrade", "Upgrade": "websocket"}
            answer = httpx.request(method, url, headers=headers, timeout=60, content=b"{broken")
            said.append(answer.text + str(answer.headers))
    url = httpx.URL(guarded.agent.url)
    with socket.create_connection((url.host, url.port or 0), timeout=60) as raw:
        head = f"GET /devices HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\nBroken\r\n\r\n"
        raw.sendall(head.encode())
        said.append(_read_all(raw).decode())
    said += [guarded.ask("GET", "/metrics", "admin").text, guarded.ask("GET", "/health", "admin").text]
    said += [guarded.agent.log_text(), guarded.token_file.read_text()]
    assert not [text for text in said if any(known in text for known in guarded.secrets.values())]
    assert "WebSocket" not in guarded.agent.log_text()


def test_children_are_given_no_secret_and_a_crash_tells_none(guarded: Guarded) -> None:
    secret = guarded.secrets["admin"].encode()
    assert secret in Path(f"/proc/{guarded.agent.pid}/environ").read_bytes()

    def worker() -> dict[str, Any]:
        state: dict[str, Any] = guarded.ask("GET", "/devices").json()["worker"]
        return state

    asked = {"cases": ["host_to_device"], "samples": 3}
    assert guarded.ask("POST", "/placement/bench", "operate", json=asked).status_code == 202  # after a release
    wait_for(lambda: worker()["pid"] is not None, guarded.agent, limit_s=60)
    for pid in list_children(guarded.agent.pid):
        with contextlib.suppress(OSError):  # a probe that has ended
            assert secret not in Path(f"/proc/{pid}/environ").read_bytes()
    os.kill(worker()["pid"], signal.SIGABRT)
    wait_for(lambda: "SIGABRT" in (worker()["last_error"] or ""), guarded.agent, limit_s=60)
    said = [guarded.ask("GET", path).text for path in ("/devices", "/health", "/events", "/runs")]
    assert not [text for text in [*said, guarded.agent.log_text()] if secret.decode() in text]


def _read_all(raw: socket.socket) -> bytes:
    """Returns what comes until the other end closes."""
    chunks = []
    with contextlib.suppress(ConnectionResetError):
        while chunk := raw.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)
