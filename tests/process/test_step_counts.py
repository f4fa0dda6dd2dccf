"""Collectives of small steps, as XLA's TPU compiler makes them, against counts by hand.

One model and one batch on every mesh of v5e:2x2: B sequences of S tokens, L layers of hidden size D (all heads together
as wide) and feed-forward size F, a vocabulary of V; weights float32, computed in bfloat16, remat full. Sizes are chosen
so that no two of the sums below are equal by chance. Bytes are counted as nccl-tests does: of a gather and a scatter
the whole, of an all-reduce and an all-to-all a device's part.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from meshwright.wire.mesh import Plans
from meshwright.wire.verification import VerifiedCollective
from tests.process.slice_environment import needs_tpu_compiler

pytestmark = [pytest.mark.exhaustive, needs_tpu_compiler]

B, S, D, F, V, L = 8, 128, 128, 256, 384, 3
HEADS = 4
EXPERTS, CHOSEN = 4, 2
BF16, F32 = 2, 4

DENSE: dict[str, Any] = {
    "vocab_size": V, "hidden_size": D, "intermediate_size": F, "num_hidden_layers": L, "num_attention_heads": HEADS,
}  # fmt: skip
MIXTURE = {**DENSE, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN}

ATTENTION = 4 * D * D
MATRICES = ATTENTION + 3 * D * F
"""Elements of a layer's matrices: query, key, value, output; gate, up, down."""
NORMS = (2 * L + 1) * D * F32
"""Bytes of the gradients of all norms: two a layer and the last. Vectors are kept, and summed, in float32."""
TABLE = V * D
"""Elements of the embedding, and of the head."""
STREAM = B * S * D * BF16
"""Bytes of the residual stream of the whole batch; queries, keys and values are as large."""
SCALAR = F32
LOSS = B * S * (BF16 + 2 * F32)
"""Over a divided vocabulary: each token's greatest logit, as it was computed; its sum and its own logit in float32."""

OPS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")

Counted = dict[tuple[str, str], tuple[float, float]]


def count(mesh: dict[str, int], model: dict[str, Any] = DENSE) -> Counted:
    """Returns (times, bytes) by axis and kind."""
    training = {"global_batch_size": B, "seq_len": S, "remat": "full", "gradient_accumulation_steps": 1}
    asked = {"mesh": mesh, "target": "v5e:2x2", "device_order": "given", "model": model, "training": training}
    done = subprocess.run(
        [Path(sys.executable).with_name("meshwright"), "plan", "--offline", "--format=json", "--request", "-"],
        input=json.dumps({**asked, "compile": True}),
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
        check=True,
    )
    found = Plans.model_validate_json(done.stdout).plans[0].verification
    assert found is not None
    assert found.status == "verified", found.reason
    return add(found.collectives)


def add(collectives: Iterable[VerifiedCollective]) -> Counted:
    counted: Counted = {}
    for each in collectives:
        times, size = counted.get((each.axis, each.op), (0.0, 0.0))
        counted[each.axis, each.op] = times + each.count, size + each.bytes
    return counted


def get_bytes(counted: Counted) -> dict[tuple[str, str], float]:
    return {key: size for key, (_, size) in counted.items()}


def test_axes_of_equal_size_each_have_their_own_collectives() -> None:
    counted = count({"fsdp": 2, "tp": 2})
    stream, matrices, table = STREAM / 2, MATRICES / 2, TABLE / 2  # a device's row of fsdp, and column of tp
    # A layer has two blocks. Each is entered by a gather of the sequence over tp and left by a scatter: 2 + 2 forward.
    # The backward pass turns both round: 2 + 2. Remat runs the forward pass again without the last scatter, whose
    # result is not used: 2 + 1. The loss gathers the stream once, and its gradient is scattered.
    assert counted["tp", "all-gather"] == (6 * L + 1, (6 * L + 1) * stream)
    assert counted["tp", "reduce-scatter"] == (5 * L + 1, (5 * L + 1) * stream)
    # Look-ups find a part of each token's columns, which go to where its part of the sequence is; gradients go back.
    assert counted["tp", "all-to-all"] == (2, 2 * stream / 2)
    assert get_bytes(counted)["tp", "all-reduce"] == LOSS / 2
    # 7 matrices a layer over fsdp, each for the forward pass and again for the backward pass; head and embedding once.
    # The embedding lies with its columns over fsdp: for its gradient each device takes its columns of all tokens'
    # gradients (an all-to-all of what a device has of the stream) and all tokens' ids.
    assert counted["fsdp", "all-gather"] == (2 * 7 * L + 2 + 1, 2 * (L * matrices + table) * BF16 + B * S * F32)
    assert counted["fsdp", "all-to-all"] == (1, stream / 2)
    # Some matrices XLA sums whole, and takes a part of: an all-reduce of as many bytes stands for the scatter.
    sums = sum(get_bytes(counted)["fsdp", op] for op in ("reduce-scatter", "all-reduce"))
    assert sums == (L * matrices + table) * BF16 + SCALAR
    assert get_bytes(counted)["fsdp", "reduce-scatter"] > sums / 2
    # Tokens lie over both: so do the gradients of norms, which both have whole, and the sums of squares of 7 + 2
    # sharded gradients, for clipping.
    assert get_bytes(counted)["fsdp,tp", "all-reduce"] == NORMS + (7 + 2) * SCALAR
    assert len(counted) == 9


def test_expert_parallelism_sends_tokens_there_and_back_three_times_a_layer() -> None:
    counted = count({"ep": 4}, MIXTURE)
    places = S * CHOSEN / EXPERTS * 1.25  # of a sequence in each expert, at the default capacity factor
    # Forward, forward again under remat, backward; each there and back. A device has B / 4 sequences.
    # The embedding's gradient takes another, as over fsdp.
    assert counted["ep", "all-to-all"] == (6 * L + 1, 6 * L * B / 4 * EXPERTS * places * D * BF16 + STREAM / 4)
    # The axis cuts what is not an expert's too, and gathers it as fsdp: attention's 4 and the router of each layer,
    # head and embedding. The router's gradients go by permutes.
    shared = 2 * (L * (ATTENTION + D * EXPERTS) + TABLE) * BF16
    assert counted["ep", "all-gather"] == (2 * 5 * L + 2 + 1, shared + B * S * F32)
    assert get_bytes(counted)["ep", "reduce-scatter"] == (L * ATTENTION + TABLE) * BF16
    # Norms; the loss; the sums of squares of the gradients of 3 + 5 matrices of a layer, and of the tables.
    assert get_bytes(counted)["ep", "all-reduce"] == NORMS + (1 + 3 + 5 + 2) * SCALAR
    assert set(counted) - {("ep", "collective-permute")} == {("ep", op) for op in OPS}


def test_context_parallelism_gathers_keys_and_values_and_sums_their_gradients() -> None:
    counted = count({"cp": 4})
    # Keys and values, forward and again under remat. The axis cuts weights, and gathers them as fsdp does.
    weights = 2 * (L * MATRICES + TABLE) * BF16 + B * S * F32
    assert counted["cp", "all-gather"] == (2 * 2 * L + 2 * 7 * L + 2 + 1, 2 * 2 * L * STREAM + weights)
    assert counted["cp", "all-to-all"] == (1, STREAM / 4)
    # Scores are float32, and the gradient of keys is summed before it is cast. XLA sums some gradients whole: an
    # all-reduce stands for the scatter.
    of_pairs = L * (STREAM + STREAM * F32 / BF16)
    sums = sum(get_bytes(counted)["cp", op] for op in ("reduce-scatter", "all-reduce"))
    assert sums == of_pairs + (L * MATRICES + TABLE) * BF16 + NORMS + (1 + 7 + 2) * SCALAR
    assert set(counted) == {("cp", op) for op in OPS}
