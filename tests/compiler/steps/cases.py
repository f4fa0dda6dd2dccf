"""A step that the compiler is asked about, and the models of `tests/accuracy/data/peaks.csv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from meshwright.planning.compile_job import CompileJob, build_job
from meshwright.planning.request import find_inventory
from meshwright.wire.mesh import PlanRequest
from meshwright.wire.model import ModelSpec, TrainingSpec


@dataclass(frozen=True)
class Case:
    """One step. `dcn`: how the mesh's axes are split over slices."""

    target: str
    mesh: str
    model: ModelSpec
    training: TrainingSpec
    dcn: str | None = None

    @property
    def name(self) -> str:
        """What the case is called: target, mesh, model, sequences × length, remat."""
        batch = f"{self.training.global_batch_size}×{self.training.seq_len}"
        return f"{self.target} {self.mesh} {self.model.name} {batch} {self.training.remat}"

    def build_job(self) -> CompileJob:
        """Returns what the compiler is asked, for the mesh as our planner lays it."""
        plan = find_inventory(self.target).lay_out(PlanRequest(mesh=self.mesh, dcn=self.dcn))
        return build_job(plan, self.model, self.training)


def _build_model(name: str, width: int, layers: int, **other: Any) -> ModelSpec:
    heads = width // 128
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    return ModelSpec(name=name, **{"vocab_size": 32000, "num_attention_heads": heads, **sizes, **other})


DENSE: Final = _build_model("1.1b", 2048, 16, num_key_value_heads=8)
SMALL: Final = _build_model("0.3b", 1024, 16, num_key_value_heads=8)
LARGE: Final = _build_model("8b", 4096, 32, num_key_value_heads=8, intermediate_size=14336, vocab_size=128256)
OLDER: Final = _build_model(
    "0.8b-gpt", 2048, 14, norm="layernorm", activation="gelu", gated=False, positions="learned",
    max_position_embeddings=4096, tie_word_embeddings=True,
)  # fmt: skip
EXPERTS: Final = _build_model(
    "3b-8e", 1024, 16, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=4096
)
