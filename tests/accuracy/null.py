"""Predictors that know next to nothing: what a cost model must beat, on the same rows.

Rule: no shape, no overlap, no latency. `CONSTANT` is a constant share of the peak; `TEXTBOOK` adds the collectives of
tensor and data parallelism at their links' peak, and the bubble.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from meshwright.planning.cost.work import Block, build_work
from meshwright.planning.tensors import count_parameters
from meshwright.topology.chips import Chip
from tests.accuracy.evaluate import Prediction, Predictor, by_row
from tests.accuracy.run import Run

PEAK_SHARE: Final = 0.6
"""Of the peak that the textbook's matmuls reach, as the published null of the collection has it."""

GRADIENT_BYTES: Final = 2
ACTIVATION_BYTES: Final = 2
HOST_DEVICES: Final = 8

Rates = Mapping[str, float]


def fit_rates(runs: Sequence[Run]) -> Rates:
    """Returns the median share of the 16-bit peak that runs reach, by set, chip and dtype."""
    rates: dict[str, list[float]] = {}
    for run in runs:
        if run.step_s is not None:
            rates.setdefault(_find_kind(run), []).append(price_model(run) / run.step_s)
    return {kind: float(np.median(found)) for kind, found in rates.items()}


def predict_by_rate(constants: Rates, runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Returns seconds at those shares; nothing where no other run is of the same kind."""
    shares = [constants.get(_find_kind(run)) for run in runs]
    return tuple(
        Prediction() if share is None else Prediction(step_s=price_model(run) / share)
        for run, share in zip(runs, shares, strict=True)
    )


def _find_kind(run: Run) -> str:
    bits = "16" if run.compute_dtype in ("bfloat16", "float16") else run.compute_dtype
    return f"{run.set_name}/{run.chip}/{bits}"


def fit_nothing(runs: Sequence[Run]) -> None:
    """Fits nothing: the textbook has no constant but `PEAK_SHARE`."""


def predict_by_textbook(constants: None, runs: Sequence[Run]) -> tuple[Prediction, ...]:
    """Returns `price_textbook` of each."""
    return tuple(Prediction(step_s=price_textbook(run)) for run in runs)


@functools.cache
def price_model(run: Run) -> float:
    """Returns the seconds of a step's model FLOPs, without what is recomputed, at the 16-bit peak of all devices."""
    return count_flops(run) / _find_peak(run)


def price_compute(run: Run) -> float:
    """Returns the seconds of all FLOPs of a step, recomputed layers too, at the 16-bit peak of all devices."""
    return count_flops(run, with_recomputed=True) / _find_peak(run)


def count_flops(run: Run, *, with_recomputed: bool = False) -> float:
    """Returns FLOPs of one step as most of the published rates count them: attention in full, though it is causal.

    Of a GPT these are 72·B·s·l·h²·(1 + s/6h + V/12lh), and with recomputed layers 96·B·s·l·h²·(1 + s/6h + V/16lh).

    Source: Narayanan et al., arXiv:2104.04473, section 5.1 and appendix.
    """
    work = build_work(run.model, run.sequence_length)
    forward = sum(block.count * _count_forward(block) for block in work.blocks)
    passes = 4 if with_recomputed and run.recompute == "full" else 3
    return run.tokens * (passes * forward + 3 * 2 * work.head.parameters)


def _count_forward(block: Block) -> float:
    matmuls = sum(matmul.parameters for matmul in block.matmuls)
    experts = block.experts
    chosen = experts.chosen * sum(matmul.parameters for matmul in experts.matmuls) if experts else 0
    scores = block.attention.flops_per_token * block.attention.length / block.attention.context
    return 2 * (matmuls + chosen) + scores


def _find_peak(run: Run) -> float:
    return run.find_chip().device_flops_per_s * run.devices


def price_textbook(run: Run) -> float:
    """Returns seconds as a textbook has them: (compute + tensor all-reduces) × bubble + the gradients' all-reduce.

    Six all-reduces of activations in a layer and pass where it is recomputed, else four; a ring of n sends 2(n−1)/n.

    Source: Narayanan et al., arXiv:2104.04473, sections 2.2, 3.2 and 3.3.
    """
    layout, chip = run.layout, run.find_chip()
    tensor, data, stages = int(layout.tp), int(layout.data_parts), int(layout.pp)
    layers = run.model.num_hidden_layers / stages
    passed = int(layout.micro_batch) * run.sequence_length * run.model.hidden_size * ACTIVATION_BYTES
    reduces = 6 if run.recompute == "full" else 4
    tensor_s = _ring(tensor) * reduces * layers * passed * int(layout.passes) / _find_link(chip, tensor)
    gradients = count_parameters(run.model).total / (tensor * stages) * GRADIENT_BYTES
    data_s = _ring(data) * gradients / _find_link(chip, tensor * data)
    bubble = 1 + (stages - 1) / (int(layout.interleave) * int(layout.passes))
    return (price_compute(run) / PEAK_SHARE + tensor_s) * bubble + data_s


def _ring(size: int) -> float:
    return 2 * (size - 1) / size


def _find_link(chip: Chip, reach: int) -> float:
    """Returns bytes/s of what joins `reach` neighbours: the links of a host, or its network."""
    inside = chip.scaleup_bytes_per_s or chip.pcie_bytes_per_s
    outside = chip.scaleout_bytes_per_s or inside
    found = inside if chip.platform == "tpu" or reach <= HOST_DEVICES else outside
    if found is None:
        raise ValueError(f"{chip.name}: no link is known")
    return found


CONSTANT: Final = Predictor("constant share of the peak", fit_rates, predict_by_rate, by_row)
"""One share of the peak a set, chip and dtype; judged by leaving out one row, so that relatives stay."""

TEXTBOOK: Final = Predictor("textbook", fit_nothing, predict_by_textbook)
"""Has no constant that is fitted; for sets that are judged after one scale a chip."""
