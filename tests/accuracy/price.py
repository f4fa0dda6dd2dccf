"""Seconds of published runs by the planner's cost model, with the constants of its tables.

Rule: facts of a run become an `Execution`, a `Machine` and `Spans` here, by what the run says and by its framework,
never by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from meshwright.planning.cost.gemm import Dtype, find_curve, find_peak_flops_per_s
from meshwright.planning.cost.spans import Spans, lay_on_hosts, lay_on_torus
from meshwright.planning.cost.step_time import Execution, Machine, Practice, find_practice, price_step
from meshwright.planning.cost.work import Output, Work, build_work, find_repeated
from meshwright.targets import TargetSpec
from meshwright.topology.targets import build_target
from tests.accuracy.run import Run

KEPT: Final[Mapping[str, tuple[Output, ...]]] = {
    "full": (),
    "minimal": (),
    "custom: layer inputs, q, k, v offloaded": ("qkv",),
    "custom: context, second MLP matmul offloaded": ("context", "mlp_out"),
    "custom: layer inputs, second MLP matmul offloaded": ("mlp_out",),
    "custom: layer inputs, context kept": ("context",),
    "custom: layer inputs, context, second MLP matmul kept": ("context", "mlp_out"),
    "save_dot_except_mlpwi": ("qkv", "attention_out", "mlp_out"),
}
"""What the backward pass finds, by what a row says of its remat. Layer inputs are kept by each of them.

Source: AI-Hypercomputer/maxtext, layers/decoders.py, get_remat_policy."""

DTYPES: Final[dict[str, Dtype]] = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
}
NARROW: Final = ("fp8", "nvfp4")

DOMAINS: Final = {"gb200": 64, "gb300": 64}
"""GPUs that NVLink joins over hosts: 72 in a rack, of which jobs take whole powers of two.

Source: the chip table, "72-GPU NVLink domain"."""

HALF_GRADIENTS: Final = ("megatron-lm-2021", "llm-foundry")
"""Whose gradients are summed in 16 bits.

Source: NVIDIA/Megatron-LM 79a3bb6, `accumulate_allreduce_grads_in_fp32` is off for float16; mosaicml/llm-foundry
8c8dd48, FSDP's `mixed_precision: PURE`."""

HALF_GRADIENT_SETS: Final = ("megatron-bridge",)
"""NVIDIA-NeMo/Megatron-Bridge v0.2.0 to v0.5.1, scripts/performance/configs: `grad_reduce_in_fp32 = False`."""

TENSOR_OVERLAP_SETS: Final = ("megatron-bridge",)
"""Where collectives of the tensor axis run beside matmuls, and interleaved stages send beside compute.

Source: NVIDIA-NeMo/Megatron-Bridge v0.3.0, `tp_comm_overlap` of its recipes (not in nvfp4) and
training/comm_overlap.py."""

PARTLY_LAUNCHED: Final = 0.7
"""Kernels left to the host where attention and router are in CUDA graphs, and dispatch and experts are not."""


def price_run(run: Run, kept: tuple[Output, ...] | None = None) -> float:
    """Returns the predicted seconds of a step.

    Args:
        run: on TPUs or GPUs.
        kept: on TPUs, the outputs of a layer that the backward pass finds; None: what the run says of its remat.
    """
    chip = run.find_chip()
    work = build_work(run.model, run.sequence_length)
    if chip.platform == "tpu":
        spans, execution = build_torus_spans(run), build_maxtext_execution(run, work, kept)
    else:
        spans, execution = build_host_spans(run), build_execution(run)
    step = price_step(work, run.layout, build_machine(run), spans, read_practice(run), execution)
    return float(step.total_s)


def read_practice(run: Run) -> Practice:
    """Returns the constants of the run's framework on its chip."""
    chip = run.find_chip()
    return find_practice(run.practice, chip.platform, chip.family).practice


def build_torus_spans(run: Run) -> Spans:
    """Returns the wires of each axis on slices of TPUs."""
    chip = run.find_chip()
    granule = build_target(replace(TargetSpec.parse(run.target), granules=1)).granules[0]
    parts = chip.jax_devices_per_chip
    return lay_on_torus(
        run.layout,
        chip.family,
        granule.shape or (),
        granule.wrap or (),
        (chip.link_bytes_per_s or 0.0) / parts,
        (chip.scaleout_bytes_per_s or 0.0) / parts,
        parts,
    )


def build_host_spans(run: Run) -> Spans:
    """Returns the wires of each axis on hosts of GPUs."""
    chip = run.find_chip()
    inside = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    across = run.network_bytes_per_s or chip.scaleout_bytes_per_s
    assert inside, chip.name
    assert across, chip.name
    domain = min(DOMAINS.get(run.chip, run.devices // run.hosts), run.devices)
    return lay_on_hosts(run.layout, chip.family, domain, inside, across)


def build_maxtext_execution(run: Run, work: Work, kept: tuple[Output, ...] | None = None) -> Execution:
    """Returns how MaxText runs a step: gradients are summed in 16 bits, as XLA's TPU compiler lets them (their
    collectives in tests/compiler/steps/estimates.jsonl)."""
    repeated = find_repeated(work, KEPT[run.published_recompute] if kept is None else kept)
    return Execution(
        gradient_bytes=2.0,
        weight_bytes=2.0,
        repeated_matmuls=repeated.matmuls,
        repeated_attention=repeated.attention,
    )


def build_execution(run: Run) -> Execution:
    """Returns what the framework of a run on GPUs does."""
    has_halves = run.practice in HALF_GRADIENTS or run.set_name in HALF_GRADIENT_SETS
    is_overlapped = run.set_name in TENSOR_OVERLAP_SETS
    return Execution(
        sequence_parallel=run.sequence_parallel,
        fused_attention=run.attention == "flash",
        repeats_attention=run.practice == "megatron-lm-2021" and run.recompute == "selective",
        optimizer_sharded=run.zero_stage >= 1,
        gradient_bytes=2.0 if has_halves else 4.0,
        weights_kept=run.zero_stage == 2,
        launched={"none": 1.0, "part": PARTLY_LAUNCHED, "whole": 0.0}[run.graphs],
        dispatch_waits=float(run.dispatcher == "alltoall" and not run.drops_tokens),
        dispatch_once=float(run.dispatcher in ("deepep", "hybridep")),
        expert_overlap=float(run.expert_overlap),
        tensor_overlap=float(is_overlapped and run.compute_dtype != "nvfp4"),
        send_overlap=float(is_overlapped and int(run.layout.interleave) > 1),
    )


def build_machine(run: Run) -> Machine:
    """Returns the figures of one of its devices in its compute dtype."""
    chip, dtype = run.find_chip(), DTYPES[run.compute_dtype]
    is_narrow = dtype in NARROW
    return Machine(
        find_peak_flops_per_s(chip, dtype),
        chip.device_memory_bytes_per_s,
        find_curve(chip, dtype),
        find_peak_flops_per_s(chip, "bfloat16") if is_narrow else None,
        find_curve(chip, "bfloat16") if is_narrow else None,
    )
