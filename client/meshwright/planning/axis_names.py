"""What the names of mesh axes mean: which kind of parallelism each is for.

Rule: a name that nobody knows means nothing, never the nearest. Names are those of MaxText's base.yml, EasyLM, Flax and
Haiku examples. Knows no sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

Role = Literal["pipeline", "data", "fsdp", "expert", "context", "tensor"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""Least traffic first: a pipeline sends activations between neighbours once a micro-batch, data parallelism gradients
once a step, sharded data parallelism weights twice a layer, experts and sequences tokens several times a layer, and a
tensor axis activations on the critical path of every matmul. Source: jax-ml/scaling-book, "Training" (bytes a layer: DP
8DF, FSDP 12DF, TP 8BD)."""

ROLE_NAMES: Final[Mapping[Role, tuple[str, ...]]] = {
    "pipeline": ("pp", "pipe", "pipeline", "stage"),
    "data": ("dp", "data", "replica", "batch"),
    "fsdp": ("fsdp", "fsdp_transpose", "shard", "zero"),
    "expert": ("ep", "expert", "experts"),
    "context": ("sp", "cp", "sequence", "seq", "context", "context_autoregressive"),
    "tensor": ("tp", "tensor", "tensor_transpose", "tensor_sequence", "model", "mp", "mdl", "autoregressive"),
}

_ROLES: Final[Mapping[str, Role]] = {name: role for role, names in ROLE_NAMES.items() for name in names}


def find_role(name: str) -> Role | None:
    """Returns what an axis of this name is for, in any case; None where nobody knows."""
    return _ROLES.get(name.lower())
