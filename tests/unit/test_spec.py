from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InvalidMeshError, PlanInfeasibleError
from meshwright.spec import MeshSpec, parse_axis_types

names = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
axes = st.lists(names, min_size=1, max_size=6, unique=True).flatmap(
    lambda ns: st.tuples(*[st.tuples(st.just(n), st.integers(1, 64)) for n in ns])
)


@given(axes)
def test_parse_after_print_is_identity(pairs: tuple[tuple[str, int], ...]) -> None:
    spec = MeshSpec(pairs)
    assert MeshSpec.parse(str(spec)) == spec
    assert MeshSpec.parse(dict(pairs)) == spec
    assert MeshSpec.parse([list(pair) for pair in pairs]) == spec  # type: ignore[arg-type]


@given(axes, st.integers(1, 16), st.data())
def test_a_filled_axis_makes_the_product_the_device_count(
    pairs: tuple[tuple[str, int], ...], rest: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(pairs) - 1))
    known = MeshSpec(pairs).device_count // pairs[place][1]
    free = MeshSpec(tuple((name, -1 if i == place else size) for i, (name, size) in enumerate(pairs)))
    assert free.resolve(known * rest).device_count == known * rest
    assert free.resolve(known * rest).sizes[place] == rest


@pytest.mark.parametrize(("mesh", "piece"), [
    ("", "the mesh is empty"), ("  ", "the mesh is empty"), ("dp:2,", "empty entry"), ("dp:2,,tp:4", "empty entry"),
    ("dp", "'dp'"), ("dp:x", "'x'"), ("dp:2.0", "'2.0'"), ("dp:٣", "'٣'"), ("dp:0", "size 0"), ("dp:-2", "size -2"),
    ("dp:-1,tp:-1", "dp, tp are all -1"), ("dp:2,dp:4", "'dp' stands 2 times"), (":2", "called ''"),
    ("a b:2", "'a b'"), ({}, "0 axes"), ([], "0 axes"), ({"dp": True}, "True"), ({"dp": 2.0}, "2.0"), ({"": 2}, "''"),
    ([("dp", 2, 3)], "not a pair"), (["dp"], "not a pair"), ({f"a{i}": 1 for i in range(17)}, "17 axes"),
    (7, "the mesh is 7"),
])  # fmt: skip
def test_a_bad_mesh_is_refused_with_the_piece_that_is_wrong(mesh: object, piece: str) -> None:
    with pytest.raises(InvalidMeshError) as caught:
        MeshSpec.parse(mesh)  # type: ignore[arg-type]
    assert piece in caught.value.detail
    assert caught.value.hint
    assert isinstance(caught.value, ValueError)


def test_a_size_that_does_not_divide_names_the_rule_and_a_value_that_works() -> None:
    with pytest.raises(PlanInfeasibleError) as caught:
        MeshSpec.parse("dp:3,tp:-1").resolve(8)
    assert "does not divide 8" in caught.value.detail
    assert "multiply to 2" in caught.value.hint


@pytest.mark.parametrize(("given_types", "expected"), [
    (None, ("auto", "auto")), ("Explicit", ("explicit", "explicit")), (["manual"], ("manual", "manual")),
    (["auto", "EXPLICIT"], ("auto", "explicit")), ({"tp": "explicit"}, ("auto", "explicit")),
])  # fmt: skip
def test_axis_types_are_one_for_all_or_one_an_axis(given_types: object, expected: tuple[str, ...]) -> None:
    assert parse_axis_types(given_types, ("dp", "tp")) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["automatic", ["auto", "auto", "auto"], {"pp": "auto"}, []])
def test_wrong_axis_types_are_refused(wrong: object) -> None:
    with pytest.raises(InvalidMeshError) as caught:
        parse_axis_types(wrong, ("dp", "tp"))  # type: ignore[arg-type]
    assert caught.value.errors[0]["field"] == "axis_types"


@pytest.mark.parametrize("size", [10**20, -(10**20), int("9" * 400)])
def test_a_size_of_too_many_digits_is_refused_in_every_form_and_not_repeated(size: int) -> None:
    for mesh in (f"dp:{size}", {"dp": size}, [("dp", size)]):
        with pytest.raises(InvalidMeshError, match=r"'dp'.*over 20 digits") as caught:
            MeshSpec.parse(mesh)  # type: ignore[arg-type]
        assert (caught.value.code, len(caught.value.detail) < 120) == ("invalid_mesh", True)
    zeros = "0" * 19  # of a text that is cut, the zeros count as nothing
    assert (MeshSpec.parse(f"dp:{zeros}6400"), MeshSpec.parse("dp:-01")) == (
        MeshSpec.parse("dp:6400"),
        MeshSpec.parse("dp:-1"),
    )
    assert MeshSpec.parse({"dp": 10**20 - 1}) == MeshSpec.parse(f"dp:{10**20 - 1}")
