"""Environment: the variables that a job on this host should start with."""

from __future__ import annotations

from pydantic import Field

from meshwright.wire.base import Notice, Reply


class Environment(Reply):
    """`GET /environment`."""

    memory_strategy: str
    memory_fraction: float
    variables: dict[str, str]
    exports: tuple[str, ...] = Field(description="the same as `export NAME=value` lines, quoted for a shell")
    warnings: tuple[Notice, ...] = ()
