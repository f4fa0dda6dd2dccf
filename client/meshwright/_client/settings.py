"""Where the agent is and how to speak to it: from arguments, else from the environment.

Reads the named token file, again after a change. Independent of the HTTP library; opens no connection.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from meshwright.errors import SettingsError

DEFAULT_URL: Final = "http://127.0.0.1:8790"
DEFAULT_SOCKET: Final = Path("/run/meshwright/agent.sock")
"""The unix socket of the systemd unit."""
TLS_VARIABLES: Final = ("MESHWRIGHT_CA_FILE", "MESHWRIGHT_CLIENT_CERT_FILE", "MESHWRIGHT_CLIENT_KEY_FILE")
_EXAMPLE: Final = f"write {DEFAULT_URL}, https://host:8790 or unix:///run/meshwright/agent.sock"


@dataclass(frozen=True)
class Address:
    """The address of an agent.

    Attributes:
        url: the base URL of requests, without a trailing slash.
        socket: the path of the unix socket to connect to, or None for TCP.
        shown: the address as displayed in messages.
        is_local: true for loopback and unix sockets, which never use a proxy.
    """

    url: str
    socket: str | None
    shown: str
    is_local: bool


@dataclass(frozen=True)
class ClientSettings:
    """All that a connection needs besides the requests."""

    address: Address
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    token_file: str | None = None
    """The file of the token, which may be read again; None: the token has another source."""

    def read_token(self) -> str | None:
        """Returns the token that its file has now; None where there is no file, or no token can be read from it."""
        try:
            return _read_token(self.token_file) if self.token_file else None
        except SettingsError:
            return None


def read_settings(base_url: str | None, token: str | None, environ: Mapping[str, str]) -> ClientSettings:
    """Returns the settings: arguments first, then MESHWRIGHT_URL, _TOKEN, _TOKEN_FILE, and the files for TLS.

    Without an address, the unix socket of this host's agent is used if it exists, otherwise loopback.

    Raises:
        SettingsError: an address is not valid, a token is not valid in a header, a file cannot be read, or a key is
            given without its certificate.
    """
    # pathlib raises PermissionError in Python 3.11 where the caller may not search the folder
    default = f"unix://{DEFAULT_SOCKET}" if os.path.exists(DEFAULT_SOCKET) else DEFAULT_URL  # noqa: PTH110
    address = parse_address(base_url or environ.get("MESHWRIGHT_URL") or default)
    ca_file, cert_file, key_file = (_check_file(environ, variable) for variable in TLS_VARIABLES)
    if key_file and not cert_file:
        raise SettingsError(
            f"MESHWRIGHT_CLIENT_KEY_FILE names {key_file!r}, the key of no certificate; name the certificate's file in "
            "MESHWRIGHT_CLIENT_CERT_FILE"
        )
    said = token or environ.get("MESHWRIGHT_TOKEN")
    token_file = None if said else environ.get("MESHWRIGHT_TOKEN_FILE") or None
    said = _read_token(token_file) if token_file else _check_token(said)
    return ClientSettings(address, said, ca_file, cert_file, key_file, token_file)


def parse_address(text: str) -> Address:
    """Returns the address that "http://host:port", "https://…" or "unix:///path" names.

    Raises:
        SettingsError: any other text.
    """
    import httpx  # here, so that the command line's help need not wait for it

    if "@" in text and not text.strip().startswith("unix:"):
        raise SettingsError(
            "the agent's address has a user or a password before an @, which is not shown here and not sent; leave it "
            f"out, and give the token in MESHWRIGHT_TOKEN or MESHWRIGHT_TOKEN_FILE; {_EXAMPLE}"
        )
    try:
        parts = urlsplit(text.strip())
        port = parts.port  # parsed, and checked, only on access
        httpx.URL(text.strip())  # which refuses hosts that urlsplit takes
        (parts.hostname or "").encode("idna")  # as a look-up does, which refuses labels that are empty or too long
    except (ValueError, httpx.InvalidURL) as error:
        raise SettingsError(f"the agent's address {text!r} is not a URL ({error}); {_EXAMPLE}") from error
    if parts.query or parts.fragment:
        raise SettingsError(f"the agent's address {text!r} has a query or a fragment; {_EXAMPLE}")
    match parts.scheme:
        case "unix" if not parts.netloc and parts.path.startswith("/") and parts.path != "/":
            path = unquote(parts.path)
            return Address("http://localhost", path, f"unix://{quote(path)}", is_local=True)
        case "http" | "https" if parts.hostname and port != 0:
            url = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
            return Address(url, None, url, is_local=is_loopback(parts.hostname))
    raise SettingsError(f"the agent's address {text!r} is not http://, https:// or unix:///path; {_EXAMPLE}")


def is_loopback(host: str) -> bool:
    """Returns whether a host's name or address leads every host to itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_file(environ: Mapping[str, str], variable: str) -> str | None:
    """Returns the path that a variable has, once its file was read."""
    path = environ.get(variable) or None
    if path is not None:
        _read_text(path, variable)
    return path


def _read_text(path: str, variable: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{variable} names {path!r}, which cannot be read: {error}") from error


def _read_token(path: str) -> str | None:
    return _check_token(_read_text(path, "MESHWRIGHT_TOKEN_FILE"))


def _check_token(token: str | None) -> str | None:
    token = (token or "").strip()
    if not all("!" <= character <= "~" for character in token):
        raise SettingsError("the token has a character that no header can carry; it is one word of printable ASCII")
    return token or None
