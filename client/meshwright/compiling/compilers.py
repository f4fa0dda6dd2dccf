"""Which distributions compile for a platform, and the line that adds what is missing.

Rule: looks at what is installed and imports none of it, so that a command and an agent without jax can say what they
lack. Versions are the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from meshwright.wire.devices import Platform


@dataclass(frozen=True)
class Compiler:
    """What compiles for a platform beside jaxlib.

    Attributes:
        extra: of our distribution, that brings it and JAX.
        distributions: of which one is needed; none where jaxlib has the compiler in it.
    """

    extra: str
    distributions: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """What a user types to have it."""
        return f"pip install 'meshwright[{self.extra}]'"


COMPILERS: Final[Mapping[Platform, Compiler]] = {
    "cpu": Compiler("cpu"),
    "tpu": Compiler("compile-tpu", ("libtpu",)),
    "gpu": Compiler("compile-cuda", ("jax-cuda12-pjrt", "jax-cuda13-pjrt")),
}


def explain_missing(versions: Mapping[str, str], platform: Platform) -> str | None:
    """Returns why nothing compiles for a platform with these distributions, and the line that mends it; else None."""
    needed = COMPILERS[platform]
    for name in ("jax", "jaxlib"):
        if name not in versions:
            return f"{name} is not installed, without which nothing compiles; {needed.line}"
    if not needed.distributions or any(name in versions for name in needed.distributions):
        return None
    missing = " or ".join(needed.distributions)
    return f"no compiler for {platform.upper()} targets is installed ({missing} is missing); {needed.line}"
