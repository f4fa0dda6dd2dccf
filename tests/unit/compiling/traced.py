"""What a traced function holds: the shapes of all arrays in its jaxpr, those inside its loops with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def list_shapes(traced: Any) -> set[tuple[int, ...]]:
    """Returns the shape of every array that a `jax.make_jaxpr` result names: inputs, constants and results."""
    return {tuple(variable.aval.shape) for jaxpr in _walk(traced.jaxpr) for variable in _list_variables(jaxpr)}


def _list_variables(jaxpr: Any) -> list[Any]:
    return [*jaxpr.invars, *jaxpr.constvars, *(out for equation in jaxpr.eqns for out in equation.outvars)]


def _walk(jaxpr: Any) -> Iterator[Any]:
    yield jaxpr
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inside = getattr(inner, "jaxpr", inner)  # a ClosedJaxpr has one; loops and checkpoints have either
                if hasattr(inside, "eqns"):
                    yield from _walk(inside)
