"""TLS on real agents and real connections: who is trusted, who is not, and certificates that change underway."""

from __future__ import annotations

import datetime
import os
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import which

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.agents import RunningAgent, start_agent, wait_for
from tests.faults.causing import serve_and_leave
from tests.tokens import replace_file

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


@dataclass
class Files:
    """Where an agent's certificates stand."""

    folder: Path

    def __post_init__(self) -> None:
        self.cert, self.key, self.client_ca = (self.folder / f"{name}.pem" for name in ("cert", "key", "client-ca"))

    def put_server(self, ca: trustme.CA, key: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        issued = ca.issue_cert("127.0.0.1", "localhost", key_type=key)
        replace_file(self.key, issued.private_key_pem.bytes())
        replace_file(self.cert, b"".join(pem.bytes() for pem in issued.cert_chain_pems))

    def settings(self) -> dict[str, str]:
        return {
            "MESHWRIGHT_TLS_CERT_FILE": str(self.cert),
            "MESHWRIGHT_TLS_KEY_FILE": str(self.key),
            "MESHWRIGHT_TLS_CLIENT_CA_FILE": str(self.client_ca),
        }


def _trust(ca: trustme.CA, shown: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """Returns a client's context: whom it trusts, and what it shows."""
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    ca.configure_trust(context)
    if shown is not None:
        shown.configure_cert(context)
    return context


@dataclass(frozen=True)
class Secured:
    """An agent that asks for client certificates, and the CA of both sides."""

    agent: RunningAgent
    files: Files
    server_ca: trustme.CA
    client_ca: trustme.CA
    silent: socket.socket

    def get(self, path: str, shown: trustme.LeafCert | None = None, ca: trustme.CA | None = None) -> httpx.Response:
        return httpx.get(f"{self.agent.url}{path}", verify=_trust(ca or self.server_ca, shown), timeout=60)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    files = Files(tmp_path_factory.mktemp("tls"))
    server_ca, client_ca = trustme.CA(), trustme.CA()
    files.put_server(server_ca)
    replace_file(files.client_ca, client_ca.cert_pem.bytes())
    with start_agent(cpu_devices=2, ready=False, **files.settings()) as agent, socket.socket() as silent:
        silent.connect((httpx.URL(agent.url).host, httpx.URL(agent.url).port))
        found = Secured(agent, files, server_ca, client_ca, silent)
        wait_for(lambda: found.get("/readyz").status_code == 200, agent)
        yield found


def test_probes_show_none_and_everybody_else_must(secured: Secured) -> None:
    for path in ("/healthz", "/readyz"):
        assert secured.get(path).status_code == 200
    for path in ("/devices", "/metrics"):
        refused = secured.get(path)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
        assert "MESHWRIGHT_CLIENT_CERT_FILE" in refused.json()["hint"]


def test_a_certificate_of_another_ca_or_out_of_its_time_ends_the_handshake(secured: Secured) -> None:
    strange = trustme.CA().issue_cert("node7")
    expired = secured.client_ca.issue_cert("node7", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    early = secured.client_ca.issue_cert("node7", not_before=NOW + DAY, not_after=NOW + 2 * DAY)
    for shown in (strange, expired, early):
        with pytest.raises(httpx.TransportError):
            secured.get("/healthz", shown)
    assert secured.get("/healthz").status_code == 200


def test_the_unix_socket_speaks_no_tls_and_asks_for_no_certificate(secured: Secured) -> None:
    with secured.agent.connect() as client:
        assert client.get("/runs").status_code == 200


def test_the_audit_names_the_certificate(secured: Secured) -> None:
    shown = secured.client_ca.issue_cert("node9", common_name="node9")
    url = f"{secured.agent.url}/runs/x"
    assert httpx.delete(url, verify=_trust(secured.server_ca, shown), timeout=60).status_code == 404
    wait_for(lambda: "caller=cert:node9 scope=admin method=DELETE" in secured.agent.log_text(), limit_s=30)


def test_the_agent_speaks_tls_1_2_and_refuses_what_is_older(secured: Secured) -> None:
    newer, older = _trust(secured.server_ca), _trust(secured.server_ca)
    newer.maximum_version = ssl.TLSVersion.TLSv1_2
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        older.minimum_version = ssl.TLSVersion.TLSv1_1
        older.maximum_version = ssl.TLSVersion.TLSv1_1
    older.set_ciphers("ALL:@SECLEVEL=0")
    assert httpx.get(f"{secured.agent.url}/healthz", verify=newer, timeout=60).status_code == 200
    with pytest.raises(httpx.ConnectError, match=r"(?i)EOF|alert"):  # the other side's refusal
        httpx.get(f"{secured.agent.url}/healthz", verify=older, timeout=60)


def test_the_lines_that_the_agent_prints_to_be_tried_work(secured: Secured, tmp_path: Path) -> None:
    shown = secured.client_ca.issue_cert("node7")
    cert, key = tmp_path / "shown.pem", tmp_path / "shown.key"
    replace_file(cert, shown.cert_chain_pems[0].bytes())
    replace_file(key, shown.private_key_pem.bytes())
    holder = {"MESHWRIGHT_CLIENT_CERT_FILE": str(cert), "MESHWRIGHT_CLIENT_KEY_FILE": str(key)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed = secured.agent.log_text().partition("try:\n")[2].splitlines()[:6]
    tried = [
        line.strip() for line in printed if "placement/bench" not in line and (which("curl") or "curl" not in line)
    ]
    assert any("meshwright plan" in line for line in tried)
    for line in tried:
        command, environ = line.replace("curl -s", "curl -sf"), {**os.environ, **holder, "PATH": path}
        ended = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=120)
        assert (ended.returncode, bool(ended.stdout)) == (0, True), (line, ended.stderr)


def test_a_new_certificate_counts_for_new_connections_and_a_pair_that_does_not_fit_for_none(secured: Secured) -> None:
    shown, new_server, new_client = secured.client_ca.issue_cert("node7"), trustme.CA(), trustme.CA()
    with httpx.Client(verify=_trust(secured.server_ca, shown), timeout=60) as kept:
        assert kept.get(f"{secured.agent.url}/runs").status_code == 200
        secured.files.put_server(new_server, trustme.KeyType.RSA)
        wait_for(lambda: secured.get("/runs", shown, new_server).status_code == 200, secured.agent, limit_s=60)
        assert kept.get(f"{secured.agent.url}/runs").status_code == 200  # the connection of before
    replace_file(secured.files.cert, b"nonsense")
    wait_for(lambda: "the certificate before it stays in use" in secured.agent.log_text(), secured.agent, limit_s=60)
    assert secured.get("/runs", shown, new_server).status_code == 200
    secured.files.put_server(secured.server_ca)  # with a key of the first type
    wait_for(lambda: secured.get("/healthz").status_code == 200, secured.agent, limit_s=60)
    replace_file(secured.files.client_ca, new_client.cert_pem.bytes())
    wait_for(lambda: secured.get("/runs", new_client.issue_cert("node7")).status_code == 200, secured.agent, limit_s=60)
    with pytest.raises(httpx.TransportError):
        secured.get("/runs", shown)


def test_a_connection_that_does_not_begin_its_handshake_is_ended(secured: Secured) -> None:
    secured.silent.settimeout(20)
    assert secured.silent.recv(1) == b""


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_files_that_are_no_pair_are_refused_with_words_and_nobody_is_asked_for_a_passphrase(tmp_path: Path) -> None:
    files, ca = Files(tmp_path), trustme.CA()
    files.put_server(ca)

    def refuse(key: Path = files.key, client_ca: Path | None = None) -> str:
        settings = {"MESHWRIGHT_TLS_CERT_FILE": str(files.cert), "MESHWRIGHT_TLS_KEY_FILE": str(key)}
        settings |= {} if client_ca is None else {"MESHWRIGHT_TLS_CLIENT_CA_FILE": str(client_ca)}
        ended = serve_and_leave(tmp_path / "state", "--cpu-devices", "1", **settings)
        assert ended.returncode == 2
        assert "Traceback" not in ended.stderr
        return ended.stderr

    own_key = files.key.read_bytes()
    replace_file(files.key, ca.issue_cert("other").private_key_pem.bytes())
    assert "the key is not the certificate's" in refuse()
    replace_file(files.key, ca.issue_cert("other", key_type=trustme.KeyType.RSA).private_key_pem.bytes())
    assert "the key is not the certificate's" in refuse()
    assert "a file has no certificate, or no key" in refuse(key=files.cert)
    replace_file(files.key, own_key)
    replace_file(files.client_ca, b"nonsense")
    assert "client-ca.pem" in refuse(client_ca=files.client_ca)
    assert "no such file" in refuse(key=tmp_path / "none")
    replace_file(files.key, _encrypt(own_key))
    assert "the key is encrypted" in refuse()


def _encrypt(key: bytes) -> bytes:
    loaded = serialization.load_pem_private_key(key, None)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return loaded.private_bytes(serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"word"))
