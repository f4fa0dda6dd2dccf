"""Every parser of what strangers send, or operators write, before anybody is let in: headers, tokens, certificates.

Rule: what a parser refuses is refused by the error that its docstring names, and no refusal says what stood in a
secret's place. `tests/fuzz/test_guided.py` fails where `access/` has a parser that is not here.
"""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from meshwright_agent.access import credentials, hosts, tokens
from meshwright_agent.access.errors import AccessSettingsError
from meshwright_agent.access.exposure import is_loopback
from meshwright_agent.access.peers import name_certificate
from meshwright_agent.access.token_file import read_token_file
from meshwright_agent.settings import Settings
from tests.fuzz.guided import Target

NOW: Final = datetime(2026, 11, 22, tzinfo=UTC)
_LINE: Final = f"prolog operate sha256:{'ab' * 32} expires=2027-01-31T00:00:00Z  # of Slurm\n".encode()
_TEXTS: Final = (
    "127.0.0.1",
    "::1",
    "localhost",
    "0.0.0.0",
    "fe80::1%lo",
    "2130706433",
    "a" * 64 + ".example",
    "bücher.example",
)


def run_authorization(data: bytes) -> None:
    """Reads a header; a refusal has no word of it."""
    try:
        secret, refusal = credentials.parse_authorization(data), ""
    except ValueError as error:
        secret, refusal = "", str(error)
    assert bool(secret) != bool(refusal)
    assert secret.isascii()
    words = {word for word in data.split() if len(word) > 12}
    assert not any(word in refusal.encode() for word in words), "a refusal says what stood in the header"


def run_host(data: bytes) -> None:
    """Reads a Host header; what was read is read again as the same, and is asked for in a list of names."""
    found = hosts.parse_host(data)
    if found is not None:
        name = f"[{found[0]}]" if ":" in found[0] else found[0]
        assert hosts.parse_host(name.encode()) == (found[0], "")
    names = hosts.HostNames(hosts.split_names(data.decode(errors="replace")))
    names.takes(found[0] if found else data.decode(errors="replace"), None)


def run_allowed(data: bytes) -> None:
    """Reads names that an agent should answer to; what was read is read again as the same, and is one of its names."""
    found = hosts.parse_allowed(data.decode(errors="replace"))
    assert hosts.parse_allowed(",".join(found)) == found
    names = hosts.HostNames(found)
    assert all(names.takes(name, None) for name in found if not name.startswith("*"))


def run_tokens(data: bytes) -> None:
    """Reads lines; what was read can be written and read again."""
    found = tokens.parse_tokens(data.decode(errors="replace"))
    again = tokens.parse_tokens("".join(f"{token}\n" for token in found.all))
    assert [(token.name, token.scope, token.digest) for token in again.all] == [
        (token.name, token.scope, token.digest) for token in found.all
    ]


def run_token_file(data: bytes) -> None:
    """Reads a file of these bytes."""
    _with_file(data, read_token_file)


def _with_file(data: bytes, read: Any) -> None:
    descriptor = os.memfd_create("access")
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, data)
        read(Path(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def run_address(data: bytes) -> None:
    """Judges an address to listen on; names are not looked up, everything else is the resolver's own."""
    is_loopback(data.decode(errors="surrogateescape"), flags=socket.AI_NUMERICHOST)


def run_settings(data: bytes) -> None:
    """Reads the settings of access from what stands in their variables, separated by a form feed."""
    texts = [part.decode(errors="replace") for part in [*data.split(b"\f"), b"", b""]]
    settings = Settings(allowed_hosts=texts[0], uds_mode=texts[1], uds_scope=texts[2])  # type: ignore[arg-type]
    hosts.HostNames(hosts.parse_allowed(settings.allowed_hosts))
    assert 0 <= int(settings.uds_mode, 8) <= 0o7777


def run_names(data: bytes) -> None:
    """Names a client by its certificate, whose names are whatever its CA has signed."""
    text = data.decode("latin-1")
    for subject in (((("commonName", text),),), ((("organizationName", text),),)):
        name = name_certificate({"subject": subject, "subjectAltName": (("DNS", text),), "serialNumber": text})
        assert name.isprintable()
        assert len(name) <= 256


PARSERS: Final[Mapping[str, Target]] = {
    "credentials.parse_authorization": Target(
        run_authorization,
        (b"Bearer mw_abcdefghijklmnop", b"Basic " + base64.b64encode(b"me:mw_abcdefghijklmnop")),
    ),
    "hosts.parse_allowed": Target(run_allowed, (b"gw.example, *.x.org,[fd00::1]", b"http://gw:1", b"*"), (ValueError,)),
    "hosts.parse_host": Target(run_host, (b"node7.example:8790", b"[::1]:8790", b"[::ffff:127.0.0.1]", b"10.0.0.7")),
    "hosts.parse_origin": Target(hosts.parse_origin, (b"http://localhost:8790", b"null", b"https://[::1]")),
    "tokens.parse_time": Target(
        lambda data: tokens.format_time(tokens.parse_time(data.decode(errors="replace"))),
        (b"2027-01-31T00:00:00Z", b"2027-01-31T00:00:00.5+02:00"),
        (tokens.TokenLineError,),
    ),
    "tokens.parse_tokens": Target(run_tokens, (_LINE, b"# ours\n" + _LINE), (tokens.TokenLineError,)),
}  # fmt: skip
"""Parsers of `meshwright_agent.access`, by module and name."""

ACCESS: Final[Mapping[str, Target]] = {
    **{f"access.{name}": target for name, target in PARSERS.items()},
    "token file": Target(run_token_file, (_LINE,), (AccessSettingsError,)),
    "address to listen on": Target(run_address, tuple(text.encode() for text in _TEXTS)),
    "settings of access": Target(run_settings, (b"gateway.example, *.x\f0660\fread",), (ValueError,)),
    "name in a certificate": Target(run_names, (b"node7", "bücher".encode("latin-1"))),
}
"""These, and what else of access reads what others wrote."""
