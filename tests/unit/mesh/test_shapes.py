"""Mesh shapes as trainers write them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from meshwright._mesh.shapes import build_spec, parse_named_sizes, read_axis_types
from meshwright.mesh import calculate_host_mesh_shape

AUTO, EXPLICIT, MANUAL = AxisType.Auto, AxisType.Explicit, AxisType.Manual

TYPES = [
    (None, (AUTO, AUTO)),
    ("auto", (AUTO, AUTO)),
    ("EXPLICIT", (EXPLICIT, EXPLICIT)),
    (MANUAL, (MANUAL, MANUAL)),
    (["Manual"], (MANUAL, MANUAL)),
    ((EXPLICIT,), (EXPLICIT, EXPLICIT)),
    (("auto", EXPLICIT), (AUTO, EXPLICIT)),
    (["explicit", "manual"], (EXPLICIT, MANUAL)),
]


@pytest.mark.parametrize(("given_", "expected"), TYPES)
def test_axis_types_are_one_for_all_or_one_an_axis(given_: Any, expected: tuple[AxisType, ...]) -> None:
    assert read_axis_types(given_, ("a", "b")) == expected


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("sharded", ValueError, "one of auto, explicit, manual"),
        (("auto", "sharded"), ValueError, "holds 'sharded'"),
        (("auto",) * 3, ValueError, r"has 3 entries, the mesh has 2 axes \(a, b\)"),
        ((), ValueError, "has 0 entries"),
        (1, TypeError, "is 1, a int"),
        ((AUTO, None), TypeError, "holds None"),
        (object, TypeError, "AxisType or a word"),
    ],
)
def test_wrong_axis_types_are_named(wrong: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        read_axis_types(wrong, ("a", "b"))


NAMED = [
    ("dp:2,tp:4", (("dp", 2), ("tp", 4))),
    ("tp:4,dp:2", (("tp", 4), ("dp", 2))),
    (" dp : 2 , tp : -1 ", (("dp", 2), ("tp", -1))),
    ("2,4", (("dp", 2), ("tp", 4))),
    ("-1, 4", (("dp", -1), ("tp", 4))),
]


@pytest.mark.parametrize(("text", "axes"), NAMED)
def test_a_text_names_its_axes_or_gives_them_by_position(text: str, axes: tuple[tuple[str, int], ...]) -> None:
    assert parse_named_sizes(text, ("dp", "tp")).axes == axes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty entry"),
        ("dp:2,,tp:4", "empty entry"),
        ("dp:2,tp:4,", "empty entry"),
        ("dp:2,4", "'4' has no name"),
        ("dp:2,xp:4", "'xp' is unknown"),
        ("dp:2,dp:4", "'dp' is repeated"),
        ("dp:2", "'tp' is missing"),
        ("dp:2,tp:four", "'four' is no size"),
        ("dp:2,tp:4.0", "'4.0' is no size"),
        ("dp:2,tp:", "'' is no size"),
        ("dp:2:3,tp:4", "'2:3' is no size"),
        ("dp:0,tp:4", "has size 0"),
        ("dp:-2,tp:4", "has size -2"),
        ("dp:-1,tp:-1", "at most one axis"),
        ("2,4,8", "has 3 sizes"),
        ("2", "has 1 sizes"),
        ("two,4", "'two' is no size"),
        ("9" * 5000 + ",1", "is no size"),
    ],
)
def test_the_offending_piece_of_a_text_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_named_sizes(text, ("dp", "tp"))


def test_what_is_no_text_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="is 8, a int"):
        parse_named_sizes(8, ("dp",))  # type: ignore[arg-type]


NAMES = st.lists(st.sampled_from(["dp", "fsdp", "ep", "tp", "sp"]), min_size=1, unique=True)


@given(NAMES.flatmap(lambda names: st.tuples(st.just(names), st.permutations(names))), st.data())
def test_parsing_what_was_printed_gives_the_mesh_again(names: tuple[list[str], list[str]], data: st.DataObject) -> None:
    known, order = names
    sizes = [data.draw(st.integers(1, 64)) for _ in order]
    spec = build_spec(sizes, order)
    assert parse_named_sizes(str(spec), known) == spec
    by_position = build_spec(sizes, known)
    assert parse_named_sizes(",".join(map(str, sizes)), known) == by_position


@pytest.mark.parametrize(
    ("sizes", "names", "error", "words"),
    [
        ((2, 4), ("dp",), ValueError, "has 2 sizes, axis_names .* has 1"),
        ((2,), "dp", TypeError, "sequence of words, such as"),
        ("24", ("dp", "tp"), TypeError, "sequence of integers"),
        (8, ("dp",), TypeError, "sequence of integers"),
        ((2.0, 4), ("dp", "tp"), TypeError, "holds 2.0, a float"),
        ((True, 4), ("dp", "tp"), TypeError, "holds True"),
        (("2", 4), ("dp", "tp"), TypeError, "holds '2', a str"),
        ((0, 4), ("dp", "tp"), ValueError, "has size 0"),
        ((2, 4), ("dp", "dp"), ValueError, "stands 2 times"),
        ((2, 4), ("dp", ""), ValueError, "a name is a word"),
        ((), (), ValueError, "0 axes"),
    ],
)
def test_wrong_shapes_are_refused(sizes: Any, names: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        build_spec(sizes, names)


def test_numpy_integers_are_integers() -> None:
    assert build_spec([np.int64(2), np.int32(-1)], ("a", "b")).sizes == (2, -1)  # type: ignore[list-item]


HOSTS = [
    ((2, 4), 4, 2, (1, 4)),
    ((3, 4), 6, 2, (3, 2)),
    ((4, 2), 2, 4, (1, 2)),
    ((2, 2, 2), 2, 4, (1, 1, 2)),
    ((6, 10), 4, 15, (2, 2)),
    ((-1, 4), 4, 2, (1, 4)),
    ((8,), 8, 1, (8,)),
    ((1, 16, 1), 4, 4, (1, 4, 1)),
]


@pytest.mark.parametrize(("mesh", "devices", "processes", "part"), HOSTS)
def test_a_host_has_its_part_of_the_mesh(
    mesh: tuple[int, ...], devices: int, processes: int, part: tuple[int, ...]
) -> None:
    assert calculate_host_mesh_shape(mesh, devices, processes) == part


@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.data())
def test_host_parts_multiply_back_and_a_split_is_found_wherever_there_is_one(
    sizes: list[int], data: st.DataObject
) -> None:
    total = math.prod(sizes)
    hosts = data.draw(st.sampled_from([n for n in range(1, total + 1) if total % n == 0]))
    part = calculate_host_mesh_shape(sizes, total // hosts, hosts)
    assert math.prod(part) == total // hosts
    splits = [size // own for size, own in zip(sizes, part, strict=True)]
    assert [own * split for own, split in zip(part, splits, strict=True)] == sizes
    assert math.prod(splits) == hosts


def test_without_numbers_the_job_is_asked() -> None:
    assert calculate_host_mesh_shape((2, 4)) == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (((4, 4), 4, 2), ValueError, r"\(4, 4\) does not fit; 2 processes with 4 devices each have 8.*use"),
        (((3, -1), 4, 2), ValueError, r"\(3, -1\) does not fit; 2 processes with 4 devices each have 8.*use \(2, 4\)"),
        (((2, 4), 0, 2), ValueError, "total_devices is 0"),
        (((2, 4), 4, -1), ValueError, "num_processes is -1"),
        (((2, 4), 4.0, 2), TypeError, "holds 4.0"),
        (((2, 4.5), 4, 2), TypeError, "holds 4.5"),
        (((), 4, 2), ValueError, r"\(\) does not fit"),
    ],
)
def test_a_mesh_that_hosts_cannot_share_is_refused(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        calculate_host_mesh_shape(*arguments)
