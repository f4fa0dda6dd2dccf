"""TLS on real sockets: whose certificates are taken, on both sides, and what is said about those that are not."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from meshwright import AsyncClient, Client
from meshwright._client.replies import build_error
from meshwright.errors import AgentConnectionError, SettingsError
from meshwright.wire.health import Health
from tests.contract.client.both import Kind, ask_url
from tests.contract.client.sockets import Heard, Server, answer, serve

both = pytest.mark.parametrize("kind", ["sync", "async"])
HEALTH = answer(Health(state="healthy", components=()).model_dump_json().encode())
VARIABLES = ("MESHWRIGHT_CA_FILE", "MESHWRIGHT_CLIENT_CERT_FILE", "MESHWRIGHT_CLIENT_KEY_FILE")


def _ask(kind: Kind, url: str) -> Any:
    return ask_url(kind, url, lambda client: client.health())


class Files:
    """Certificates as files, and the variables that name them."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.folder, self.environ = folder, environ
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(folder / "ca.pem"))
        for variable in VARIABLES:
            environ.delenv(variable, raising=False)

    def write(self, name: str, content: bytes) -> str:
        (self.folder / name).write_bytes(content)
        return str(self.folder / name)

    def trust(self, name: str = "ca.pem") -> None:
        self.environ.setenv("MESHWRIGHT_CA_FILE", str(self.folder / name))

    def show(self, cert: trustme.LeafCert, *, key: bytes | None = None, is_apart: bool = True) -> None:
        """Names a client certificate and its key; not apart: both in one file."""
        own_key = key or cert.private_key_pem.bytes()
        pem = cert.cert_chain_pems[0].bytes()
        self.environ.setenv("MESHWRIGHT_CLIENT_CERT_FILE", self.write("client.pem", pem if is_apart else pem + own_key))
        if is_apart:
            self.environ.setenv("MESHWRIGHT_CLIENT_KEY_FILE", self.write("client.key", own_key))

    @contextmanager
    def serve(self, cert: trustme.LeafCert | None = None, *, clients: trustme.CA | None = None) -> Iterator[Server]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (cert or self.authority.issue_cert("127.0.0.1")).configure_cert(context)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            clients.configure_trust(context)
        with serve(_healthy, tls=context) as server:
            yield server


def _healthy(heard: Heard, out: BinaryIO) -> bool:
    out.write(HEALTH)
    return True


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def _issue(authority: trustme.CA, name: str = "127.0.0.1", **when: dt.timedelta) -> trustme.LeafCert:
    now = dt.datetime.now(dt.UTC)
    return authority.issue_cert(name, **{key: now + shift for key, shift in when.items()})


@both
@pytest.mark.parametrize("case", ["unknown authority", "expired", "not yet valid", "another name"])
def test_an_agent_that_cannot_be_trusted_is_not_asked_and_the_error_says_why(
    kind: Kind, case: str, files: Files
) -> None:
    day = dt.timedelta(days=1)
    certs = {
        "unknown authority": lambda: _issue(trustme.CA()),
        "expired": lambda: _issue(files.authority, not_before=-2 * day, not_after=-day),
        "not yet valid": lambda: _issue(files.authority, not_before=day, not_after=2 * day),
        "another name": lambda: _issue(files.authority, "agent.example"),
    }
    files.trust()
    with files.serve(certs[case]()) as server:
        with pytest.raises(AgentConnectionError, match="certificate") as caught:
            _ask(kind, server.url)
        hint = caught.value.hint
        assert ("MESHWRIGHT_CA_FILE" in hint) == (case in {"unknown authority", "another name"})
        assert ("renew it, or check the clock" in hint) == (case in {"expired", "not yet valid"})
        assert server.heard == []


@both
def test_an_agent_without_tls_is_told_from_one_whose_certificate_is_refused(kind: Kind, files: Files) -> None:
    with serve(_healthy) as server, pytest.raises(AgentConnectionError) as caught:
        _ask(kind, server.url.replace("http:", "https:"))
    assert "http://" in caught.value.hint


def test_a_scheme_that_is_not_the_agents_is_said_first() -> None:
    error = httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.__cause__ = cause = ssl.SSLError(1, "wrong version number")
    cause.reason = "WRONG_VERSION_NUMBER"
    assert build_error(error, "GET /health", "https://a:1").hint.endswith("no TLS at this address: ask by http://a:1")
    cut = httpx.RemoteProtocolError("Server disconnected without sending a response.")
    hint = build_error(cut, "GET /health", "http://a:1").hint
    assert hint.startswith("does this agent speak TLS? then ask by https://a:1; else the connection broke")


# ---- files that cannot be used


def _refused(files: Files) -> str:
    with pytest.raises(SettingsError) as caught:
        Client("https://127.0.0.1:1")
    with pytest.raises(SettingsError):
        AsyncClient("https://127.0.0.1:1")
    return str(caught.value)


def test_a_ca_file_without_certificates_is_refused_by_name(files: Files) -> None:
    files.write("ca.pem", b"no certificate")
    files.trust()
    assert "MESHWRIGHT_CA_FILE" in _refused(files)


@pytest.mark.parametrize(("missing", "words"), [("CERT", "the certificate's file"), ("KEY", "its key's file")])
def test_a_key_or_a_certificate_alone_says_where_to_name_the_other(files: Files, missing: str, words: str) -> None:
    files.show(files.authority.issue_cert("job@cluster"))
    files.environ.delenv(f"MESHWRIGHT_CLIENT_{missing}_FILE")
    assert f"name {words} in MESHWRIGHT_CLIENT_{missing}_FILE" in _refused(files)


def test_the_key_of_another_certificate_is_refused(files: Files) -> None:
    other = files.authority.issue_cert("other@cluster").private_key_pem.bytes()
    files.show(files.authority.issue_cert("job@cluster"), key=other)
    assert "is not the key of the certificate" in _refused(files)


def test_an_encrypted_key_asks_nobody_for_a_password(files: Files) -> None:
    cert = files.authority.issue_cert("job@cluster")
    plain = serialization.load_pem_private_key(cert.private_key_pem.bytes(), None)
    locked = plain.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"hunter2")
    )
    files.show(cert, key=locked)
    assert "is encrypted" in _refused(files)
