"""Whom a request means to speak to, and from which page: the defence against DNS rebinding and cross-site requests.

Rule: a request is answered only under a name that is the agent's own. A page of another site can make a browser send
requests to 127.0.0.1, and can have its own name resolve there; it cannot change the Host header that the browser sends.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
ANY: Final = "*"
LONGEST: Final = 300

_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,255}))(?::([0-9]{0,5}))?")


def parse_host(value: bytes) -> tuple[str, str] | None:
    """Returns the name and the port (empty: the scheme's own) of a Host header, RFC 9110 §7.2; None if it is none.

    Names come in lower case without a final dot, addresses in their canonical form, IPv4 within IPv6 as IPv4.
    """
    if len(value) > LONGEST or not value.isascii():
        return None
    found = _HOST.fullmatch(value.decode("ascii"))
    if found is None:
        return None
    v6, name, port = found.groups()
    if v6 is None:
        canonical = normalize_name(name)
    elif (address := _normalize_address(v6)) is not None:
        canonical = address
    else:
        return None
    return (canonical, port or "") if canonical and not canonical.endswith(".") else None  # else a label is empty


def normalize_name(name: str) -> str:
    """Returns a name or address in the form in which two are compared."""
    return _normalize_address(name) or name.lower().removesuffix(".")


def _normalize_address(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def parse_origin(value: bytes) -> tuple[str, str] | None:
    """Returns the name and port of an Origin header, as `parse_host` does; None for `null` and what is no origin."""
    _, separator, rest = value.partition(b"://")
    return parse_host(rest) if separator else None


class HostNames:
    """The names under which this agent is spoken to."""

    def __init__(self, names: Iterable[str]) -> None:
        wanted = {normalize_name(name.strip()) for name in names} - {""}
        self._takes_any = ANY in wanted
        self._suffixes = tuple(name[1:] for name in wanted if name.startswith("*."))
        self._names = wanted | set(LOCAL_NAMES)

    def add(self, name: str) -> None:
        """Adds a name of this host's own."""
        self._names = self._names | {normalize_name(name)}

    def takes(self, name: str, local: str | None) -> bool:
        """Returns whether a request for `name` (of `parse_host`) is ours, on a connection to the address `local`."""
        if self._takes_any or name in self._names or name.endswith(self._suffixes):
            return True
        return local is not None and name == normalize_name(local)


def parse_allowed(text: str) -> tuple[str, ...]:
    """Returns the names of a comma-separated setting; IPv6 may stand in brackets, as in a URL.

    Raises:
        ValueError: one that no Host header can ever match.
    """
    return tuple(_parse_allowed(name) for name in split_names(text))


def _parse_allowed(name: str) -> str:
    if name == ANY:
        return name
    bare = name.removeprefix("*.")
    if bare == name and (address := _normalize_address(name.removeprefix("[").removesuffix("]"))) is not None:
        return address
    named = parse_host(bare.encode())
    if named is not None and ":" not in bare:
        return name.removesuffix(bare) + named[0]
    within = parse_host((bare.partition("://")[2] or bare).partition("/")[0].encode())
    works = within[0] if within is not None else "gw.example, *.example.org, 10.0.0.7 or fd00::1"
    raise ValueError(f"{name[:80]!r} is no name or address without scheme, port and path; write {works}")


def split_names(text: str) -> tuple[str, ...]:
    """Returns the names of a comma-separated setting."""
    return tuple(name for part in text.split(",") if (name := part.strip()))
