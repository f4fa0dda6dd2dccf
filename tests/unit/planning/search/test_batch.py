"""The recommended batch: what fits, what the bounds ask for, and which of them says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.planning.search.batch import reckon_batch
from meshwright.planning.search.search import read_layout
from meshwright.wire.batch_size import ReckonedBatch
from tests.unit.planning.search.test_batch_bounds import ask

MESHES: list[tuple[str, dict[str, int], str]] = [
    ("v5e:4x4", {"fsdp": 16}, "llama3-8b"),
    ("v5e:4x4", {"fsdp": 4, "tp": 4}, "llama3-8b"),
    ("v5p:4x4x4", {"fsdp": 32, "cp": 2}, "llama3-70b"),
    ("8*h100:8", {"dp": 8, "fsdp": 8}, "llama3-8b"),
    ("8*h100:8", {"pp": 2, "fsdp": 32}, "llama3-70b"),
    ("8*h100:8", {"fsdp": 8, "ep": 8}, "mixtral-8x7b"),
]


def reckon(target: str, mesh: dict[str, int], model: str = "llama3-8b", **training: Any) -> ReckonedBatch:
    return reckon_batch(ask(target, model, **{"global_batch": 2**24, **training}), mesh)


def does_fit(target: str, mesh: dict[str, int], model: str, batch: int, **training: Any) -> bool:
    question = ask(target, model, **{**training, "global_batch": batch})
    return bool(question.price(read_layout(mesh, question.training)).fits[0])


def test_850_tokens_a_device_are_1700_sequences_of_256_on_512_devices() -> None:
    found = reckon("v5p:8x8x8", {"fsdp": 512}, "llama3-70b", sequence_length=256)
    assert (found.unit, found.critical, found.recommended, found.batch_per_device) == (512, 1700, 2048, 4)
    assert found.limit == "roofline"
    assert found.message.startswith("2048 sequences a step on fsdp:512, 4 for each of 512 data-parallel parts: about")
    (memory, fsdp) = found.bounds
    assert (fsdp.name, fsdp.per, fsdp.met) == ("fsdp", "device", True)
    assert fsdp.global_batch == pytest.approx(850 / 256 * 512)
    assert memory.global_batch == pytest.approx(166.0 / 256 * 512, rel=1e-4)


def test_what_does_not_fit_is_not_recommended() -> None:
    found = reckon("v5e:4x4", {"fsdp": 4, "tp": 4}, "llama2-13b", sequence_length=512)
    assert found.largest is not None
    assert found.recommended == found.largest < found.critical
    assert found.limit == "memory"
    assert {bound.name: bound.met for bound in found.bounds} == {
        "memory": True,
        "fsdp": True,
        "tensor": True,
        "mixed": False,
    }
    assert "the most that fit" in found.message


def test_where_nothing_fits_the_answer_says_what_one_sequence_a_part_needs() -> None:
    found = reckon("v5e:2x2", {"fsdp": 4})
    assert (found.largest, found.recommended, found.batch_per_device, found.limit) == (None, None, None, "memory")
    assert (found.step_time, found.schedule, found.tokens_per_s) == (None, None, None)
    assert found.memory.fits is False
    assert not any(bound.met for bound in found.bounds)
    assert found.message.startswith("nothing fits: one sequence for each of 4 data-parallel parts needs about 32.")


def test_tokens_fill_whole_tiles_where_a_chip_is_known_to_have_some() -> None:
    # 100 tokens a sequence: 32 of them are the first multiple of 128.
    found = reckon("v5e:4x4", {"fsdp": 16}, sequence_length=100)
    assert (found.tile_tokens, found.batch_per_device) == (128, 32)
    assert found.critical < 16 * 32
    assert found.limit == "divisibility"
    on_gpus = reckon("h100:8", {"fsdp": 8}, "llama3.2-1b", sequence_length=100)
    assert on_gpus.tile_tokens is None
    assert on_gpus.recommended == math.ceil(on_gpus.critical / 8) * 8
    # A bound below a tile: whole sequences of the mesh are all that is left.
    assert reckon("v5e:4x4", {"fsdp": 16}, sequence_length=100, global_batch=48).recommended == 48


@pytest.mark.parametrize(("target", "mesh", "model"), MESHES)
@pytest.mark.parametrize("passes", [1, 4])
def test_the_largest_fits_and_one_more_a_part_does_not(
    target: str, mesh: dict[str, int], model: str, passes: int
) -> None:
    training = {"sequence_length": 4096, "gradient_accumulation": passes}
    found = reckon(target, mesh, model, **training)
    assert found.largest is not None
    assert does_fit(target, mesh, model, found.largest, **training)
    assert not does_fit(target, mesh, model, found.largest + found.unit, **training)


@settings(max_examples=40)
@given(
    case=st.sampled_from(MESHES),
    sequence=st.sampled_from([64, 96, 1000, 1024, 4096, 16384]),
    passes=st.sampled_from([1, 2, 3]),
    units=st.integers(1, 400),
)
def test_what_is_recommended_is_whole_fits_and_is_no_more_than_asked(
    case: tuple[str, dict[str, int], str], sequence: int, passes: int, units: int
) -> None:
    target, mesh, model = case
    unit = math.prod(mesh.get(axis, 1) for axis in ("dp", "fsdp", "ep")) * passes
    found = reckon(
        target, mesh, model, sequence_length=sequence, gradient_accumulation=passes, global_batch=unit * units
    )
    assert found.unit == unit
    if found.largest is None:
        assert found.recommended is None
        return
    assert found.recommended is not None
    assert found.recommended % unit == 0
    assert unit <= found.recommended <= min(found.largest, unit * units)
    assert found.memory.fits
    token_bounds = [bound for bound in found.bounds if bound.global_batch is not None]
    is_met = all(bound.met for bound in token_bounds)
    assert is_met == (found.limit in ("roofline", "divisibility")) == (found.recommended >= found.critical)
    assert found.critical == math.ceil(max(bound.global_batch or 0 for bound in token_bounds))
    if found.limit == "memory":
        assert found.recommended + unit * 128 > found.largest
    assert found.message.startswith(f"{found.recommended} sequences a step")
