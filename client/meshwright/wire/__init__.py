"""What crosses HTTP: one frozen pydantic model per thing, which is also the domain type. No jax, no numpy, no I/O.

`from meshwright import wire` imports `wire.mesh` and the like at their first use: pydantic takes 10 ms for the models
of such a module. All of it needs `base`, and every command `problem`; these are imported by name.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.wire import batch_size, bench, devices, health, leases, mesh, model, preflight, runs

__all__ = ["batch_size", "bench", "devices", "health", "leases", "mesh", "model", "preflight", "runs"]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
