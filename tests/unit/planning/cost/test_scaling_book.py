"""The worked answers of the scaling book, through our own functions, each within 2 % of what the book says in theory.

Source: jax-ml/scaling-book at 0819a7d8 (TPU chapters) and at 1a55377a (gpus.md). Figures of chips are those of our chip
table wherever it has the book's; where the book reckons with another, that one is passed and said beside the case.
What the book measured beside its theory is in `test_reached.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from meshwright.planning.cost.collectives import gpu_wire, network_wire, time_across, time_collective, torus_wire
from meshwright.planning.models import read_model
from meshwright.planning.tensors import count_parameters
from meshwright.topology.chips import find_chip

time_all_gather = partial(time_collective, "all_gather")
time_all_gather_across = partial(time_across, "all_gather")
time_all_reduce = partial(time_collective, "all_reduce")
time_all_to_all = partial(time_collective, "all_to_all")
time_all_to_all_across = partial(time_across, "all_to_all")

WITHIN = 0.02


def read_chip(name: str) -> Any:
    return find_chip(name)


V4, V5E, V5P = (read_chip(name).link_bytes_per_s for name in ("v4", "v5e", "v5p"))
"""One ICI link, one way."""
H100_LINKS, H100_NICS = read_chip("h100").scaleup_bytes_per_s, read_chip("h100").nic_bytes_per_s
"""All links of a GPU, all NICs of its node: one way."""
RING = torus_wire(V4, (4,), (True,))
PLANE = torus_wire(V4, (4, 4), (True, True))
LINE = torus_wire(V5E, (4,), (False,))
CORNERS = torus_wire(V5E, (4, 4), (False, False))
NODE = replace(gpu_wire(H100_LINKS, 8), hop_s=0)
"""The book's theory of GPUs leaves latency out."""
NETWORK = replace(network_wire(H100_NICS / 8, 32), hop_s=0, tree_s=None)


TWO_NODES = replace(network_wire(H100_NICS / 8, 2), hop_s=0, tree_s=None)

ANSWERS: list[tuple[str, float, Any]] = [
    # Place and case in the book, its answer, ours.
    ("sharding: ag-v5e-8x4-nowrap, bf16[2048, 8192] over a line of 4", 560e-6, time_all_gather(2**25, LINE)),
    ("sharding: ag-v5e-small, bf16[256, 256] over the same", 3e-6, time_all_gather(2**17, LINE)),
    ("sharding Q2: v4 4×4×4, one axis, a quarter of bf16[1024, 4096]", 23e-6, time_all_gather(2**21, RING)),
    ("sharding Q2: v4 4×4×4, two axes, all of it", 46e-6, time_all_gather(2**23, PLANE)),
    ("sharding Q2: v4 4×4×4, all-reduce over one axis", 190e-6, time_all_reduce(2**23, RING)),
    ("sharding Q3: v4 4×4×4, 256 bytes over one axis", 2e-6, time_all_gather(256, RING)),
    ("tpus Q6: v5e-ici-copy, 16 GB on 16 chips to one of them", 167e-3, time_all_gather(16e9, CORNERS)),
    ("gpus Q2.3: h100-ag-512MB, bf16[4096, 65536] in a node", 1.04e-3, time_all_gather(2**29, NODE)),
    ("gpus, Pop Quiz 1: H100, bf16[1024, 16384] in a node", 65e-6, time_all_gather(2**25, NODE)),
    ("gpus, Cross-node: 1 byte, bound by the leaves at 413 GB/s", 1 / 413e9, time_all_gather_across(1, NODE, NETWORK)),
    ("gpus Q4.5: 2 nodes are bound inside, at 514 GB/s", 1 / 514e9, time_all_gather_across(1, NODE, TWO_NODES)),
    ("gpus, Cross-node: V·31 ÷ (32²·400e9)", 31 / (32**2 * 400e9), time_all_to_all_across(1, NODE, NETWORK)),
    ("gpus, Intra-node: V·7 ÷ (8²·450e9)", 7 / (64 * 450e9), time_all_to_all(1, NODE)),
    ("applied-training: llama70-params", 70.4e9, count_parameters(read_model("llama3-70b"))),
]


@pytest.mark.parametrize(("book", "ours"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_an_answer_of_the_book_comes_out_within_two_percent(book: float, ours: Any) -> None:
    assert ours == pytest.approx(book, rel=WITHIN)


@pytest.mark.parametrize("size", [4, 16, 28])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_formulas_of_a_torus_are_the_books(size: int, axes: int) -> None:
    """allgather-1axis, allgather-naxes, allreduce, alltoall: V ÷ (W·n), twice and a quarter of it."""
    wire = torus_wire(V5P, [size] * axes, [True] * axes)
    gathered = 1e9 / (2 * V5P * axes)
    assert time_all_gather(1e9, wire) == pytest.approx(gathered)
    assert time_all_reduce(1e9, wire) == pytest.approx(2 * gathered)
    if axes == 1:
        assert time_all_to_all(1e9, wire) == pytest.approx(gathered / 4)


@pytest.mark.parametrize("byte_count", [1, 1e3, 1e6, 1e9])
def test_small_messages_take_a_microsecond_a_hop(byte_count: float) -> None:
    """latency: the larger of T_hop·ΣX ÷ 2 and V ÷ (W·n)."""
    wire = torus_wire(V5P, (8, 16), (True, True))
    assert time_all_gather(byte_count, wire) == pytest.approx(max(1e-6 * 24 / 2, byte_count / (2 * V5P * 2)))
