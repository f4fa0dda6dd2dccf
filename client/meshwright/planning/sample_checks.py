"""Whether a request can be answered for a model that is given by what a sample costs.

Rule: what needs layers, heads or a step of ours is refused with the reason, and what is known can be chosen. Knows no
mesh: that is `divisibility`'s.
"""

from __future__ import annotations

from typing import Final

from meshwright.errors import InvalidRequestError
from meshwright.planning.divisibility import UNKNOWN_CUT
from meshwright.wire.cost import SearchSpec
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import TrainingSpec

_CUTTING: Final = ("tp", "cp", "ep", "pp")
"""Axes that a search knows, and that such a model cannot have."""

_NO_REMAT: Final = (
    "activation_bytes_per_sample are kept as they are given, so that nothing is computed again that could be chosen"
)


def check_sample_request(request: PlanRequest) -> None:
    """Passes over a request whose model is given by what a sample costs, and that asks nothing else of it.

    Raises:
        InvalidRequestError: it wants an audit, an export, remat, or an axis that cuts what nobody knows.
    """
    for field in ("audit", "exports"):
        if getattr(request, field):
            message = f"{field} needs a model's dimensions, and the model is given by what a sample costs"
            raise _refuse(field, message, f"leave out {field}, or give dimensions (hidden_size, num_hidden_layers, …)")
    if request.training is not None:
        _check_training(request.training)
    if request.search is not None:
        _check_search(request.search)


def _check_training(training: TrainingSpec) -> None:
    if "remat" in training.model_fields_set and training.remat != "none":
        message = f"remat is {training.remat}; {_NO_REMAT}"
        hint = "leave it out, and give the bytes and FLOPs that a sample has with it"
        raise _refuse("training.remat", message, hint)


def _check_search(search: SearchSpec) -> None:
    if others := [remat for remat in search.remat if remat != "none"]:
        message = f"remat is {' or '.join(others)}; {_NO_REMAT}"
        raise _refuse("search.remat", message, "leave it out, and give the bytes and FLOPs that a sample has with it")
    for axis in _CUTTING:
        size = search.axes.get(axis, 1)
        if size > 1:
            raise _refuse(f"search.axes.{axis}", f"{axis}:{size}: {UNKNOWN_CUT}", f"leave out {axis}")


def keep_activations(training: TrainingSpec) -> TrainingSpec:
    """Returns the training with nothing computed again, whatever is so by default."""
    return training.model_copy(update={"remat": "none"})


def _refuse(field: str, message: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field}: {message}", hint=hint, errors=[{"field": field, "message": message}])
