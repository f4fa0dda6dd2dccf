"""Where the agent is and how to speak to it: from arguments, else from the environment.

Reads the token and CA files that are named; knows no HTTP library and opens no connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from meshwright.errors import SettingsError

DEFAULT_URL: Final = "http://127.0.0.1:8790"
_EXAMPLE: Final = f"write {DEFAULT_URL}, https://host:8790 or unix:///run/meshwright/agent.sock"


@dataclass(frozen=True)
class Address:
    """Where an agent listens.

    Attributes:
        url: what requests are made against, without a slash at its end.
        socket: the path of the unix socket to connect to, or None for TCP.
        shown: the address as people know it, for messages.
        is_local: true for loopback and unix sockets, which no proxy may come between.
    """

    url: str
    socket: str | None
    shown: str
    is_local: bool


@dataclass(frozen=True)
class Settings:
    """All that a connection needs besides the requests."""

    address: Address
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def read_settings(base_url: str | None, token: str | None, environ: Mapping[str, str]) -> Settings:
    """Returns the settings: arguments first, then MESHWRIGHT_URL, _TOKEN, _TOKEN_FILE and _CA_FILE.

    Raises:
        SettingsError: an address that is none, a token that no header can carry, a file that cannot be read.
    """
    address = parse_address(base_url or environ.get("MESHWRIGHT_URL") or DEFAULT_URL)
    ca_file = environ.get("MESHWRIGHT_CA_FILE") or None
    if ca_file is not None:
        _read_text(ca_file, "MESHWRIGHT_CA_FILE")
    return Settings(address, _check_token(token or _read_token(environ)), ca_file)


def parse_address(text: str) -> Address:
    """Returns the address that "http://host:port", "https://…" or "unix:///path" names.

    Raises:
        SettingsError: any other text.
    """
    try:
        parts = urlsplit(text.strip())
        port = parts.port  # parsed, and checked, only when asked for
    except ValueError as error:
        raise SettingsError(f"the agent's address {text!r} is not a URL ({error}); {_EXAMPLE}") from error
    if parts.query or parts.fragment:
        raise SettingsError(f"the agent's address {text!r} has a query or a fragment; {_EXAMPLE}")
    match parts.scheme:
        case "unix" if not parts.netloc and parts.path.startswith("/") and parts.path != "/":
            path = unquote(parts.path)
            return Address("http://localhost", path, f"unix://{path}", is_local=True)
        case "http" | "https" if parts.hostname and "@" not in parts.netloc and port != 0:
            url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
            return Address(url, None, url, is_local=_is_loopback(parts))
    raise SettingsError(f"the agent's address {text!r} is not http://, https:// or unix:///path; {_EXAMPLE}")


def _is_loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_token(environ: Mapping[str, str]) -> str | None:
    if token := environ.get("MESHWRIGHT_TOKEN"):
        return token
    path = environ.get("MESHWRIGHT_TOKEN_FILE")
    return _read_text(path, "MESHWRIGHT_TOKEN_FILE") if path else None


def _read_text(path: str, variable: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{variable} names {path!r}, which cannot be read: {error}") from error


def _check_token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise SettingsError("the token has a character that no header can carry; it is one word of printable ASCII")
    return token or None
