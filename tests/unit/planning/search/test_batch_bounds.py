"""Bounds of a mesh: each worked out by hand from the chip's peaks, its links and the sizes of the axes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.planning.models import read_model
from meshwright.planning.search.batch import MeshBound, list_mesh_bounds
from meshwright.planning.search.search import Question, build_question, read_layout
from meshwright.topology.targets import build_target
from meshwright.wire.model import TrainingSpec

V5P, V5P_LINK, H100 = 4.59e14, 9e10, 9.89e14
"""FLOP/s, bytes/s of one ICI link one way, FLOP/s: as published."""


def ask(target: str, model: Any = "llama3-70b", **training: Any) -> Question:
    topology = build_target(target)
    spec = TrainingSpec.model_validate({"global_batch": 4096, **training})
    return build_question(read_model(model), spec, topology, len(topology.devices))


def find(target: str, mesh: dict[str, int], model: Any = "llama3-70b", **training: Any) -> dict[str, MeshBound]:
    question = ask(target, model, **training)
    layout = read_layout(mesh, question.training)
    return {bound.name: bound for bound in list_mesh_bounds(question, layout, question.hardware.lay(layout))}


def test_fsdp_over_all_three_axes_of_a_v5p_is_850_tokens_and_its_memory_166() -> None:
    found = find("v5p:8x8x8", {"fsdp": 512})
    assert list(found) == ["memory", "fsdp"]
    assert found["fsdp"].tokens == pytest.approx(V5P / (3 * 2 * V5P_LINK)) == pytest.approx(850)
    assert found["memory"].tokens == pytest.approx(V5P / 2.765e12, rel=1e-6)
    assert found["fsdp"].derivation == "4.59e+14 FLOP/s ÷ 5.4e+11 bytes/s of fsdp's links"


def test_hosts_gather_each_weight_once_over_all_their_nics() -> None:
    found = find("8*h100:8", {"fsdp": 64})
    a_host = H100 / 5e10 * 7 / 8
    assert found["network"].slice_tokens == pytest.approx(a_host) == pytest.approx(17307.5)
    assert found["network"].tokens == pytest.approx(a_host / 8)


def test_the_bound_of_a_slices_network_is_the_slices_whatever_its_devices_share() -> None:
    # Two slices: half of the gradients come from the other one; 64 devices, or 8 groups of 8 on the same tokens.
    half = V5P / 6.25e9 / 2
    alone = find("2*v5p:4x4x4", {"dp": 2, "fsdp": 64})["network"]
    shared = find("2*v5p:4x4x4", {"dp": 2, "fsdp": 8, "tp": 8})["network"]
    assert alone.slice_tokens == pytest.approx(half) == pytest.approx(36720)
    assert shared.slice_tokens == pytest.approx(half)
    assert (alone.tokens, shared.tokens) == (pytest.approx(half / 64), pytest.approx(half / 8))


def test_a_tensor_axis_has_a_greatest_size_and_makes_fsdp_ask_for_more() -> None:
    found = find("v5p:8x8x8", {"fsdp": 64, "tp": 8})
    assert found["tensor"].size == pytest.approx(28672 * 2 * V5P_LINK / V5P) == pytest.approx(11.24, rel=1e-3)
    assert found["tensor"].tokens is None
    assert found["fsdp"].tokens == pytest.approx(1275)
    assert found["mixed"].tokens == pytest.approx(1275 / (1 - 8 / 11.2439), rel=1e-4)


def test_at_the_best_size_the_mixed_bound_is_the_published_one() -> None:
    # tp:8 is half of the greatest size, 16 = F ÷ 2,550, so that both communicate alike.
    model = {**read_model("llama3-70b").model_dump(exclude_defaults=True), "intermediate_size": 16 * 2550}
    found = find("v5p:8x8x8", {"fsdp": 64, "tp": 8}, model)
    # 4·α² ÷ (Mx·My·F), α = C ÷ W of one axis: jax-ml/scaling-book, training.md, Mixed FSDP and Tensor Parallelism.
    published = 4 * (V5P / (2 * V5P_LINK)) ** 2 / (2 * 16 * 2550)
    assert found["tensor"].size == pytest.approx(16)
    assert found["mixed"].tokens == pytest.approx(8 * published)


def test_tensor_across_hosts_runs_at_their_networks_rate() -> None:
    inside = find("8*h100:8", {"fsdp": 8, "tp": 8})["tensor"].size
    across = find("8*h100:8", {"fsdp": 4, "tp": 16})["tensor"].size
    # 8 GPUs bring in half of the activations over 50 GB/s each, or 7 of 8 over NVLink at 450.
    assert inside == pytest.approx(28672 * 4.5e11 * 8 / 7 / H100)
    assert across == pytest.approx(28672 * min(4.5e11 * 8 / 7, 8 * 5e10 * 2) / H100)


def test_rates_of_an_order_of_devices_are_taken_where_they_are_known() -> None:
    question = ask("v5p:8x8x8")
    layout = read_layout({"fsdp": 512}, question.training)
    slow = {
        axis: replace(span, inner=replace(span.inner, bytes_per_s=np.asarray(span.inner.bytes_per_s) / 2))
        for axis, span in question.hardware.lay(layout).items()
    }
    (_, fsdp) = list_mesh_bounds(question, layout, slow)
    assert fsdp.tokens == pytest.approx(1700)
