"""File descriptors of the agent: as many as the system lets it have.

Rule: raised once, before the first connection; children have the same. Systems start services with 1,024, so that old
programs with `select` go on working, and let them ask for more: getrlimit(2). Knows nothing of what they are used for.
"""

from __future__ import annotations

import resource
from typing import Final

ENOUGH: Final = 65536
"""More than connections and children ever need; a table of millions would only cost the kernel memory."""


def raise_descriptor_limit(enough: int = ENOUGH) -> int:
    """Returns how many descriptors this process may have, after raising that to `enough` or what is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
