"""The tables in `data` as runs: one line a run, its cells as they were published.

Rule: what is derived from a cell is derived here, with its formula: seconds from tokens/s or FLOP/s, passes from the
batch, the target from the number of devices. A model that cannot be described leaves its row out.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from meshwright.errors import InvalidRequestError, NotCompiledError
from meshwright.planning.cost.layout import Layout
from meshwright.planning.models import read_model
from meshwright.wire.model import ModelSpec
from tests.accuracy.run import REMATS, Attention, ComputeDtype, Dispatcher, Graphs, LeftOut, MemoryKind, Recompute, Run
from tests.accuracy.sets import SETS, RunSet

DATA: Final = Path(__file__).with_name("data")
GIB: Final = 2**30

_AXES: Final = ("dp", "fsdp", "tp", "cp", "ep", "pp")
_HOST_DEVICES: Final = {"gb200": 4, "gb300": 4}
"""GPUs of a host where they are not 8. Source: `meshwright.topology.systems`."""

Row = Mapping[str, str]


def read_tables() -> Iterator[Run | LeftOut]:
    """Yields every row of every table.

    Raises:
        ValueError: a row contradicts itself.
    """
    for each in SETS:
        with (DATA / f"{each.name}.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield _build_row(each, {**each.defaults, **row})


def _build_row(run_set: RunSet, row: Row) -> Run | LeftOut:
    source = _write_source(run_set, row)
    if row.get("left_out"):
        return LeftOut(run_set.name, row["id"], row["left_out"], source)
    try:
        model = build_model(row)
    except (NotCompiledError, InvalidRequestError) as refused:
        return LeftOut(run_set.name, row["id"], f"the model cannot be described: {refused}", source)
    return _build_run(run_set, row, model, source)


def build_model(row: Row) -> ModelSpec:
    """Returns the model of a row, by its preset or its dimensions, without a name.

    Raises:
        InvalidRequestError: its figures do not fit together.
        UnsupportedModelError: `ModelSpec` cannot say what it has.
    """
    if not row.get("model"):
        sizes = (int(row[name]) for name in ("hidden", "heads", "layers", "vocabulary", "sequence_length"))
        return build_gpt(*sizes)
    fields = {name: int(row[column]) for column, name in _CUTS.items() if row.get(column)}
    if dense := row.get("dense_layers"):
        fields["num_expert_layers"] = fields["num_hidden_layers"] - int(dense)
    return build_preset(row["model"], **fields).model_copy(update={"name": None})


_CUTS: Final = {
    "layers": "num_hidden_layers",
    "kv_heads": "num_key_value_heads",
}


GPT: Final[dict[str, Any]] = {
    "activation": "gelu",
    "gated": False,
    "norm": "layernorm",
    "positions": "learned",
    "tie_word_embeddings": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
}
"""What GPT-2, Megatron-LM's GPT and MPT have in common.

Source: NVIDIA/Megatron-LM, megatron/model; mosaicml/llm-foundry, whose published counts it meets exactly.
"""


@functools.cache
def build_gpt(hidden: int, heads: int, layers: int, vocabulary: int, length: int) -> ModelSpec:
    """Returns a GPT with a feed-forward of 4 × hidden and learned positions up to `length`.

    Raises:
        InvalidRequestError: the figures do not fit together.
    """
    return read_model(
        {
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "intermediate_size": 4 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": length,
            **GPT,
        }
    )


@functools.cache
def build_preset(name: str, **other: int) -> ModelSpec:
    """Returns a preset, with other figures where a run cut the model.

    Raises:
        InvalidRequestError: no preset has this name, or the figures do not fit together.
        UnsupportedModelError: `ModelSpec` cannot say what it has.
    """
    model = read_model(name)
    return read_model({**model.model_dump(), **other}) if other else model


def _build_run(run_set: RunSet, row: Row, model: ModelSpec, source: str) -> Run:
    chip, devices = run_set.chip or row["chip"], int(row["devices"])
    recompute = cast(Recompute, row["recompute"])
    layout = _build_layout(row, recompute)
    if layout.devices != devices:
        raise ValueError(f"{row['id']}: its axes take {layout.devices} devices, and it has {devices}")
    hosts, host_devices = _find_hosts(chip, devices)
    step_s, basis = derive_step_s(row, layout, model)
    peak = _read_peak_bytes(row)
    return Run(
        set_name=run_set.name,
        id=row["id"],
        model=model,
        target=f"{hosts}*{chip}:{host_devices}" if hosts > 1 else f"{chip}:{host_devices}",
        chip=chip,
        devices=devices,
        hosts=hosts,
        granules=hosts,
        layout=layout,
        sequence_length=int(row["sequence_length"]),
        compute_dtype=cast(ComputeDtype, row["dtype"]),
        attention=cast(Attention, row.get("attention") or "flash"),
        first_moment_dtype="float32",
        practice=run_set.practice,
        zero_stage=int(row["zero_stage"]),
        sequence_parallel=row.get("sequence_parallel") == "true" and layout.tp != 1,
        recompute=recompute,
        published_recompute=row.get("published_recompute") or row["recompute"],
        edge_layers=int(row.get("edge_layers") or 0),
        step_s=step_s,
        step_basis=basis,
        peak_bytes=peak,
        memory_kind=cast(MemoryKind, run_set.memory_kind if peak else ""),
        oom=row["oom"] == "true" if "oom" in row else None,
        fold=_join(run_set, row, run_set.fold),
        group=_join(run_set, row, run_set.group or run_set.fold),
        note=row.get("note") or "",
        source=source,
        network_bytes_per_s=run_set.network_bytes_per_s,
        graphs=cast(Graphs, row.get("graphs") or "none"),
        dispatcher=cast(Dispatcher, row.get("dispatcher") or ""),
        expert_overlap=row.get("expert_overlap") == "true",
        drops_tokens=row.get("drops_tokens") == "true",
    )


def _build_layout(row: Row, recompute: Recompute) -> Layout:
    sizes: dict[str, Any] = {name: int(row.get(name) or 1) for name in (*_AXES, "interleave", "micro_batch")}
    parts = sizes["dp"] * sizes["fsdp"] * sizes["ep"] * sizes["micro_batch"]
    passes = int(row["passes"]) if "passes" in row else int(row["global_batch"]) / parts
    if passes != int(passes) or passes < 1:
        raise ValueError(f"{row['id']}: a batch of {row['global_batch']} is no multiple of the {parts} at a time")
    return Layout(**sizes, passes=int(passes), remat=REMATS[recompute])


def _find_hosts(chip: str, devices: int) -> tuple[int, int]:
    """Returns how many hosts there are, and how many GPUs each has."""
    whole = _HOST_DEVICES.get(chip, 8)
    each = min(whole, devices)
    if devices % each:
        raise ValueError(f"{devices} × {chip} are no whole hosts of {each}")
    return devices // each, each


def derive_step_s(row: Row, layout: Layout, model: ModelSpec) -> tuple[float | None, str]:
    """Returns the seconds of a step and what they come from; None and nothing where none are told.

    Source: README of each set (`sets`): tokens before FLOP/s, as FLOP/s are counted in several ways.
    """
    tokens, devices = int(layout.global_batch) * int(row["sequence_length"]), int(row["devices"])
    if row.get("step_s"):
        return float(row["step_s"]), "published"
    if row.get("tokens_per_s"):
        return tokens / float(row["tokens_per_s"]), "tokens/s"
    if row.get("tokens_per_s_per_device"):
        return tokens / (float(row["tokens_per_s_per_device"]) * devices), "tokens/s"
    if row.get("tflops_per_device"):
        count = _count_layers if "section" in row else count_flops
        return count(model, int(row["sequence_length"]), tokens) / (
            float(row["tflops_per_device"]) * 1e12 * devices
        ), "FLOP/s"
    return None, ""


def count_flops(model: ModelSpec, length: int, tokens: int) -> float:
    """Returns FLOPs of a step of GPT as SC21 counts them: four times forward, one of them computed again.

    Source: Narayanan et al., arXiv:2104.04473, section 5.1: 96·B·s·l·h²·(1 + s/6h + V/16lh).
    """
    hidden, layers = model.hidden_size, model.num_hidden_layers
    more = 1 + length / (6 * hidden) + model.vocab_size / (16 * layers * hidden)
    return 96 * tokens * layers * hidden**2 * more


def _count_layers(model: ModelSpec, length: int, tokens: int) -> float:
    """Returns FLOPs as BLOOM's log counted them at first: 8 a parameter of the layers' matmuls and token."""
    return 8 * 12 * model.num_hidden_layers * model.hidden_size**2 * tokens


def _read_peak_bytes(row: Row) -> int | None:
    parts = [row[name] for name in ("peak_gib", "memory_gb", "state_gib", "activation_gib") if row.get(name)]
    return round(sum(map(float, parts)) * GIB) if parts else None


def _join(run_set: RunSet, row: Row, columns: tuple[str, ...]) -> str:
    return "/".join((run_set.name, *(row[column] for column in columns)))


def _write_source(run_set: RunSet, row: Row) -> str:
    page = f"/{row['page']}" if row.get("page") else ""
    return f"{run_set.source}{page}{'#L' + row['line'] if row.get('line') else ''}"
