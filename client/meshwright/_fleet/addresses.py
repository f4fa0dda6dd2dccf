"""Reads the URLs of a fleet's agents from a list, a file, or a headless service's DNS records.

Rule: every entry becomes one URL or several, in the order given, each once; an entry without an address is refused.
Reads the file and queries the resolver; opens no connection to an agent.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from meshwright._calls.settings import parse_address
from meshwright.errors import SettingsError

DEFAULT_PORT: Final = 8790
VARIABLE: Final = "MESHWRIGHT_FLEET"
_FORMS: Final = 'such as "node7,node8:8790", "@/etc/meshwright/fleet" or "dns:agents.default.svc"'
_NO_HOST: Final = frozenset("/?#@\\[]")

Resolve = Callable[[str, int], Iterable[str]]
"""(host name, port) → its addresses. Raises OSError where there are none."""


def resolve_name(host: str, port: int) -> list[str]:
    """Returns every A and AAAA record of a name.

    Raises:
        OSError: the resolver knows no such name.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def read_addresses(
    given: str | Sequence[str] | None, environ: Mapping[str, str], *, resolve: Resolve = resolve_name
) -> tuple[str, ...]:
    """Returns the URLs of a fleet's agents.

    Args:
        given: URLs, hosts, "@file", "dns:name[:port]", as a list or in one text; None: MESHWRIGHT_FLEET.
        environ: the environment with MESHWRIGHT_FLEET.
        resolve: finds the addresses of a name.

    Raises:
        SettingsError: no agent is named, or an entry is not valid.
    """
    asked = environ.get(VARIABLE, "") if given is None else given
    texts = [asked] if isinstance(asked, str) else list(asked)
    entries = [entry for text in texts for entry in _split(text)]
    urls = [url for entry in entries for url in _read_entry(entry, resolve)]
    if not urls:
        where = f"{VARIABLE} is empty or not set" if given is None else "no address is given"
        raise SettingsError(f"a fleet needs addresses, and {where}; name the agents, {_FORMS}")
    return tuple(dict.fromkeys(urls))


def _split(text: str) -> list[str]:
    """Returns the entries between commas and white space."""
    return text.replace(",", " ").split()


def _read_entry(entry: str, resolve: Resolve) -> Iterable[str]:
    if entry.startswith("@"):
        return _read_file(entry.removeprefix("@"), resolve)
    if entry.startswith("dns:") and not entry.startswith("dns://"):
        return _read_dns(entry.removeprefix("dns:"), resolve)
    return (parse_address(entry).shown if "://" in entry else _build_url(entry),)


def _read_file(path: str, resolve: Resolve) -> Iterable[str]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise SettingsError(
            f"@{path}: the fleet's file cannot be read ({error}); name a file with one address a line"
        ) from error
    entries = [entry for line in lines for entry in _split(line.partition("#")[0])]
    nested = next((entry for entry in entries if entry.startswith("@")), None)
    if nested is not None:
        raise SettingsError(f"@{path}: the fleet's file names another file, {nested}; write its addresses instead")
    return [url for entry in entries for url in _read_entry(entry, resolve)]


def _read_dns(name: str, resolve: Resolve) -> Iterable[str]:
    host, port = _split_port(name, f"dns:{name}")
    try:
        found = sorted({ipaddress.ip_address(text) for text in resolve(host, port)}, key=lambda ip: (ip.version, ip))
    except (OSError, UnicodeError) as error:
        raise SettingsError(
            f"dns:{name}: the name {host!r} has no address ({error}); name a headless service, {_FORMS}"
        ) from error
    return [f"http://{_quote(str(ip))}:{port}" for ip in found]


def _build_url(entry: str) -> str:
    host, port = _split_port(entry, entry)
    return parse_address(f"http://{_quote(host)}:{port}").shown


def _split_port(entry: str, shown: str) -> tuple[str, int]:
    """Returns host and port of "host", "host:port", "[::1]:port" and "::1"."""
    if _is_ipv6(entry):
        return entry, DEFAULT_PORT
    host, colon, port = entry.rpartition(":") if not entry.endswith("]") else (entry, "", "")
    if not colon:
        host, port = entry, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or set(host) & _NO_HOST or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        hint = "; list hosts one by one (in Slurm: scontrol show hostnames)" if "[" in entry else ""
        raise SettingsError(
            f"{shown!r} is not a host, nor a host and a port from 1 to 65535; write node7 or node7:8790{hint}"
        )
    return host, int(port)


def _quote(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
