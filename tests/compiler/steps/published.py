"""Published step times of MaxText on TPUs, as cases for the compiler: `published.csv`, one run a row.

Rule: what was published stands in the file as it was, with its source; a time is derived here where only FLOP/s were
told. Every row is a case or says why it is left out. Knows no compiler's answer.

A row's `remat` is the nearest policy that the step has to `published_remat`; its `target` follows from the number of
chips by the name tables (64 chips of v5p are 4x4x4); its tensor axis is the inner one.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meshwright.planning.models import read_model
from meshwright.wire.model import ModelSpec, TrainingSpec
from tests.compiler.steps.cases import Case

TABLE: Final = Path(__file__).with_name("published.csv")

_LLAMA: Final = {"num_key_value_heads": 8, "head_dim": 128}
_LLAMA3: Final = {**_LLAMA, "vocab_size": 128256}
_GPT3: Final = {
    "vocab_size": 50304, "activation": "gelu", "gated": False, "norm": "layernorm", "positions": "learned",
    "max_position_embeddings": 16384, "tie_word_embeddings": True,
    "attention_bias": True, "attention_output_bias": True, "mlp_bias": True,
}  # fmt: skip

MODELS: Final[dict[str, dict[str, Any]]] = {
    "maxtext-scale-16": {"hidden_size": 4096, "intermediate_size": 28672, "num_hidden_layers": 32, "heads": 64},
    "maxtext-scale-32": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 32, "heads": 64},
    "maxtext-scale-64": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 64, "heads": 64},
    "maxtext-scale-128": {"hidden_size": 8192, "intermediate_size": 57344, "num_hidden_layers": 64, "heads": 128},
    "maxtext-scale-256": {"hidden_size": 16384, "intermediate_size": 57344, "num_hidden_layers": 64, "heads": 128},
    "llama2-70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "heads": 64, **_LLAMA},
    "llama3.1-70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "heads": 64, **_LLAMA3},
    "llama3.1-405b": {
        "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "heads": 128, **_LLAMA3,
    },
    "gpt3-175b": {"hidden_size": 12288, "intermediate_size": 49152, "num_hidden_layers": 96, "heads": 96, **_GPT3},
}  # fmt: skip
"""Dimensions as MaxText has them, with its heads of 128 and its vocabulary of 32,000 where none is said.

Source: AI-Hypercomputer/maxtext, src/maxtext/configs/models/*.yml; "scale": base.yml × global_parameter_scale."""


@dataclass(frozen=True)
class Published:
    """One run that was published.

    Attributes:
        row: its place in the collection that it was taken from.
        name: of the run.
        case: what the compiler is asked; None where it is left out.
        left_out: why; empty where it is not.
        measured_s: seconds of a step, as published or derived.
        derived: what the seconds were derived from; empty: they were published.
        published_remat: as MaxText calls it.
        note: what else is to be known.
        source: where it was published.
        fields: the line of the file.
    """

    row: int
    name: str
    case: Case | None
    left_out: str
    measured_s: float
    derived: str
    published_remat: str
    note: str
    source: str
    fields: dict[str, str]


def read_published() -> tuple[Published, ...]:
    """Returns all rows, in the order of the file."""
    with TABLE.open(newline="") as file:
        return tuple(map(_build, csv.DictReader(file)))


def _build(fields: dict[str, str]) -> Published:
    case = None if fields["left_out"] else _build_case(fields)
    measured_s, derived = (0.0, "") if case is None else derive_step_s(fields, case)
    return Published(
        row=int(fields["row"]), name=fields["id"], case=case, left_out=fields["left_out"], measured_s=measured_s,
        derived=derived, published_remat=fields["published_remat"], note=fields["note"], source=fields["source"],
        fields=fields,
    )  # fmt: skip


def build_model(name: str) -> ModelSpec:
    """Returns a model by MaxText's name."""
    told = {"vocab_size": 32000, "head_dim": 128, **MODELS[name]}
    return read_model({"name": name, "num_attention_heads": told.pop("heads"), **told})


def _build_case(fields: dict[str, str]) -> Case:
    training = {
        "seq_len": int(fields["seq_len"]), "global_batch_size": int(fields["global_batch_size"]),
        "remat": fields["remat"], "first_moment_dtype": fields["first_moment_dtype"] or None,
    }  # fmt: skip
    model = build_model(fields["model"])
    return Case(fields["target"], fields["mesh"], model, TrainingSpec(**training), fields["dcn"] or None)


def derive_step_s(fields: dict[str, str], case: Case) -> tuple[float, str]:
    """Returns seconds of a step, and what they were derived from.

    FLOPs of MaxText's own count ÷ FLOP/s of all chips; or tokens ÷ tokens/s.
    """
    if fields["step_s"]:
        return float(fields["step_s"]), ""
    if fields["tflops_per_chip"]:
        flops = count_flops(case.model, case.training, is_causal=fields["flop_count"] == "causal")
        return flops / (float(fields["tflops_per_chip"]) * 1e12 * int(fields["chips"])), "FLOP/s"
    tokens = case.training.global_batch_size * case.training.seq_len
    return tokens / (float(fields["tokens_per_s_per_device"]) * int(fields["chips"])), "tokens/s"


def count_flops(model: ModelSpec, training: TrainingSpec, *, is_causal: bool) -> float:
    """Returns FLOPs of a step as MaxText counts them for its TFLOP/s: forward and twice that backward, nothing again.

    Args:
        model: a dense one.
        training: for batch and length.
        is_causal: half of attention's scores, as since MaxText's PR 1988; before it, all.

    Source: AI-Hypercomputer/maxtext, maxtext_utils.py, calculate_tflops_training_per_device.
    """
    heads = 2 * model.num_attention_heads + 2 * model.kv_heads
    matrices = model.intermediate_size * (3 if model.gated else 2) + heads * model.head_size
    tokens = training.global_batch_size * training.seq_len
    weights = model.hidden_size * (matrices * model.num_hidden_layers + model.vocab_size)
    scores = 2 * model.num_attention_heads * model.head_size * model.num_hidden_layers * training.seq_len
    return 3 * 2 * tokens * (weights + scores / (2 if is_causal else 1))
