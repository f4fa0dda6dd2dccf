"""The steps whose peak memory is weighed: ours and the other one, on the same mesh of the same target.

Rule: each way to split is there alone and with another, each way to save memory, several lengths, kinds of model and
targets; and each case is large enough that weights and activations weigh more than what a compiler adds.
"""

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
    "0.8b-gpt",
    2048,
    14,
    norm="layernorm",
    activation="gelu",
    gated=False,
    positions="learned",
    max_position_embeddings=4096,
    tie_word_embeddings=True,
)
EXPERTS: Final = _build_model(
    "3b-8e", 1024, 16, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=4096
)
TINY: Final = _build_model("0.1b", 512, 8, num_key_value_heads=4, vocab_size=8192)


def _train(batch: int, length: int, **other: Any) -> TrainingSpec:
    return TrainingSpec(global_batch_size=batch, seq_len=length, **other)


CASES: Final = (
    Case("v5e:2x2", "fsdp:4", DENSE, _train(16, 2048)),
    Case("v5e:2x2", "tp:4", DENSE, _train(4, 4096)),
    Case("v5e:2x2", "fsdp:2,tp:2", DENSE, _train(8, 2048, remat="minimal")),
    Case("v5e:2x2", "dp:4", SMALL, _train(16, 2048, remat="minimal")),
    Case("v5e:2x2", "fsdp:4", SMALL, _train(16, 1024, remat="none")),
    Case("v5e:2x2", "fsdp:4", DENSE, _train(4, 1024, attention="xla")),
    Case("v5e:2x2", "fsdp:2,cp:2", DENSE, _train(2, 8192)),
    Case("v5e:2x2", "fsdp:4", OLDER, _train(16, 2048)),
    Case("v5e:2x2", "fsdp:4", DENSE, _train(8, 2048, first_moment_dtype="bfloat16")),
    Case("v5p:2x2x2", "fsdp:4,tp:2", LARGE, _train(16, 8192)),
    Case("v5p:2x2x2", "fsdp:4,ep:2", EXPERTS, _train(32, 2048)),
    Case("2*v5e:2x2", "dp:2,fsdp:4", DENSE, _train(32, 2048), dcn="dp:2"),
    Case("cpu:4", "fsdp:2,tp:2", TINY, _train(16, 1024)),
)
