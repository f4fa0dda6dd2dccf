"""The sets of published runs: which table each has, what holds for all its rows, who published it.

Rule: what all rows of a set share stands here once, with its source; what differs stands in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Practice = Literal["maxtext", "llm-foundry", "megatron-lm-2021", "megatron-core", "torchtitan", "meshwright"]
"""How a framework runs a step: what it overlaps, fuses and keeps. Several sets share one."""


@dataclass(frozen=True)
class RunSet:
    """One set.

    Attributes:
        name: what the page calls it, and the name of its table in `data` ("maxtext" has its rows elsewhere).
        practice: of all its rows.
        chip: of all its rows, as `find_chip` knows it; empty: a column.
        fold: columns whose values are left out together, so that no relative of a row is left to fit on.
        group: columns within which rows are ranked; empty: as `fold`.
        defaults: column → cell where the table has no such column.
        memory_kind: what its peaks are: of `Run.memory_kind`.
        seconds: how the seconds of a step come from what was published.
        network_bytes_per_s: a device's share of its host's NICs, one way; None: the chip table's.
        notes: what holds for all rows, and whence; facts that the rows' own source does not give.
        source: where the rows were published; a row's `page` and `line` are added.
    """

    name: str
    practice: Practice
    source: str
    seconds: str
    chip: str = ""
    fold: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    memory_kind: str = ""
    network_bytes_per_s: float | None = None
    notes: str = ""


_MODEL: Final = ("hidden", "layers", "devices", "global_batch")
_BIGSCIENCE: Final = "https://github.com/bigscience-workshop/bigscience/blob/9e64edec2ad1fb9263bf39ba616a84ff64b4d947"
_MEGATRON: Final = "https://github.com/NVIDIA/Megatron-LM/blob/79a3bb6bf2c85b748c46749dd0695e23310d4e16"
_VTRAIN: Final = "https://github.com/VIA-Research/vTrain/blob/f8dda8473a48b373b1d25f51f52d685bff5150c5"
_SIMUMAX: Final = "https://github.com/MooreThreads/SimuMax/blob/4dcaae513ba7679d56c116a17cd4a691ec41e252"
_VTRAIN_DEFAULTS: Final = {
    "vocabulary": "50257",
    "attention": "scores",
    "dtype": "float16",
    "recompute": "full",
    "zero_stage": "0",
}
_VTRAIN_NOTES: Final = (
    "Megatron-DeepSpeed, activations checkpointed (data/README.md and config/validation of the source). The memory of "
    "the A100s is not told. Hosts of 8 GPUs with 800 Gbit/s between them, and gradients summed after the backward pass "
    "(inter_node_bandwidth and use_gradient_bucket of config/validation)"
)

SETS: Final = (
    RunSet(
        "llm-foundry",
        "llm-foundry",
        "https://github.com/mosaicml/llm-foundry/blob/8c8dd48f72168c5d51e2f7b151595892a8fba43d"
        "/scripts/train/benchmarking/README.md",
        "tokens of a step ÷ tokens/s",
        fold=("size",),
        defaults={"vocabulary": "50368"},
        notes="MPT's dimensions: scripts/train/yamls/pretrain of the source; their exact counts are the published ones",
    ),
    RunSet(
        "megatron-bridge",
        "megatron-core",
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b8355b03192d88d70f1709fedf51a/docs",
        "tokens of a step ÷ tokens/s",
        fold=("model",),
        defaults={"recompute": "none", "published_recompute": "not told", "sequence_parallel": "true"},
        notes=(
            "experts' parts are among the data-parallel ones; without FSDP the optimizer is distributed (ZeRO-1). "
            "Dispatchers, graphs and overlap: scripts/performance/configs at the release's tag, v0.2.0 for 25.11 to "
            "v0.5.1 for 26.06.01; v0.1.0rc4 for 25.09; of 26.08 those before it. Where a release's configuration has "
            "another mapping than its table, the first one later that has the table's"
        ),
    ),
    RunSet(
        "vtrain-multi",
        "megatron-lm-2021",
        f"{_VTRAIN}/data/ground_truth_multi.csv",
        "published",
        chip="a100",
        network_bytes_per_s=12.5e9,
        fold=_MODEL,
        defaults=_VTRAIN_DEFAULTS,
        notes=_VTRAIN_NOTES,
    ),
    RunSet(
        "vtrain-single",
        "megatron-lm-2021",
        f"{_VTRAIN}/data/ground_truth_single.csv",
        "published",
        chip="a100",
        fold=("hidden", "layers"),
        group=_MODEL,
        defaults=_VTRAIN_DEFAULTS,
        notes=_VTRAIN_NOTES,
    ),
    RunSet(
        "bloom",
        "megatron-lm-2021",
        f"{_BIGSCIENCE}/train/tr11-176B-ml/chronicles-prequel.md",
        "published; of six rows 8 × parameters of the layers × tokens ÷ FLOP/s, as its log counted then",
        chip="a100",
        fold=("section",),
        defaults={
            "vocabulary": "250880",
            "attention": "scores",
            "sequence_length": "2048",
            "recompute": "full",
            "zero_stage": "1",
        },
        network_bytes_per_s=6.25e9,
        memory_kind="not told",
        notes=(
            "Megatron-DeepSpeed. Hosts have 8 GPUs and 4 links of 100 Gbit/s (train/tr11-176B-ml/README.md). Seconds "
            "of one iteration, the second. GB are taken for 2^30 bytes, as 79 GB ran on a "
            "card of 80 GB"
        ),
    ),
    RunSet(
        "simumax",
        "megatron-core",
        f"{_SIMUMAX}/docs/b200/b200_release_v1.2_summary.json",
        "published",
        chip="b200",
        fold=("model",),
        defaults={
            "devices": "8",
            "micro_batch": "1",
            "dtype": "bfloat16",
            "recompute": "none",
            "zero_stage": "1",
            "dispatcher": "alltoall",
            "drops_tokens": "true",
            "sequence_parallel": "true",
        },
        memory_kind="allocated",
        notes=(
            "no recomputation, distributed optimizer, gradients in float32, fused cross-entropy, experts padded to "
            "their capacity with a factor of 1, nothing overlapped, one dense layer first, 16 KV heads of the 405B "
            "model (simu_tools/megatron_scripts and docs/b200/b200_real_repro_guide.md of the source)"
        ),
    ),
    RunSet(
        "torchtitan",
        "torchtitan",
        "https://github.com/pytorch/torchtitan/blob/31a17bfdb70bab6f62a13d21816a5339b911d6e3/benchmarks",
        "tokens of a step ÷ tokens/s",
        fold=("model",),
        defaults={"zero_stage": "3", "sequence_parallel": "true"},
        memory_kind="reserved",
        notes=(
            "H100 with 96 GB of HBM2e at 2.4 TB/s and 500 W, which the chip table has not: H100 SXM stands for it; "
            "selective: each matmul's output but every second kept"
        ),
    ),
    RunSet(
        "korthikanti",
        "megatron-lm-2021",
        "https://arxiv.org/abs/2205.05198",
        "published",
        chip="a100",
        fold=("hidden", "layers"),
        defaults={
            "vocabulary": "51200",
            "attention": "scores",
            "sequence_length": "2048",
            "dtype": "float16",
            "zero_stage": "0",
        },
        memory_kind="calculated",
        notes="table 5 (seconds), figure 1 (memory), the latter by the paper's own formulas",
    ),
    RunSet(
        "sc21",
        "megatron-lm-2021",
        "https://arxiv.org/abs/2104.04473",
        "96·B·s·l·h²·(1 + s/6h + V/16lh) ÷ FLOP/s, as the paper counts: with what is recomputed",
        chip="a100",
        fold=("hidden", "layers"),
        defaults={
            "vocabulary": "51200",
            "attention": "scores",
            "sequence_length": "2048",
            "dtype": "float16",
            "recompute": "full",
            "zero_stage": "0",
        },
        notes=f"table 1; micro-batches and interleaving from {_MEGATRON}/examples/sc21/run_table_1.sh",
    ),
)
"""The sets that have tables; the others' rows are steps of `tests.compiler.steps`."""

MAXTEXT: Final = RunSet(
    "maxtext",
    "maxtext",
    "https://github.com/AI-Hypercomputer/maxtext and https://github.com/AI-Hypercomputer/tpu-recipes, by row",
    "published; else FLOPs of MaxText's count ÷ FLOP/s, or tokens ÷ tokens/s (docs/step-estimates.md)",
    fold=("chip", "model"),
    notes="the dense bf16 runs on TPUs; the rows of tests/compiler/steps/published.csv",
)
