"""Every candidate of a search is legal, none that is legal is missed, and sizes that were left out are told."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import RequestError
from meshwright.planning.divisibility import check_divides
from meshwright.planning.divisors import list_divisors
from meshwright.planning.models import read_model
from meshwright.planning.search.space import AXES, CONTEXT_LEAST, REMATS, Bounds, Space, list_space
from meshwright.wire.model import ModelSpec, TrainingSpec

LLAMA = read_model("llama3-8b")
MIXTRAL = read_model("mixtral-8x7b")


def list_rows(space: Space) -> list[dict[str, int]]:
    names = (*AXES, "micro_batch", "passes", "remat")
    columns = {name: np.broadcast_to(np.asarray(getattr(space.layout, name)), (space.size,)) for name in names}
    return [{name: int(columns[name][row]) for name in names} for row in range(space.size)]


@pytest.mark.parametrize(("model", "devices"), [(LLAMA, 16), (MIXTRAL, 16), (LLAMA, 12), (MIXTRAL, 24)])
def test_candidates_are_exactly_the_meshes_that_divide(model: ModelSpec, devices: int) -> None:
    training = TrainingSpec(global_batch=48, sequence_length=4096)
    space = list_space(devices, model, training, Bounds())
    found = {tuple(row[axis] for axis in AXES) for row in list_rows(space)}
    legal = set()
    for sizes in itertools.product(list_divisors(devices), repeat=len(AXES)):
        shape = dict(zip(AXES, sizes, strict=True))
        if math.prod(sizes) == devices and training.sequence_length // shape["cp"] >= CONTEXT_LEAST:
            try:
                check_divides(model, training, shape)
            except RequestError:
                continue
            legal.add(sizes)
    assert found == legal
    assert len(legal) > 10


@given(devices=st.integers(1, 96), batch=st.integers(1, 96))
@settings(max_examples=40, deadline=None)
def test_each_candidate_uses_all_devices_and_the_whole_batch(devices: int, batch: int) -> None:
    space = list_space(devices, LLAMA, TrainingSpec(global_batch=batch, sequence_length=4096), Bounds())
    for row in list_rows(space):
        assert math.prod(row[axis] for axis in AXES) == devices
        assert row["dp"] * row["fsdp"] * row["ep"] * row["micro_batch"] * row["passes"] == batch


def test_bounds_are_kept() -> None:
    bounds = Bounds(axes={"tp": 4}, at_most={"pp": 1}, remats=("full",), passes=2)
    rows = list_rows(list_space(32, LLAMA, TrainingSpec(global_batch=64, sequence_length=4096), bounds))
    assert rows
    assert {(row["tp"], row["pp"], row["remat"], row["passes"]) for row in rows} == {(4, 1, REMATS["full"], 2)}


def test_each_remat_and_micro_batch_is_there_for_each_mesh() -> None:
    rows = list_rows(list_space(4, LLAMA, TrainingSpec(global_batch=8, sequence_length=2048), Bounds()))
    meshes: dict[tuple[int, ...], set[tuple[int, int]]] = {}
    for row in rows:
        meshes.setdefault(tuple(row[axis] for axis in AXES), set()).add((row["micro_batch"], row["remat"]))
    whole = meshes[1, 1, 4, 1, 1, 1]
    assert whole == set(itertools.product((1, 2), REMATS.values()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 7}, "pp:2 does not divide num_hidden_layers 7"),
        ({"vocab_size": 50257}, "tp:2 does not divide vocab_size 50257"),
        ({"hidden_size": 4100, "head_dim": 128}, "fsdp:8 does not divide hidden_size 4100"),
    ],
)
def test_a_size_that_a_rule_keeps_out_is_told_with_it(changes: dict[str, Any], words: str) -> None:
    model = LLAMA.model_copy(update=changes)
    space = list_space(8, model, TrainingSpec(global_batch=8), Bounds())
    assert words in [left.rule for left in space.left]
    assert space.size


def test_without_a_legal_mesh_there_is_no_candidate() -> None:
    assert not list_space(8, LLAMA, TrainingSpec(global_batch=3), Bounds(axes={"fsdp": 8})).size
