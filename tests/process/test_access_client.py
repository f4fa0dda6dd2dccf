"""The client and its command against a real agent that asks for TLS, a client certificate and a token, all at once."""

from __future__ import annotations

import datetime
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from meshwright import Client
from meshwright.errors import AgentConnectionError, ForbiddenError, UnauthorizedError
from tests.agents import MESHWRIGHT, RunningAgent, start_agent, wait_for
from tests.tokens import add_token, replace_file

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
VARIABLES = (
    *("MESHWRIGHT_URL", "MESHWRIGHT_TOKEN", "MESHWRIGHT_TOKEN_FILE", "MESHWRIGHT_CA_FILE"),
    *("MESHWRIGHT_CLIENT_CERT_FILE", "MESHWRIGHT_CLIENT_KEY_FILE"),
)


def _put_server(folder: Path, ca: trustme.CA, **when: datetime.datetime) -> None:
    leaf = ca.issue_cert("127.0.0.1", **when)
    replace_file(folder / "server.key", leaf.private_key_pem.bytes())
    replace_file(folder / "server.pem", leaf.cert_chain_pems[0].bytes())


@dataclass(frozen=True)
class Host:
    """An agent, the CAs of both sides, and what a client needs to reach it."""

    agent: RunningAgent
    folder: Path
    server_ca: trustme.CA
    client_ca: trustme.CA
    variables: Mapping[str, str]

    def show(self, ca: trustme.CA, **when: datetime.datetime) -> dict[str, str]:
        """Returns the variables that name a client certificate of a CA."""
        leaf = ca.issue_cert("trainer@cluster", common_name="trainer", **when)
        return {
            "MESHWRIGHT_CLIENT_CERT_FILE": replace_file(self.folder / "shown.pem", leaf.cert_chain_pems[0].bytes()),
            "MESHWRIGHT_CLIENT_KEY_FILE": replace_file(self.folder / "shown.key", leaf.private_key_pem.bytes()),
        }

    def put_server(self, ca: trustme.CA, **when: datetime.datetime) -> None:
        """Gives the agent another certificate, which it reads without a restart."""
        _put_server(self.folder, ca, **when)

    def ask(self, path: str) -> httpx.Response:
        """Returns an answer over the unix socket, which asks for nothing."""
        with self.agent.connect() as local:
            return local.get(path)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("reach")
    server_ca, client_ca = trustme.CA(), trustme.CA()
    secret = add_token(folder / "tokens", "trainer", "read")
    variables = {
        "MESHWRIGHT_TOKEN_FILE": replace_file(folder / "token", secret.encode()),
        "MESHWRIGHT_CA_FILE": replace_file(folder / "ca.pem", server_ca.cert_pem.bytes()),
    }
    settings = {
        "MESHWRIGHT_TOKENS_FILE": str(folder / "tokens"),
        "MESHWRIGHT_TLS_CERT_FILE": str(folder / "server.pem"),
        "MESHWRIGHT_TLS_KEY_FILE": str(folder / "server.key"),
        "MESHWRIGHT_TLS_CLIENT_CA_FILE": replace_file(folder / "client-ca.pem", client_ca.cert_pem.bytes()),
    }
    _put_server(folder, server_ca)
    with start_agent(cpu_devices=2, ready=False, **settings) as agent:
        found = Host(agent, folder, server_ca, client_ca, {"MESHWRIGHT_URL": agent.url, **variables})
        wait_for(lambda: found.ask("/readyz").status_code == 200, agent)
        yield found


@pytest.fixture
def reach(host: Host, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment of a client that has all that it needs."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**host.variables, **host.show(host.client_ca)}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def _ask(question: Any) -> Any:
    with Client(max_retries=0) as client:
        return question(client)


def _fail(error: type[Exception]) -> Any:
    """Returns how a question fails; the command fails with the same hint, and without a traceback."""
    with pytest.raises(error) as caught:
        _ask(lambda client: client.devices())
    failure: Any = caught.value
    ended = subprocess.run([*MESHWRIGHT, "devices"], env=dict(os.environ), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert " ".join(failure.hint.split())[:40] in " ".join(ended.stderr.split())
    return failure


def test_with_ca_certificate_and_token_of_files_every_way_in_is_open(host: Host, reach: pytest.MonkeyPatch) -> None:
    assert len(_ask(lambda client: client.devices()).devices) == 2
    assert _ask(lambda client: client.plan("dp:2")).mesh_shape == {"dp": 2}
    with pytest.raises(ForbiddenError, match="token:trainer has read"):
        _ask(lambda client: client.release())


def test_without_a_token_the_error_names_the_variable(host: Host, reach: pytest.MonkeyPatch) -> None:
    reach.delenv("MESHWRIGHT_TOKEN_FILE")
    assert "MESHWRIGHT_TOKEN_FILE" in _fail(UnauthorizedError).hint
    reach.setenv("MESHWRIGHT_TOKEN", "mw_another")
    assert "mw_another" not in str(_fail(UnauthorizedError))


def test_without_a_client_certificate_the_error_names_the_variable(host: Host, reach: pytest.MonkeyPatch) -> None:
    reach.delenv("MESHWRIGHT_CLIENT_CERT_FILE")
    reach.delenv("MESHWRIGHT_CLIENT_KEY_FILE")
    assert "MESHWRIGHT_CLIENT_CERT_FILE" in _fail(UnauthorizedError).hint


@pytest.mark.parametrize("case", ["of another CA", "expired"])
def test_a_client_certificate_that_is_not_good_is_refused_in_words(
    host: Host, reach: pytest.MonkeyPatch, case: str
) -> None:
    old = {"not_before": NOW - 2 * DAY, "not_after": NOW - DAY}
    shown = host.show(trustme.CA()) if case == "of another CA" else host.show(host.client_ca, **old)
    for name, value in shown.items():
        reach.setenv(name, value)
    assert "MESHWRIGHT_CLIENT_CERT_FILE" in _fail(AgentConnectionError).hint


@pytest.mark.parametrize("case", ["of another CA", "expired"])
def test_an_agent_whose_certificate_is_not_good_is_not_asked_and_is_mended_without_a_restart(
    host: Host, reach: pytest.MonkeyPatch, case: str
) -> None:
    def is_answered() -> bool:
        try:
            return bool(_ask(lambda client: client.devices()))
        except AgentConnectionError:
            return False

    if case == "of another CA":
        host.put_server(trustme.CA(), not_after=NOW + 300 * DAY)
    else:
        host.put_server(host.server_ca, not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    wait_for(lambda: not is_answered(), host.agent, limit_s=30)
    hint = "MESHWRIGHT_CA_FILE" if case == "of another CA" else "renew it, or check the clock"
    assert hint in _fail(AgentConnectionError).hint
    host.put_server(host.server_ca)
    wait_for(is_answered, host.agent, limit_s=30)
