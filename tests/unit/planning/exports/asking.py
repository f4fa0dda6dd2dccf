"""Plans to export, made as requests make them."""

from __future__ import annotations

from typing import Any

from meshwright.planning.exports import write_export
from meshwright.planning.models import read_model
from meshwright.planning.request import answer_request
from meshwright.wire.mesh import ExportName, Plan
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.fakes.asking import build_request

TINY: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 8,
}  # fmt: skip
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}


def make_plan(**fields: Any) -> tuple[Plan, ModelSpec, TrainingSpec]:
    """Returns the best, or the only, plan of a request, with its model and training."""
    training = {"seq_len": 64, "global_batch_size": 16, **fields.pop("training", {})}
    asked = {"target": "cpu:8", "model": TINY, "include_devices": False, **fields, "training": training}
    request = build_request(**asked)
    assert request.model is not None
    assert request.training is not None
    return answer_request(request).plans[0], read_model(request.model), request.training


def export(name: ExportName, **fields: Any) -> str:
    """Returns one export of the plan of a request."""
    return write_export(name, *make_plan(**fields))
