"""File descriptors of the agent: as many as the system lets it have, and enough kept for what is no connection.

Rule: raised once, before the first connection; children have the same. Systems start services with 1,024, so that old
programs with `select` go on working, and let them ask for more: getrlimit(2). Where the system gives too few, it is
connections that are refused: without descriptors no child starts, no file is read, and nobody can be told so.
"""

from __future__ import annotations

import resource
from typing import Final

ENOUGH: Final = 65536
"""More than connections and children ever need; a table of millions would only cost the kernel memory."""
OWN: Final = 128
"""Descriptors that are no connections: 22 at rest; six to ten for each child while it starts; the store's files; those
that are read again; and the connections above the limit that are being told so (`accepting.REFUSING`)."""
LEAST_CONNECTIONS: Final = 8
"""Fewer would shut out whoever could look what is wrong."""


def raise_descriptor_limit(enough: int = ENOUGH) -> int:
    """Returns how many descriptors this process may have, after raising that to `enough` or what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = read_descriptor_limit(enough)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def read_descriptor_limit(enough: int = ENOUGH) -> int:
    """Returns how many descriptors `raise_descriptor_limit` would give this process; nothing is changed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return enough
    return max(soft, enough if hard == resource.RLIM_INFINITY else min(enough, hard))


def fit_connections(wanted: int, descriptors: int) -> int:
    """Returns how many connections there may be: those that are wanted, as far as so many descriptors leave room."""
    return min(wanted, max(LEAST_CONNECTIONS, descriptors - OWN))
