from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidRequestError, PlanInfeasibleError
from meshwright.targets import TargetSpec
from meshwright.topology.chips import read_chips
from meshwright.topology.model import MAX_DEVICE_COUNT
from meshwright.topology.systems import list_names
from meshwright.topology.targets import count_devices, find_hardware, list_chips, read_target

NAMES = ["cpu", *(alias for chip in read_chips() for alias in chip.aliases), *list_names()]


@pytest.mark.parametrize(("asked", "canonical"), [
    ("v5p-17920", "v5p:16x20x28"), ("V5litepod-256", "v5e:16x16"), ("3*tpu-v5p-896", "3*v5p:4x4x28"),
    ("trillium:16x16", "v6e:16x16"), ("v5e:16x16x1", "v5e:16x16"), ("v5p", "v5p:2x2x1"), ("v5e", "v5e:2x2"),
    ("tpu7x-2", "tpu7x:1x1x1"), ("h100", "h100:8"), ("H100 SXM5:4", "h100:4"), ("a100-80gb:8", "a100:8"),
    ("gb200", "gb200:4"), ("gb200:72", "18*gb200:4"), ("gb200:64", "16*gb200:4"), ("2*gb300:72", "36*gb300:4"),
    ("cpu", "cpu:1"), ("64*cpu:8", "64*cpu:8"), ("v4:4x4x8", "v4:4x4x8"), ("v4:4x4x8_untwisted", "v4:4x4x8"),
    ("v4:4x4x8_twisted", "v4:4x4x8_twisted"), ("v5p-512_twisted", "v5p:4x8x8_twisted"),
    ("v5e:4x4_untwisted", "v5e:4x4"),
])  # fmt: skip
def test_a_target_is_written_by_its_chips_first_name_and_its_shape(asked: str, canonical: str) -> None:
    assert str(read_target(asked)) == canonical
    assert read_target(canonical) == read_target(TargetSpec.parse(asked))


@given(st.sampled_from(NAMES), st.integers(1, 7))
def test_every_known_name_is_a_target_and_reading_it_again_changes_nothing(name: str, granules: int) -> None:
    spec = read_target(TargetSpec(name, granules=granules))
    assert read_target(spec) == spec
    assert read_target(str(spec)) == spec
    assert spec.granules == granules
    assert count_devices(find_hardware(spec)) * granules <= MAX_DEVICE_COUNT


@pytest.mark.parametrize(("asked", "rule", "works"), [
    ("v9:2x2", "no chip and no slice is called v9", "v4"), ("h1000:8", "known chips are cpu, v2", "h100"),
    ("h100x4", "called h100x4", "h100:4"), ("64xh100", "called 64xh100", "h100:8 or 64*h100:8"),
    ("v5p-300", "no slice is called v5p-300", "v5p-256"), ("tpu-v5p-300", "no slice is called tpu-v5p-300", "v5p-256"),
    ("qqqqqq", "no chip", "meshwright hardware"), ("v5p:4x4x6", "multiples of 4", "v5p:4x4x8"),
    ("h100:3", "known hosts have 1, 2, 4, 8", "h100:4"), ("2*h100:16", "known hosts have 1, 2, 4, 8", "4*h100:8"),
    ("gb200:6", "a whole NVLink domain is gb200:72", "gb200:4"), ("1000000*h100:1000000", "known hosts have", "h100:8"),
    ("h100:2x4", "only TPU slices have shapes", "h100:8"), ("gb200:2x2", "only TPU slices have shapes", "gb200:4"),
    ("h100:8_twisted", "only TPU slices have shapes", "h100:8"), ("cpu:2x4", "only TPU slices have shapes", "cpu:8"),
    ("v5p-256:4x4x8", "is the name of a slice", "v5p:4x4x8"), ("v5p:4x4x12_twisted", "k×k×2k", "4x4x8"),
    ("v5e-16_twisted", "k×k×2k", "leave out _twisted"), ("100000*h100:8", "at most 131,072", "16384*h100:8"),
    ("20*v5p-17920", "at most 131,072", "14*v5p:16x20x28"), ("1000000*gb200:72", "at most 131,072", "32768*gb200:4"),
    ("cpu:1000000", "at most 131,072", "cpu:131072"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_the_rule_and_what_works(asked: str, rule: str, works: str) -> None:
    with pytest.raises(PlanInfeasibleError) as caught:
        read_target(asked)
    assert f"target {asked}" in caught.value.detail
    assert rule in caught.value.detail
    assert works in caught.value.hint
    assert [entry["field"] for entry in caught.value.errors] == ["target"]


@given(st.sampled_from(list_chips()), st.lists(st.integers(1, 10**6), max_size=3).map(tuple), st.integers(1, 10**6))
def test_a_target_that_is_refused_is_refused_as_infeasible(chip: str, shape: tuple[int, ...], granules: int) -> None:
    spec = None
    with contextlib.suppress(PlanInfeasibleError):
        spec = read_target(TargetSpec(chip, shape, granules))
    assert spec is None or read_target(str(spec)) == spec


def test_the_largest_target_is_taken() -> None:
    assert str(read_target(f"cpu:{MAX_DEVICE_COUNT}")) == f"cpu:{MAX_DEVICE_COUNT}"
    with pytest.raises(PlanInfeasibleError):
        read_target(f"cpu:{MAX_DEVICE_COUNT + 1}")


def test_what_is_no_target_at_all_is_another_refusal() -> None:
    with pytest.raises(InvalidRequestError):
        read_target("v5p:")
